"""Registers the emulated operators with PyTorch's dispatcher."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from ascend_recipes.emulation import (
    attention,
    cache,
    convolution,
    norm,
    pointwise,
    recurrent,
    refusal,
)
from ascend_recipes.emulation.expert_kernels import EXPERT_KERNELS
from ascend_recipes.emulation.limits import ANY, emulate_generation, guarded
from ascend_recipes.emulation.sparse_kernels import SPARSE_KERNELS

Kernel = Callable[..., Any]

SCHEMA_FOLDER = Path(__file__).with_name("schemas")

KERNELS: dict[str, tuple[Kernel, Kernel]] = {
    "npu::npu_rms_norm": (norm.rms_norm, norm.rms_norm_meta),
    "npu::npu_gemma_rms_norm": (norm.gemma_rms_norm, norm.rms_norm_meta),
    "npu::npu_add_rms_norm": (norm.add_rms_norm, norm.add_rms_norm_meta),
    "npu::npu_swiglu": (pointwise.swiglu, pointwise.swiglu_meta),
    "npu::npu_rotary_mul": (pointwise.rotary_mul, pointwise.rotary_mul_meta),
    "npu::npu_mrope": (pointwise.mrope, pointwise.mrope_meta),
    "npu::npu_top_k_top_p": (pointwise.top_k_top_p, pointwise.top_k_top_p_meta),
    "npu::npu_scatter_pa_kv_cache": (cache.scatter_pa_kv_cache, cache.scatter_pa_kv_cache_meta),
    "npu::npu_fused_infer_attention_score": (
        attention.fused_infer_attention_score,
        attention.fused_infer_attention_score_meta,
    ),
    "npu::npu_chunk_gated_delta_rule": (
        recurrent.chunk_gated_delta_rule,
        recurrent.chunk_gated_delta_rule_meta,
    ),
    "npu::npu_recurrent_gated_delta_rule": (
        recurrent.recurrent_gated_delta_rule,
        recurrent.recurrent_gated_delta_rule_meta,
    ),
    "_C_ascend::npu_recurrent_gated_delta_rule": (
        recurrent.custom_recurrent_gated_delta_rule,
        recurrent.recurrent_gated_delta_rule_meta,
    ),
    "_C_ascend::npu_causal_conv1d_custom": (
        convolution.causal_conv1d,
        convolution.causal_conv1d_meta,
    ),
    **EXPERT_KERNELS,
    **SPARSE_KERNELS,
}
"""CPU kernel and Meta kernel of each operator."""

_libraries: list[torch.library.Library] = []


def install(relaxed: Collection[str] = (), *, hardware: str = ANY) -> None:
    """Register CPU and Meta kernels for every emulated operator.

    A second call only chooses limits anew. Schemas are defined here where the vendor's package has
    not defined them.

    Args:
        relaxed: Limits of the hardware to lift; see `refusal.RELAXATIONS`.
        hardware: Generation to emulate, a row of `registry/hardware`: operators that it lacks and
            dtypes that it does not take there are refused. `any` takes what some generation takes.

    Raises:
        ValueError: unknown relaxation or generation.
        RuntimeError: the installed vendor package has another schema than our snapshot.
    """
    refusal.relax(relaxed)
    emulate_generation(hardware)
    if _libraries:
        return
    schemas = load_schemas()
    for name, (kernel, meta_kernel) in KERNELS.items():
        namespace, operator = name.split("::")
        if not _matches_installed(name, schemas[name]):
            definition = torch.library.Library(namespace, "FRAGMENT")
            definition.define(schemas[name].removeprefix(f"{namespace}::"))
            _libraries.append(definition)
        implementation = torch.library.Library(namespace, "IMPL")
        implementation.impl(operator, guarded(name, kernel), "CPU")
        if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta"):
            implementation.impl(operator, meta_kernel, "Meta")
        _libraries.append(implementation)


def operator_names() -> tuple[str, ...]:
    """Dispatcher names of the emulated operators."""
    return tuple(KERNELS)


def load_schemas() -> dict[str, str]:
    """Vendor schemas of the operators that our bindings call, by dispatcher name."""
    schemas = {}
    for path in sorted(SCHEMA_FOLDER.glob("*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                schemas[line.split("(", 1)[0]] = line
    return schemas


def _matches_installed(name: str, schema: str) -> bool:
    """Whether the vendor's package has defined the operator; refuses another schema."""
    defined = [str(item) for item in torch._C._jit_get_schemas_for_operator(name)]
    if not defined:
        return False
    expected = str(torch._C.parse_schema(schema))
    if expected not in defined:
        raise RuntimeError(f"{name}: installed schema {defined} is not our snapshot {expected}")
    return True
