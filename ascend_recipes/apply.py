"""Apply: the one stage with effects in a process.

vLLM's engine core and workers load plugins afresh, so every process applies the plan by itself.
Rows are resolved in the installed registry; class paths never come from the plan file.
"""

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ascend_recipes.findings import recipe_error
from ascend_recipes.patching.patcher import apply_rows
from ascend_recipes.paths import PLAN_VARIABLE
from ascend_recipes.plugin import PLATFORM_CLASS
from ascend_recipes.receipts import Phase, Receipt, write_receipt
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.hook import HookKind, HookRow
from ascend_recipes.schema.patch import PatchReceipt
from ascend_recipes.schema.plan import LaunchPlan, load_plan


@dataclass
class _Applied:
    """What this process has applied; the receipt is replaced as more becomes known."""

    plan: LaunchPlan
    receipt: Receipt
    shims: ExitStack
    """Keeps the device's substitutes in place until the process ends."""


_applied: _Applied | None = None


@cache
def current_plan() -> LaunchPlan:
    """Read the plan of this process, which `ASCEND_RECIPES_PLAN` names.

    Raises:
        RecipeError: the file is missing, is no plan, or was edited by hand.
    """
    return load_plan(plan_path())


def plan_path() -> Path:
    """File that holds the plan of this process; its folder is the run folder."""
    return Path(os.environ[PLAN_VARIABLE])


def apply_plan(plan: LaunchPlan, phase: Phase) -> Receipt:
    """Register everything that the plan names, bind its operations and write the receipt.

    A second call with the same plan changes nothing.

    Raises:
        RecipeError: the process already runs another plan, a key is not in the registry, or
            the plan names another platform.
    """
    global _applied
    if _applied is not None:
        _check_same_plan(_applied.plan, plan)
        return _applied.receipt
    _check_platform(plan)
    rows = _hook_rows(plan)
    shims = ExitStack()
    receipt = _register(plan, rows, phase, shims)
    _applied = _Applied(plan, receipt, shims)
    write_receipt(plan_path().parent, receipt)
    return receipt


def update_receipt(**changes: Any) -> None:
    """Replace fields of this process's receipt and write it again."""
    assert _applied is not None, "no plan was applied in this process"
    _applied.receipt = _applied.receipt.model_copy(update=changes)
    write_receipt(plan_path().parent, _applied.receipt)


def kernel_overrides(plan: LaunchPlan) -> dict[str, Callable[..., Any]]:
    """Kernels of the plan: vLLM's dispatcher name -> our implementation."""
    rows = _hook_rows(plan).values()
    return {row.target: resolve(row.implementation) for row in rows if row.kind is HookKind.KERNEL}


def resolve(implementation: str) -> Any:
    """Import what a registry row names as `module:Name`."""
    module, name = implementation.split(":")
    return vars(importlib.import_module(module))[name]


def _check_same_plan(applied: LaunchPlan, wanted: LaunchPlan) -> None:
    if applied.digest != wanted.digest:
        raise recipe_error(
            "apply.second_plan",
            applied=f"{applied.digest} ({applied.recipe})",
            wanted=f"{wanted.digest} ({wanted.recipe})",
        )


def _check_platform(plan: LaunchPlan) -> None:
    row = load_registry().hooks[plan.platform]
    if row.implementation.replace(":", ".") != PLATFORM_CLASS:
        wanted, installed = row.implementation, PLATFORM_CLASS
        raise recipe_error("apply.platform", wanted=wanted, installed=installed)


def _hook_rows(plan: LaunchPlan) -> dict[str, HookRow]:
    hooks = load_registry().hooks
    return {key: hooks[key] for key in plan.hooks}


def _register(
    plan: LaunchPlan, rows: dict[str, HookRow], phase: Phase, shims: ExitStack
) -> Receipt:
    # Deferred: the schemas need torch, and apply is imported before a plan is known to exist.
    from ascend_recipes.torchvision_schemas import define_missing_schemas

    schemas = define_missing_schemas()
    names: tuple[str, ...] = ()
    if phase != "inspect":
        names = _prepare_device(plan, shims)
    patched = _apply_patches(plan, phase)
    registered = sorted(_register_hooks(rows, phase))
    bound = _bind_operations(plan) if phase != "inspect" else {}
    return Receipt(
        pid=os.getpid(),
        phase=phase,
        digest=plan.digest,
        platform=_platform_class(),
        hooks=tuple(registered),
        patches=patched,
        bindings=bound,
        shims=names,
        torchvision_schemas=schemas,
        emulated=plan.device == "emulated" and phase != "inspect",
        relaxed=plan.relaxed,
    )


def _prepare_device(plan: LaunchPlan, shims: ExitStack) -> tuple[str, ...]:
    # Deferred: these need torch, which model inspection does not.
    from ascend_recipes.worker.device.current import device_shims, runtime_for

    if plan.device == "emulated":
        from ascend_recipes.emulation import install

        install(relaxed=plan.relaxed, hardware=plan.hardware)
    return shims.enter_context(device_shims(runtime_for(plan.device)))


def _apply_patches(plan: LaunchPlan, phase: Phase) -> tuple[PatchReceipt, ...]:
    """Change what the plan's patch rows name, before hooks import modules that copy names."""
    patches = load_registry().patches
    rows = {key: patches[key] for key in plan.patches}
    return apply_rows(rows, phase, hosted=_hosted_phases(plan, phase)).receipts


def _hosted_phases(plan: LaunchPlan, phase: Phase) -> tuple[Phase, ...]:
    """Other roles that live in this process: vLLM starts no process for a single worker."""
    alone = plan.engine["distributed_executor_backend"] == "uni"
    worker: tuple[Phase, ...] = ("worker",) if alone else ()
    if phase == "frontend" and os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
        return ("core", *worker)
    return worker if phase == "core" else ()


def _register_hooks(rows: dict[str, HookRow], phase: Phase) -> Iterator[str]:
    """Register the rows that the phase needs and yield their keys."""
    for key, row in rows.items():
        if phase == "inspect" and row.kind not in (HookKind.MODEL, HookKind.QUANTIZATION):
            continue
        _REGISTRARS[row.kind](row)
        yield key


def _register_model(row: HookRow) -> None:
    from vllm.model_executor.models.registry import ModelRegistry

    ModelRegistry.register_model(row.target, row.implementation)


def _register_layer(row: HookRow) -> None:
    resolve(row.target).register_oot(resolve(row.implementation))


def _register_state_backend(row: HookRow) -> None:
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum, register_backend

    member = MambaAttentionBackendEnum[row.target]
    register_backend(member, row.implementation.replace(":", "."), is_mamba=True)


def _register_quantization(row: HookRow) -> None:
    from vllm.model_executor.layers.quantization import register_quantization_config

    register_quantization_config(row.target)(resolve(row.implementation))


def _leave_to_platform(_row: HookRow) -> None:
    """The platform class is vLLM's to load; kernels are registered when it asks in a worker."""


_REGISTRARS: dict[HookKind, Callable[[HookRow], None]] = {
    HookKind.PLATFORM: _leave_to_platform,
    HookKind.KERNEL: _leave_to_platform,
    HookKind.MODEL: _register_model,
    HookKind.LAYER: _register_layer,
    HookKind.STATE_BACKEND: _register_state_backend,
    HookKind.QUANTIZATION: _register_quantization,
}


def _bind_operations(plan: LaunchPlan) -> dict[str, str]:
    from ascend_recipes.ops import operations

    operations.bind(plan.operations, load_registry().operations)
    return dict(plan.operations)


def _platform_class() -> str:
    from vllm.platforms import current_platform

    cls = type(current_platform)
    return f"{cls.__module__}:{cls.__qualname__}"
