"""Emulated grouped products that end in SwiGLU and int8: the first half of an expert layer."""

# Shapes: R rows, K inner size, N columns, E experts

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_recipes.emulation.group_list import CUMULATIVE, group_ends, row_slices
from ascend_recipes.emulation.grouped_matmul import int4_sums
from ascend_recipes.emulation.integer import NIBBLES, accumulate, unpack_scale
from ascend_recipes.emulation.refusal import (
    OperatorRefusedError,
    check,
    check_dtype,
    check_shape,
    check_unset,
)
from ascend_recipes.emulation.swiglu_quant import poisoned, swiglu

WIDTH_LIMIT, INNER_LIMIT = 10240, 65536
LISTED_LIMIT = 8192
"""Columns of a weight in a list of one an expert."""
INT4_LIMIT = 20000
"""Columns of rows that meet int4 weights."""


def grouped_matmul_swiglu_quant(
    x: Tensor,
    weight: Tensor,
    group_list: Tensor,
    weight_scale: Tensor,
    x_scale: Tensor,
    *,
    bias: Tensor | None = None,
    offset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`npu::npu_grouped_matmul_swiglu_quant`: int8 product, scales, SwiGLU, int8 per token.

    The group list holds row ends; rows beyond the last one are undefined.
    """
    name = "npu_grouped_matmul_swiglu_quant"
    check_unset(name, bias=bias, offset=offset)
    check(weight.dim() == 3, name, "weight", f"has {weight.dim()} dimensions", "[experts, K, N]")
    values, scale = _int8_swiglu(
        name, x, list(weight), list(weight_scale), x_scale, group_list, 0.0
    )
    return values, scale, _reserved(scale)


def grouped_matmul_swiglu_quant_meta(
    x: Tensor,
    weight: Tensor,
    group_list: Tensor,
    weight_scale: Tensor,
    x_scale: Tensor,
    **_: object,
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes of `npu_grouped_matmul_swiglu_quant`."""
    return _swiglu_shapes(x, weight_scale, offset_shape=())


def weight_nz(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    x_scale: Tensor,
    group_list: Tensor,
    *,
    bias: Tensor | None = None,
    offset: Tensor | None = None,
    swiglu_limit: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """`_C_ascend::grouped_matmul_swiglu_quant_weight_nz`: the same with a clamp before SwiGLU."""
    name = "grouped_matmul_swiglu_quant_weight_nz"
    check_unset(name, bias=bias, offset=offset)
    check(weight.dim() == 3, name, "weight", f"has {weight.dim()} dimensions", "[experts, K, N]")
    values, scale = _int8_swiglu(
        name, x, list(weight), list(weight_scale), x_scale, group_list, swiglu_limit
    )
    return values, scale, _reserved(scale)


def weight_nz_meta(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    x_scale: Tensor,
    group_list: Tensor,
    **_: object,
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes of `grouped_matmul_swiglu_quant_weight_nz`."""
    return _swiglu_shapes(x, weight_scale, offset_shape=())


def weight_nz_tensor_list(
    x: Tensor,
    weight: Sequence[Tensor],
    weight_scale: Sequence[Tensor],
    x_scale: Tensor,
    group_list: Tensor,
    *,
    bias: Tensor | None = None,
    offset: Tensor | None = None,
    swiglu_limit: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """`_C_ascend::grouped_matmul_swiglu_quant_weight_nz_tensor_list`: one tensor an expert."""
    name = "grouped_matmul_swiglu_quant_weight_nz_tensor_list"
    check_unset(name, bias=bias, offset=offset)
    check(
        len(weight) == len(weight_scale),
        name,
        "weight_scale",
        f"holds {len(weight_scale)} tensors",
        f"{len(weight)}, as weight",
    )
    values, scale = _int8_swiglu(
        name, x, list(weight), list(weight_scale), x_scale, group_list, swiglu_limit, LISTED_LIMIT
    )
    return values, scale, torch.full_like(scale, torch.nan)


def weight_nz_tensor_list_meta(
    x: Tensor,
    weight: Sequence[Tensor],
    weight_scale: Sequence[Tensor],
    x_scale: Tensor,
    group_list: Tensor,
    **_: object,
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes of `grouped_matmul_swiglu_quant_weight_nz_tensor_list`."""
    return _swiglu_shapes(x, weight_scale[0], offset_shape=(x.shape[0],))


def int4_weight(
    x: Tensor,
    weight: Sequence[Tensor],
    weight_scale: Sequence[Tensor],
    x_scale: Tensor,
    group_list: Tensor,
    smooth_scale: Tensor | None = None,
    weight_assist_matrix: Sequence[Tensor] | None = None,
    bias: Tensor | None = None,
    dequant_mode: int | None = 0,
    dequant_dtype: int | None = 0,
    quant_mode: int | None = 0,
    quant_dtype: int | None = 0,
    transpose_weight: bool = False,
    group_list_type: int = 0,
    tuning_config: Sequence[int] = (),
    swiglu_limit: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`_C_ascend::grouped_matmul_swiglu_quant_v2` on int4 weights with scales per channel."""
    name = "grouped_matmul_swiglu_quant_v2"
    check_unset(name, smooth_scale=smooth_scale, bias=bias)
    for argument, value in (
        ("dequant_mode", dequant_mode),
        ("dequant_dtype", dequant_dtype),
        ("quant_mode", quant_mode),
        ("quant_dtype", quant_dtype),
    ):
        check(value == 0, name, argument, f"is {value}", "0")
    check(not transpose_weight, name, "transpose_weight", "is True", "False")
    _check_clamp(name, swiglu_limit)
    check(len(weight) == 1, name, "weight", f"holds {len(weight)} tensors", "1 tensor")
    if not weight_assist_matrix:
        raise OperatorRefusedError(name, "weight_assist_matrix", "is missing", "8 · Σ w · scale")
    packed, scales, assist = weight[0], weight_scale[0], weight_assist_matrix[0]
    check_shape(name, "x", x, (None, None), "[rows, K]")
    inner = x.shape[1]
    check(inner < INT4_LIMIT, name, "x", f"has {inner} columns", f"below {INT4_LIMIT}")
    check_dtype(name, "weight", packed, (torch.int32,))
    check_shape(name, "weight", packed, (None, inner, None), "[experts, K, N/8]")
    experts, columns = packed.shape[0], packed.shape[2] * NIBBLES
    fits = experts > 0 and 0 < columns <= WIDTH_LIMIT
    problem = f"has {experts} experts of {columns} columns"
    check(fits, name, "weight", problem, f"experts of up to {WIDTH_LIMIT}")
    check_dtype(name, "weight_scale", scales, (torch.int64,))
    check_shape(name, "weight_scale", scales, (experts, columns), "[experts, N]")
    check_shape(name, "weight_assist_matrix", assist, (experts, columns), "[experts, N]")
    _check_token_scale(name, x, x_scale)
    ends = group_ends(name, group_list, group_list_type, groups=experts, rows=x.shape[0])
    parts = [
        int4_sums(x[rows], packed[expert], unpack_scale(scales[expert])) + assist[expert]
        for expert, rows in enumerate(row_slices(ends))
    ]
    return _finish(torch.cat(parts) * x_scale[: ends[-1], None], x.shape[0], swiglu_limit)


def int4_weight_meta(
    x: Tensor, weight: Sequence[Tensor], weight_scale: Sequence[Tensor], *_: object, **__: object
) -> tuple[Tensor, Tensor]:
    """Shapes of `grouped_matmul_swiglu_quant_v2`."""
    return _swiglu_shapes(x, weight_scale[0], offset_shape=())[:2]


def _int8_swiglu(
    name: str,
    x: Tensor,
    weight: list[Tensor],
    weight_scale: list[Tensor],
    x_scale: Tensor,
    group_list: Tensor,
    limit: float,
    widest: int = WIDTH_LIMIT,
) -> tuple[Tensor, Tensor]:
    _check_clamp(name, limit)
    check(x.dim() == 2, name, "x", f"has {x.dim()} dimensions", "2")
    check(x.shape[1] < INNER_LIMIT, name, "x", f"has {x.shape[1]} columns", f"below {INNER_LIMIT}")
    columns = weight[0].shape[-1]
    check(
        columns % 2 == 0 and columns <= widest,
        name,
        "weight",
        f"has {columns} columns",
        f"an even number up to {widest}",
    )
    check(
        len(weight_scale) == len(weight),
        name,
        "weight_scale",
        f"has {len(weight_scale)} rows",
        f"{len(weight)}, the experts",
    )
    for matrix, scale in zip(weight, weight_scale, strict=True):
        check_shape(name, "weight", matrix, (x.shape[1], columns), "[K, N]")
        check_shape(name, "weight_scale", scale, (columns,), "[N]")
    _check_token_scale(name, x, x_scale)
    rows = x.shape[0]
    ends = group_ends(name, group_list, CUMULATIVE, groups=len(weight), rows=rows)
    parts = [
        accumulate(x[part], weight[expert]).float() * weight_scale[expert].float()
        for expert, part in enumerate(row_slices(ends))
    ]
    return _finish(torch.cat(parts) * x_scale[: ends[-1], None], rows, limit)


def _check_clamp(name: str, limit: float) -> None:
    check(limit >= 0, name, "swiglu_limit", f"is {limit}", "0 (no clamp) or more")


def _check_token_scale(name: str, x: Tensor, x_scale: Tensor) -> None:
    check_shape(name, "x_scale", x_scale, (x.shape[0],), "[rows]")


def _reserved(scale: Tensor) -> Tensor:
    """The offset output, which the vendor reserves: one number without meaning."""
    return scale.new_full((), torch.nan)


def _finish(scaled: Tensor, rows: int, limit: float) -> tuple[Tensor, Tensor]:
    gate, up = scaled.chunk(2, dim=-1)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return poisoned(swiglu(gate, up, alpha=1.0, bias=0.0), rows)


def _swiglu_shapes(
    x: Tensor, weight_scale: Tensor, *, offset_shape: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    rows = x.shape[0]
    return (
        x.new_empty((rows, weight_scale.shape[-1] // 2), dtype=torch.int8),
        x.new_empty((rows,), dtype=torch.float32),
        x.new_empty(offset_shape, dtype=torch.float32),
    )
