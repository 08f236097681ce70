"""Emulated operators that quantize activations and prepare quantized weights."""

# Shapes: [..., H] activations, K x N weights

import torch
from torch import Tensor

from ascend_recipes.emulation.integer import NIBBLES, quantize_rows, to_int8
from ascend_recipes.emulation.limits import check_limit
from ascend_recipes.emulation.refusal import (
    check,
    check_contiguous,
    check_range,
    check_same_dtype,
    check_shape,
    check_unset,
)

INT8, QINT8 = 1, 12
"""Numbers of torch.int8 and torch.qint8 in arguments that carry a dtype."""
FLOAT8 = 24
"""Number of torch.float8_e4m3fn."""
FLOAT8_MAX = 448.0


def dynamic_quant(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`npu::npu_dynamic_quant`: symmetric int8 per token, scale = rowmax(|x · smooth|) / 127."""
    name = "npu_dynamic_quant"
    check(input.dim() > 1, name, "input", f"has {input.dim()} dimensions", "more than 1 dimension")
    check_limit(f"npu::{name}", "dst_type", "dst_type", INT8 if dst_type is None else dst_type)
    check(quant_mode == "pertoken", name, "quant_mode", f"is '{quant_mode}'", "pertoken")
    check(dst_type_max == 0.0, name, "dst_type_max", f"is {dst_type_max}", "0")
    wide = input.float()
    if smooth_scales is not None:
        check_same_dtype(name, input, smooth_scales=smooth_scales)
        wide = wide * _smooth_rows(name, input, smooth_scales, group_index)
    else:
        check_unset(name, group_index=group_index)
    return _float8_rows(wide) if dst_type == FLOAT8 else quantize_rows(wide)


def dynamic_quant_meta(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Shapes of `npu_dynamic_quant`."""
    return (
        torch.empty_like(input, dtype=torch.float8_e4m3fn if dst_type == FLOAT8 else torch.int8),
        input.new_empty(input.shape[:-1], dtype=torch.float32),
    )


def _float8_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """fp8_e4m3 of the last dimension: scale = largest magnitude / 448, a row of zeros stays 0."""
    scale = values.abs().amax(dim=-1) / FLOAT8_MAX
    divided = torch.where(scale[..., None] > 0, values / scale[..., None], 0.0)
    return divided.clamp(-FLOAT8_MAX, FLOAT8_MAX).to(torch.float8_e4m3fn), scale


def _smooth_rows(name: str, x: Tensor, smooth: Tensor, group_index: Tensor | None) -> Tensor:
    """Smoothing factors that broadcast over x; one row a group where groups are given."""
    width = x.shape[-1]
    if group_index is None:
        check_shape(name, "smooth_scales", smooth, (width,), "[last dimension of the input]")
        return smooth.float()
    check_shape(name, "group_index", group_index, (None,), "[groups]")
    check_shape(name, "smooth_scales", smooth, (group_index.shape[0], width), "[groups, last]")
    rows = x.numel() // width
    ends = group_index.long()
    rising = bool((ends[1:] >= ends[:-1]).all()) and bool((ends >= 0).all())
    check(rising, name, "group_index", "decreases", "rising row ends")
    check(int(ends[-1]) == rows, name, "group_index", f"ends at {int(ends[-1])}", f"{rows}, rows")
    group = torch.searchsorted(ends, torch.arange(rows), right=True)
    return smooth.float()[group].view(x.shape)


def quantize(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    dtype: int,
    axis: int = 1,
    div_mode: bool = True,
) -> Tensor:
    """`npu::npu_quantize` in multiplication mode: int8 rint(x · scales + zero_points)."""
    name = "npu_quantize"
    check(not div_mode, name, "div_mode", "is True", "False (division is not emulated)")
    check(dtype in (INT8, QINT8), name, "dtype", f"is {dtype}", "torch.qint8 (12), torch.int8 (1)")
    check_limit(f"npu::{name}", "axis", "axis", axis)
    check(axis < input.dim(), name, "axis", f"is {axis}", f"below {input.dim()}, the dimensions")
    quantized_axis = input.dim() - (2 if axis == -2 else 1)
    size = input.shape[quantized_axis]
    if scales.dim() == 1:
        fits = scales.shape[0] in (1, size)
        shape = [scales.shape[0] if dim == quantized_axis else 1 for dim in range(input.dim())]
    else:
        shape = [size if dim == quantized_axis else 1 for dim in range(input.dim())]
        fits = list(scales.shape) in (shape, [1] * input.dim())
        shape = list(scales.shape)
    check(fits, name, "scales", f"has shape {list(scales.shape)}", f"[1] or [{size}], of the axis")
    result = input.float() * scales.float().reshape(shape)
    if zero_points is not None:
        same = zero_points.shape == scales.shape and zero_points.dtype == scales.dtype
        found = f"is {zero_points.dtype} {list(zero_points.shape)}"
        check(same, name, "zero_points", found, "shape and dtype of scales")
        result = result + zero_points.float().reshape(shape)
    return to_int8(result)


def quantize_meta(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    dtype: int,
    axis: int = 1,
    div_mode: bool = True,
) -> Tensor:
    """Shape of `npu_quantize`."""
    return torch.empty_like(input, dtype=torch.int8)


def trans_quant_param(
    scale: Tensor, offset: Tensor | None = None, round_mode: int | None = 0
) -> Tensor:
    """`npu::npu_trans_quant_param`: float32 scales in int64, cut to 19 bits as the cube reads them.

    The low 13 bits of the mantissa fall away (mode 0) or round to nearest, ties to even (mode 1).
    """
    name = "npu_trans_quant_param"
    check_unset(name, offset=offset)
    one_row = scale.dim() == 1 or (scale.dim() == 2 and scale.shape[0] == 1)
    check(one_row, name, "scale", f"has shape {list(scale.shape)}", "[columns] or [1, columns]")
    check(scale.numel() > 0, name, "scale", "is empty", "at least one column")
    check(round_mode in (0, 1), name, "round_mode", f"is {round_mode}", "0 (cut), 1 (round)")
    bits = scale.contiguous().view(torch.int32).long() & 0xFFFFFFFF
    if round_mode == 1:
        bits = bits + 0x0FFF + ((bits >> 13) & 1)
    return bits & 0xFFFFE000


def trans_quant_param_meta(
    scale: Tensor, offset: Tensor | None = None, round_mode: int | None = 0
) -> Tensor:
    """Shape of `npu_trans_quant_param`."""
    return scale.new_empty(scale.shape, dtype=torch.int64)


def convert_weight_to_int4pack(weight: Tensor, inner_k_tiles: int = 0) -> Tensor:
    """`npu::npu_convert_weight_to_int4pack`: eight neighbours of a row in one int32, low first."""
    name = "npu_convert_weight_to_int4pack"
    check_contiguous(name, weight=weight)
    check(weight.dim() == 2, name, "weight", f"has {weight.dim()} dimensions", "2 dimensions")
    width = weight.shape[1]
    check(width % NIBBLES == 0, name, "weight", f"has rows of {width}", "a multiple of 8")
    check_range(name, "weight", weight, -8, 8, "int4")
    check(inner_k_tiles == 0, name, "inner_k_tiles", f"is {inner_k_tiles}", "0 (reserved)")
    nibbles = (weight.long() & 0xF).view(weight.shape[0], -1, NIBBLES)
    shifts = torch.arange(0, 4 * NIBBLES, 4, dtype=torch.int64)
    word = (nibbles << shifts).sum(dim=-1)
    return torch.where(word >= 2**31, word - 2**32, word).to(torch.int32)


def convert_weight_to_int4pack_meta(weight: Tensor, inner_k_tiles: int = 0) -> Tensor:
    """Shape of `npu_convert_weight_to_int4pack`."""
    return weight.new_empty((weight.shape[0], weight.shape[1] // NIBBLES))


def format_cast(
    input: Tensor,
    acl_format: int,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> Tensor:
    """`npu::npu_format_cast`: another order in memory, the same values at the same indices."""
    name = "npu_format_cast"
    check_unset(name, customize_dtype=customize_dtype, input_dtype=input_dtype)
    check(acl_format in (2, 29), name, "acl_format", f"is {acl_format}", "2 (ND), 29 (FRACTAL_NZ)")
    if acl_format == 29:
        check(input.dim() >= 2, name, "input", f"has {input.dim()} dimensions", "2 or more for NZ")
    return input.clone()


def format_cast_meta(
    input: Tensor,
    acl_format: int,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> Tensor:
    """Shape of `npu_format_cast`."""
    return torch.empty_like(input)
