"""Emulated normalization operators."""

# Shapes: [..., H] with the gamma's dimensions at the end

import torch
from torch import Tensor

from ascend_recipes.emulation.refusal import (
    check,
    check_contiguous,
    check_same_dtype,
)


def rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """`npu::npu_rms_norm`: x / sqrt(mean(x²) + ε) · γ, and the reciprocal root in float32."""
    _check_norm("npu_rms_norm", input, gamma, lowest_rank=2)
    return _normalize(input, gamma.float(), epsilon)


def gemma_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """`npu::npu_gemma_rms_norm`: as `npu_rms_norm` with 1 + γ, the addition in float32."""
    name = "npu_gemma_rms_norm"
    _check_norm(name, input, gamma, lowest_rank=1)
    check_contiguous(name, input=input, gamma=gamma)
    check(
        input.numel() > 0,
        name,
        "input",
        "is empty",
        "at least one element (the documentation refuses empty input)",
    )
    return _normalize(input, gamma.float() + 1.0, epsilon)


def add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """`npu::npu_add_rms_norm`: the norm of x1 + x2, the reciprocal root, and the sum."""
    name = "npu_add_rms_norm"
    check(
        x1.shape == x2.shape,
        name,
        "x2",
        f"has shape {list(x2.shape)}",
        f"{list(x1.shape)}, the shape of x1",
    )
    check_same_dtype(name, x1, x2=x2)
    _check_norm(name, x1, gamma, lowest_rank=1)
    total = x1 + x2
    normed, reciprocal = _normalize(total, gamma.float(), epsilon)
    return normed, reciprocal, total


def _check_norm(name: str, x: Tensor, gamma: Tensor, *, lowest_rank: int) -> None:
    check_same_dtype(name, x, gamma=gamma)
    check(
        lowest_rank <= x.dim() <= 8,
        name,
        "input",
        f"has {x.dim()} dimensions",
        f"{lowest_rank} to 8 dimensions",
    )
    trailing = list(x.shape[x.dim() - gamma.dim() :]) if gamma.dim() <= x.dim() else []
    check(
        gamma.dim() >= 1 and list(gamma.shape) == trailing,
        name,
        "gamma",
        f"has shape {list(gamma.shape)}",
        f"the last dimensions of the input, {list(x.shape)}",
    )


def _normalize(x: Tensor, factor: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    axes = tuple(range(x.dim() - factor.dim(), x.dim()))
    wide = x.float()
    reciprocal = (wide.square().mean(dim=axes, keepdim=True) + epsilon).rsqrt()
    return (wide * reciprocal * factor).to(x.dtype), reciprocal


def rms_norm_meta(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Shapes of `npu_rms_norm` and `npu_gemma_rms_norm`."""
    kept = input.dim() - gamma.dim()
    reciprocal = [size if axis < kept else 1 for axis, size in enumerate(input.shape)]
    return torch.empty_like(input), input.new_empty(reciprocal, dtype=torch.float32)


def add_rms_norm_meta(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes of `npu_add_rms_norm`."""
    normed, reciprocal = rms_norm_meta(x1, gamma, epsilon)
    return normed, reciprocal, torch.empty_like(x1)
