"""Emulated operators that end in SwiGLU, or in SwiGLU and quantization."""

# Shapes: R rows, K inner size, I intermediate (2I with gate and up), E experts

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_recipes.emulation.group_list import COUNTS, CUMULATIVE, group_ends, row_slices
from ascend_recipes.emulation.grouped_matmul import int4_sums
from ascend_recipes.emulation.integer import NIBBLES, accumulate, quantize_rows, unpack_scale
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

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
POISON = -128
"""What int8 rows hold that the hardware leaves as they were in memory."""
WIDTH_LIMIT, INNER_LIMIT, DEQUANT_LIMIT = 10240, 65536, 10496


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
    check_dtype(name, "x", x, FLOATS)
    check_contiguous(name, x=x)
    check(x.dim() > 1, name, "x", f"has {x.dim()} dimensions", "more than 1")
    check(-x.dim() <= dim < x.dim(), name, "dim", f"is {dim}", f"-{x.dim()} to {x.dim() - 1}")
    check(x.shape[dim] % 2 == 0, name, "x", f"has odd size {x.shape[dim]} along dim {dim}", "even")
    wide = x.float().movedim(dim, -1)
    a, b = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
    y = _swiglu(a.clamp(max=limit), b.clamp(-limit, limit), alpha=alpha, bias=bias)
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
    check_dtype(name, "x", x, (torch.int32,))
    check(x.dim() == 2, name, "x", f"has {x.dim()} dimensions", "2 ([tokens, 2H])")
    rows, width = x.shape
    check(width % 2 == 0, name, "x", f"has odd size {width}", "an even last dimension")
    if weight_scale is None or activation_scale is None:
        raise OperatorRefusedError(
            name, "weight_scale", "or activation_scale is None", "both for int32"
        )
    groups = 1 if group_index is None else group_index.shape[0]
    check_dtype(name, "weight_scale", weight_scale, (torch.float32,))
    check_shape(name, "weight_scale", weight_scale, (groups, width), "[groups, 2H]")
    check_dtype(name, "activation_scale", activation_scale, (torch.float32,))
    check_shape(name, "activation_scale", activation_scale, (rows,), "[tokens]")
    ends = [rows]
    if group_index is not None:
        check(
            width // 2 <= DEQUANT_LIMIT and (width % 64 == 0 or relaxes(SMALL)),
            name,
            "x",
            f"has a last dimension of {width}",
            f"a multiple of 64 up to {2 * DEQUANT_LIMIT} with groups",
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
        y = _swiglu(a, b, alpha=glu_alpha, bias=glu_bias)
    else:
        y = _swiglu(a, b, alpha=1.0, bias=0.0)
    return _poisoned(y, rows)


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


def dequant_swiglu_quant_meta(x: Tensor, **_: object) -> tuple[Tensor, Tensor]:
    """Shapes of both."""
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    return (
        x.new_empty(shape, dtype=torch.int8),
        x.new_empty(shape[:-1], dtype=torch.float32),
    )


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
        name, x, list(weight), list(weight_scale), x_scale, group_list, swiglu_limit
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
    check(len(weight) == 1, name, "weight", f"holds {len(weight)} tensors", "1 tensor")
    if not weight_assist_matrix:
        raise OperatorRefusedError(name, "weight_assist_matrix", "is missing", "8 · Σ w · scale")
    packed, scales, assist = weight[0], weight_scale[0], weight_assist_matrix[0]
    check_dtype(name, "x", x, (torch.int8,))
    check_dtype(name, "weight", packed, (torch.int32,))
    check_shape(name, "weight", packed, (None, x.shape[1], None), "[experts, K, N/8]")
    experts, columns = packed.shape[0], packed.shape[2] * NIBBLES
    check_dtype(name, "weight_scale", scales, (torch.int64,))
    check_shape(name, "weight_scale", scales, (experts, columns), "[experts, N]")
    check_dtype(name, "weight_assist_matrix", assist, (torch.float32,))
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
) -> tuple[Tensor, Tensor]:
    check_dtype(name, "x", x, (torch.int8,))
    check(x.dim() == 2, name, "x", f"has {x.dim()} dimensions", "2")
    check(x.shape[1] < INNER_LIMIT, name, "x", f"has {x.shape[1]} columns", f"below {INNER_LIMIT}")
    columns = weight[0].shape[-1]
    check(
        columns % 2 == 0 and columns <= WIDTH_LIMIT,
        name,
        "weight",
        f"has {columns} columns",
        f"an even number up to {WIDTH_LIMIT}",
    )
    check(
        len(weight_scale) == len(weight),
        name,
        "weight_scale",
        f"has {len(weight_scale)} rows",
        f"{len(weight)}, the experts",
    )
    for matrix, scale in zip(weight, weight_scale, strict=True):
        check_dtype(name, "weight", matrix, (torch.int8,))
        check_shape(name, "weight", matrix, (x.shape[1], columns), "[K, N]")
        check_dtype(name, "weight_scale", scale, FLOATS)
        check_shape(name, "weight_scale", scale, (columns,), "[N]")
    _check_token_scale(name, x, x_scale)
    rows = x.shape[0]
    ends = group_ends(name, group_list, CUMULATIVE, groups=len(weight), rows=rows)
    parts = [
        accumulate(x[part], weight[expert]).float() * weight_scale[expert].float()
        for expert, part in enumerate(row_slices(ends))
    ]
    return _finish(torch.cat(parts) * x_scale[: ends[-1], None], rows, limit)


def _check_token_scale(name: str, x: Tensor, x_scale: Tensor) -> None:
    check_dtype(name, "x_scale", x_scale, (torch.float32,))
    check_shape(name, "x_scale", x_scale, (x.shape[0],), "[rows]")


def _reserved(scale: Tensor) -> Tensor:
    """The offset output, which the vendor reserves: one number without meaning."""
    return scale.new_full((), torch.nan)


def _finish(scaled: Tensor, rows: int, limit: float) -> tuple[Tensor, Tensor]:
    gate, up = scaled.chunk(2, dim=-1)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return _poisoned(_swiglu(gate, up, alpha=1.0, bias=0.0), rows)


def _swiglu(a: Tensor, b: Tensor, *, alpha: float, bias: float) -> Tensor:
    return a / (1.0 + torch.exp(-alpha * a)) * (b + bias)


def _poisoned(y: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Quantize, and append rows that nobody wrote."""
    values, scale = quantize_rows(y)
    missing = rows - y.shape[0]
    return (
        torch.cat((values, values.new_full((missing, values.shape[1]), POISON))),
        torch.cat((scale, scale.new_full((missing,), torch.nan))),
    )


def _swiglu_shapes(
    x: Tensor, weight_scale: Tensor, *, offset_shape: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    rows = x.shape[0]
    return (
        x.new_empty((rows, weight_scale.shape[-1] // 2), dtype=torch.int8),
        x.new_empty((rows,), dtype=torch.float32),
        x.new_empty(offset_shape, dtype=torch.float32),
    )
