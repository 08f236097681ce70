"""Emulated operators that end in SwiGLU, or in SwiGLU and quantization."""

# Shapes: R rows, K inner size, I intermediate (2I with gate and up), E experts

from math import isfinite

import torch
from torch import Tensor

from ascend_recipes.emulation.group_list import COUNTS, group_ends, row_slices
from ascend_recipes.emulation.integer import quantize_rows
from ascend_recipes.emulation.refusal import (
    SMALL,
    OperatorRefusedError,
    check,
    check_contiguous,
    check_dtype,
    check_shape,
    check_unset,
    relaxes,
)
from ascend_recipes.emulation.undefined import padded

HALF_LIMIT = 10496


def clipped_swiglu(
    x: Tensor,
    *,
    group_index: Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> Tensor:
    """`npu::npu_clipped_swiglu`: a · sigmoid(alpha · a) · (b + bias), a ≤ limit, |b| ≤ limit."""
    name = "npu_clipped_swiglu"
    check_unset(name, group_index=group_index)
    check_contiguous(name, x=x)
    check(x.dim() > 1, name, "x", f"has {x.dim()} dimensions", "more than 1")
    check(-x.dim() <= dim < x.dim(), name, "dim", f"is {dim}", f"-{x.dim()} to {x.dim() - 1}")
    check(x.shape[dim] % 2 == 0, name, "x", f"has odd size {x.shape[dim]} along dim {dim}", "even")
    wide = x.float().movedim(dim, -1)
    a, b = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
    y = swiglu(a.clamp(max=limit), b.clamp(-limit, limit), alpha=alpha, bias=bias)
    return y.movedim(-1, dim).to(x.dtype).contiguous()


def clipped_swiglu_meta(
    x: Tensor,
    *,
    group_index: Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> Tensor:
    """Shape of `npu_clipped_swiglu`."""
    shape = list(x.shape)
    shape[dim] //= 2
    return x.new_empty(shape)


def dequant_swiglu_quant(
    x: Tensor,
    *,
    weight_scale: Tensor | None = None,
    activation_scale: Tensor | None = None,
    bias: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    group_index: Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    dst_type: int | None = None,
    round_mode: int | None = None,
    activate_dim: int | None = None,
    swiglu_mode: int = 0,
    clamp_limit: float = 7.0,
    glu_alpha: float = 1.702,
    glu_bias: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """`npu::npu_dequant_swiglu_quant` of int32 sums: scales, SwiGLU, dynamic int8 per token.

    Rows beyond the groups are undefined.
    """
    name = "npu_dequant_swiglu_quant"
    check_unset(name, dst_type=dst_type, round_mode=round_mode, activate_dim=activate_dim)
    check_unset(name, bias=bias, quant_scale=quant_scale, quant_offset=quant_offset)
    check(
        quant_mode == 1, name, "quant_mode", f"is {quant_mode}", "1 (dynamic; static not emulated)"
    )
    check(swiglu_mode in (0, 1), name, "swiglu_mode", f"is {swiglu_mode}", "0, 1")
    check_finite(name, glu_alpha=glu_alpha, glu_bias=glu_bias, clamp_limit=clamp_limit)
    check(clamp_limit >= 0, name, "clamp_limit", f"is {clamp_limit}", "0 or more")
    check_dtype(name, "x", x, (torch.int32,))
    check(x.dim() == 2, name, "x", f"has {x.dim()} dimensions", "2 ([tokens, 2H])")
    rows, width = x.shape
    check(width % 2 == 0, name, "x", f"has odd size {width}", "an even last dimension")
    if weight_scale is None or activation_scale is None:
        raise OperatorRefusedError(
            name, "weight_scale", "or activation_scale is None", "both for int32"
        )
    groups = 1 if group_index is None else group_index.shape[0]
    check_shape(name, "weight_scale", weight_scale, (groups, width), "[groups, 2H]")
    check_shape(name, "activation_scale", activation_scale, (rows,), "[tokens]")
    ends = [rows]
    if group_index is not None:
        check(
            width // 2 <= HALF_LIMIT and (width % 64 == 0 or relaxes(SMALL)),
            name,
            "x",
            f"has a last dimension of {width}",
            f"a multiple of 64 up to {2 * HALF_LIMIT} with groups",
        )
        ends = group_ends(name, group_index, COUNTS, groups=groups, rows=rows)
    scaled = torch.cat(
        [x[part].float() * weight_scale[group] for group, part in enumerate(row_slices(ends))]
    )
    scaled = scaled * activation_scale[: ends[-1], None]
    left, right = scaled.chunk(2, dim=-1)
    a, b = (left, right) if activate_left else (right, left)
    if swiglu_mode == 1:
        if clamp_limit > 0:
            a, b = a.clamp(max=clamp_limit), b.clamp(-clamp_limit, clamp_limit)
        y = swiglu(a, b, alpha=glu_alpha, bias=glu_bias)
    else:
        y = swiglu(a, b, alpha=1.0, bias=0.0)
    return poisoned(y, rows)


def custom_dequant_swiglu_quant(
    x: Tensor,
    *,
    weight_scale: Tensor | None = None,
    activation_scale: Tensor | None = None,
    bias: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    group_index: Tensor | None = None,
    activate_left: bool = True,
    quant_mode: int = 0,
    swiglu_mode: int = 0,
    clamp_limit: float = 0.0,
    glu_alpha: float = 1.0,
    glu_bias: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`_C_ascend::npu_dequant_swiglu_quant`: the same with other defaults."""
    return dequant_swiglu_quant(
        x,
        weight_scale=weight_scale,
        activation_scale=activation_scale,
        bias=bias,
        quant_scale=quant_scale,
        quant_offset=quant_offset,
        group_index=group_index,
        activate_left=activate_left,
        quant_mode=quant_mode,
        swiglu_mode=swiglu_mode,
        clamp_limit=clamp_limit,
        glu_alpha=glu_alpha,
        glu_bias=glu_bias,
    )


def check_finite(name: str, **numbers: float) -> None:
    """Refuse numbers that are infinite or none at all."""
    for argument, number in numbers.items():
        check(isfinite(number), name, argument, f"is {number}", "a finite number")


def dequant_swiglu_quant_meta(x: Tensor, **_: object) -> tuple[Tensor, Tensor]:
    """Shapes of both."""
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    return (
        x.new_empty(shape, dtype=torch.int8),
        x.new_empty(shape[:-1], dtype=torch.float32),
    )


def swiglu(a: Tensor, b: Tensor, *, alpha: float, bias: float) -> Tensor:
    """a · sigmoid(alpha · a) · (b + bias)."""
    return a / (1.0 + torch.exp(-alpha * a)) * (b + bias)


def poisoned(y: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Quantize, and append rows that nobody wrote."""
    values, scale = quantize_rows(y)
    return padded(values, rows), padded(scale, rows)
