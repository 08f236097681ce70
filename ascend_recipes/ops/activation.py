"""Bindings of activations to NPU operators."""

import torch
from torch import Tensor


def swiglu_npu(x_T2I: Tensor) -> Tensor:
    """silu(first half) · second half, on `npu::npu_swiglu`; [T, 2I] to [T, I]."""
    activated: Tensor = torch.ops.npu.npu_swiglu(x_T2I, -1)
    return activated
