"""Bindings of normalizations to NPU operators."""

# Shapes: T tokens (any leading dimensions), H normalized size

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm_npu(x_TH: Tensor, weight_H: Tensor, *, epsilon: float) -> Tensor:
    """RMS norm on `npu::npu_rms_norm`."""
    normed: Tensor = torch.ops.npu.npu_rms_norm(x_TH, weight_H, epsilon)[0]
    return normed


def gemma_rms_norm_npu(x_TH: Tensor, weight_H: Tensor, *, epsilon: float) -> Tensor:
    """RMS norm that multiplies by 1 + weight, on `npu::npu_gemma_rms_norm`."""
    # The operator takes contiguous tensors only; q and k arrive as slices of one projection.
    normed: Tensor = torch.ops.npu.npu_gemma_rms_norm(
        x_TH.contiguous(), weight_H.contiguous(), epsilon
    )[0]
    return normed


def gemma_rms_norm_plain_npu(x_TH: Tensor, weight_H: Tensor, *, epsilon: float) -> Tensor:
    """The same where `npu_gemma_rms_norm` does not exist: `npu::npu_rms_norm` with 1 + weight."""
    return rms_norm_npu(x_TH, weight_H + 1.0, epsilon=epsilon)


def add_rms_norm_npu(
    x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Add and RMS norm on `npu::npu_add_rms_norm`; returns the norm and the sum."""
    normed, _, total = torch.ops.npu.npu_add_rms_norm(x_TH, residual_TH, weight_H, epsilon)
    return normed, total


def add_gemma_rms_norm_npu(
    x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Add and Gemma RMS norm on `npu::npu_add_rms_norm` with 1 + weight."""
    return add_rms_norm_npu(x_TH, residual_TH, weight_H + 1.0, epsilon=epsilon)


def gated_rms_norm_npu(
    x_TH: Tensor, gate_TH: Tensor, weight_H: Tensor, *, epsilon: float, activation: str
) -> Tensor:
    """RMS norm on `npu::npu_rms_norm`, then times the activated gate, in float32."""
    normed_TH = rms_norm_npu(x_TH, weight_H.to(x_TH.dtype), epsilon=epsilon)
    opened_TH = _activate(gate_TH.float(), activation)
    return (normed_TH * opened_TH).to(x_TH.dtype)


def _activate(gate: Tensor, activation: str) -> Tensor:
    if activation in ("silu", "swish"):
        return F.silu(gate)
    if activation == "sigmoid":
        return gate.sigmoid()
    raise ValueError(f"gated_rms_norm: activation '{activation}'; allowed: silu, swish, sigmoid")
