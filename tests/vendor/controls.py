"""Calls whose verdicts are known, asked together with the recorded ones."""

from dataclasses import replace
from functools import cache

import torch

from ascend_recipes.emulation import install
from tests.vendor.environment import Call
from tests.vendor.recording import record

ROW = {"shape": [2, 64], "stride": [64, 1], "dtype": "bfloat16"}
WEIGHT = {"shape": [64], "stride": [1], "dtype": "bfloat16"}
CALLS = {
    "good": Call("npu::npu_rms_norm", (ROW, WEIGHT, 1e-6)),
    "named": Call("npu::npu_rms_norm", (ROW,), {"gamma": WEIGHT, "epsilon": 1e-6}),
    "wrong_name": Call("npu::npu_rms_norm", (ROW,), {"weight": WEIGHT}),
    "wrong_type": Call("npu::npu_rms_norm", (ROW, WEIGHT, "1e-6")),
    "too_many": Call("npu::npu_swiglu", (ROW, -1, 0)),
    "unknown": Call("npu::npu_rms_norm_of_tomorrow", (ROW,)),
    "source_good": Call("_C_ascend::two", (ROW,), {"second": WEIGHT}),
    "source_wrong_name": Call("_C_ascend::two", (ROW,), {"third": WEIGHT}),
}
DEFINITION = "_C_ascend::two(Tensor first, *, Tensor second) -> Tensor"


@cache
def call_of_mistaken_binding() -> Call:
    """What the recorder sees of a binding whose mistake our own schema and kernels share."""
    install()
    library = torch.library.Library("npu", "FRAGMENT")
    library.define("npu_mistaken(Tensor input, *, Tensor weight) -> Tensor")
    library.impl("npu_mistaken", lambda input, weight: input.clone(), "CPU")
    library.impl("npu_mistaken", lambda input, weight: torch.empty_like(input), "Meta")
    (recorded,) = record(lambda x: torch.ops.npu.npu_mistaken(x, weight=x), {"x": torch.ones(2)})
    return replace(recorded.call, operator="npu::npu_rms_norm")


def control_calls() -> dict[str, Call]:
    """Right and wrong calls by name."""
    return CALLS | {"mistaken": call_of_mistaken_binding()}
