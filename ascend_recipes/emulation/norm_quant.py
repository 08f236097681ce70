"""Emulated normalizations that quantize what they return."""

# Shapes: [..., H], one scale a row

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_recipes.emulation.integer import quantize_rows
from ascend_recipes.emulation.refusal import (
    check,
    check_same_dtype,
    check_shape,
    check_unset,
)


def rms_norm_dynamic_quant(
    x: Tensor,
    gamma: Tensor,
    smooth_scale: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """`_C_ascend::npu_rms_norm_dynamic_quant`: the norm in float32, int8 per token."""
    name = "npu_rms_norm_dynamic_quant"
    _check(name, x, gamma, smooth_scale=smooth_scale, beta=beta)
    check(epsilon > 0, name, "epsilon", f"is {epsilon}", "more than 0")
    return quantize_rows(_normalize(x, gamma, beta, epsilon, smooth_scale))


def rms_norm_dynamic_quant_meta(
    x: Tensor,
    gamma: Tensor,
    smooth_scale: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """Shapes of `npu_rms_norm_dynamic_quant`."""
    return (
        torch.empty_like(x, dtype=torch.int8),
        x.new_empty(x.shape[:-1], dtype=torch.float32),
    )


def add_rms_norm_dynamic_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    smooth_scale1: Tensor | None = None,
    smooth_scale2: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: Sequence[bool] | None = None,
    y_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`npu::npu_add_rms_norm_dynamic_quant`, the first of the two quantized outputs only."""
    name = "npu_add_rms_norm_dynamic_quant"
    check_unset(name, smooth_scale2=smooth_scale2)
    check(y_dtype in (None, 1), name, "y_dtype", f"is {y_dtype}", "None or torch.int8 (1)")
    check(
        output_mask is None or list(output_mask) == [True, False],
        name,
        "output_mask",
        f"is {output_mask}",
        "None or [True, False]",
    )
    check(
        x1.shape == x2.shape, name, "x2", f"has shape {list(x2.shape)}", f"{list(x1.shape)}, as x1"
    )
    check_same_dtype(name, x1, x2=x2)
    _check(name, x1, gamma, smooth_scale1=smooth_scale1, beta=beta)
    total = x1 + x2
    values, scale = quantize_rows(_normalize(total, gamma, beta, epsilon, smooth_scale1))
    return (
        values,
        values.new_empty((0,)),
        total,
        scale,
        scale.new_empty((0,)),
    )


def add_rms_norm_dynamic_quant_meta(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    smooth_scale1: Tensor | None = None,
    smooth_scale2: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: Sequence[bool] | None = None,
    y_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Shapes of `npu_add_rms_norm_dynamic_quant`."""
    values, scale = rms_norm_dynamic_quant_meta(x1, gamma)
    empty = values.new_empty((0,)), scale.new_empty((0,))
    return values, empty[0], torch.empty_like(x1), scale, empty[1]


def _check(name: str, x: Tensor, gamma: Tensor, **vectors: Tensor | None) -> None:
    check(2 <= x.dim() <= 8, name, "x", f"has {x.dim()} dimensions", "2 to 8")
    check(x.numel() > 0, name, "x", "is empty", "at least one element")
    for argument, tensor in {"gamma": gamma, **vectors}.items():
        if tensor is not None:
            check_same_dtype(name, x, **{argument: tensor})
            check_shape(name, argument, tensor, (x.shape[-1],), "[last dimension of x]")


def _normalize(
    x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float, smooth: Tensor | None
) -> Tensor:
    wide = x.float()
    normed = wide * (wide.square().mean(dim=-1, keepdim=True) + epsilon).rsqrt() * gamma.float()
    if beta is not None:
        normed = normed + beta.float()
    return normed if smooth is None else normed * smooth.float()
