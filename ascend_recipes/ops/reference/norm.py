"""References of the normalizations."""

# Shapes: T tokens (any leading dimensions), H normalized size

import torch
from torch import Tensor


def rms_norm(x_TH: Tensor, weight_H: Tensor, *, epsilon: float) -> Tensor:
    """x / sqrt(mean(x²) + ε) · w, computed in float32."""
    wide = x_TH.float()
    root = torch.sqrt((wide * wide).mean(dim=-1, keepdim=True) + epsilon)
    return (wide / root * weight_H.float()).to(x_TH.dtype)


def gemma_rms_norm(x_TH: Tensor, weight_H: Tensor, *, epsilon: float) -> Tensor:
    """RMS norm that multiplies by 1 + w."""
    return rms_norm(x_TH, 1.0 + weight_H.float(), epsilon=epsilon)


def add_rms_norm(
    x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor]:
    """RMS norm of the sum, and the sum."""
    total = x_TH + residual_TH
    return rms_norm(total, weight_H, epsilon=epsilon), total


def add_gemma_rms_norm(
    x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Gemma RMS norm of the sum, and the sum."""
    total = x_TH + residual_TH
    return gemma_rms_norm(total, weight_H, epsilon=epsilon), total


def gated_rms_norm(
    x_TH: Tensor, gate_TH: Tensor, weight_H: Tensor, *, epsilon: float, activation: str
) -> Tensor:
    """RMS norm, then times silu (swish) or sigmoid of the gate."""
    gate = gate_TH.float()
    opened = {
        "silu": gate * gate.sigmoid(),
        "swish": gate * gate.sigmoid(),
        "sigmoid": gate.sigmoid(),
    }[activation]
    return (rms_norm(x_TH.float(), weight_H, epsilon=epsilon) * opened).to(x_TH.dtype)
