"""Which launches recipes need: what the Triton bindings would start at the sizes of their plans."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ascend_recipes.ops.triton import bindings
from ascend_recipes.plan import PlannedLaunch
from tests.lowering.environment import LoweringCase

TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int32: "i32",
    torch.int64: "i64",
}
TOKENS = 8


def launches_of(planned: PlannedLaunch) -> list[LoweringCase]:
    """Launches on one die of a plan; none where the model has no such layer."""
    config, tp = planned.resolved.config, int(planned.plan.engine.get("tensor_parallel_size", 1))
    found: list[LoweringCase] = []
    if "gated_delta_net" in planned.resolved.traits:
        found += recorded(_gates, int(config["linear_num_value_heads"]) // tp)
        rotated = int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"])
        for name in ("num_attention_heads", "num_key_value_heads"):
            heads = max(1, int(config[name]) // tp)
            found += recorded(_norm_rotary, heads, int(config["head_dim"]), rotated // 2)
    return found


def _gates(heads: int) -> None:
    a = torch.empty(TOKENS, heads, dtype=torch.bfloat16, device="meta")
    rate = torch.empty(heads, dtype=torch.float32, device="meta")
    bindings.delta_rule_gates_triton(a, a, rate, rate)


def _norm_rotary(heads: int, width: int, frequencies: int) -> None:
    x = torch.empty(TOKENS, heads, width, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(width, dtype=torch.bfloat16, device="meta")
    angle = torch.empty(TOKENS, frequencies, dtype=torch.bfloat16, device="meta")
    bindings.rms_norm_rotary_triton(x, weight, angle, angle, epsilon=1e-6, add_one=True)


def recorded(call: Callable[..., None], *sizes: int) -> list[LoweringCase]:
    """Launches that a binding makes; nothing is compiled or run."""
    found: list[LoweringCase] = []
    with _recorders(found):
        call(*sizes)
    assert found, "the binding started no kernel"
    return found


@contextmanager
def _recorders(found: list[LoweringCase]) -> Iterator[None]:
    kernels = {name: value for name, value in vars(bindings).items() if name.endswith("_kernel")}
    for name, kernel in kernels.items():
        setattr(bindings, name, _Recorder(kernel, found))
    try:
        yield
    finally:
        for name, kernel in kernels.items():
            setattr(bindings, name, kernel)


class _Recorder:
    def __init__(self, kernel: Any, found: list[LoweringCase]) -> None:
        self._kernel, self._found = kernel, found

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert 0 < grid[0] <= 65535, f"an NPU does not launch {grid} programs"
        return self._launch

    def _launch(self, *args: Any, **kwargs: Any) -> None:
        values = dict(zip(self._kernel.arg_names, args, strict=False)) | kwargs
        assert list(values) == list(self._kernel.arg_names)
        constant = {item.name for item in self._kernel.params if item.is_constexpr}
        self._found.append(
            LoweringCase(
                file=Path(self._kernel.fn.__code__.co_filename),
                kernel=self._kernel.fn.__name__,
                signature={k: _type(v) for k, v in values.items() if k not in constant},
                constants={k: v for k, v in values.items() if k in constant},
            )
        )


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"
