"""Emulated grouped matrix multiplication: rows sorted by expert, one weight an expert."""

# Shapes: R rows, K inner size, N columns, E experts

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ascend_recipes.emulation import microscaling
from ascend_recipes.emulation.dtypes import FLOAT4_E2M1, FLOAT8_E8M0, dtype_of
from ascend_recipes.emulation.group_list import group_ends, row_slices
from ascend_recipes.emulation.integer import (
    NIBBLES,
    accumulate,
    real_scale,
    to_int8,
    unpack_nibbles,
    unpack_scale,
)
from ascend_recipes.emulation.limits import emulated_generations
from ascend_recipes.emulation.refusal import (
    OperatorRefusedError,
    check,
    check_dtype,
    check_same_dtype,
    check_shape,
    check_unset,
)
from ascend_recipes.emulation.undefined import padded

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
LOW = (torch.float16, torch.bfloat16)
Tensors = Sequence[Tensor]
NAME = "npu_grouped_matmul"
INNER_LIMIT = 65536


@dataclass(frozen=True)
class Call:
    """One grouped multiplication after its lists were opened."""

    x_RK: Tensor
    weight_EKN: Tensor
    bias: Tensor | None
    scale: Tensor | None
    token_scale: Tensor | None
    slices: list[slice]
    output: torch.dtype
    x_code: int | None
    weight_code: int | None


def grouped_matmul(
    x: Tensors,
    weight: Tensors,
    *,
    bias: Tensors | None = None,
    scale: Tensors | None = None,
    offset: Tensors | None = None,
    antiquant_scale: Tensors | None = None,
    antiquant_offset: Tensors | None = None,
    per_token_scale: Tensors | None = None,
    group_list: Tensor | None = None,
    activation_input: Tensors | None = None,
    activation_quant_scale: Tensors | None = None,
    activation_quant_offset: Tensors | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    tuning_config: Sequence[int] | None = None,
    output_dtype: int | None = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    scale_dtype: int | None = None,
    per_token_scale_dtype: int | None = None,
) -> list[Tensor]:
    """`npu::npu_grouped_matmul` with one x, one [E, K, N] weight (or E of [K, N]) and one output.

    Float, int8 (scale per channel, optionally per token), int4 weights in int32, and microscaled
    (FP4 weights under FP8 rows by `antiquant_scale`). Rows behind the last group are undefined: the
    documentation wants the groups to cover every row, but vllm-ascend's callers leave some over.
    """
    check_unset(
        NAME,
        offset=offset,
        antiquant_offset=antiquant_offset,
        activation_input=activation_input,
        activation_quant_scale=activation_quant_scale,
        activation_quant_offset=activation_quant_offset,
        tuning_config=tuning_config,
    )
    check(group_type == 0, NAME, "group_type", f"is {group_type}", "0 (groups of rows)")
    check(split_item in (2, 3), NAME, "split_item", f"is {split_item}", "2 or 3 for group_type 0")
    check(act_type == 0, NAME, "act_type", f"is {act_type}", "0 (none)")
    check(len(x) == 1, NAME, "x", f"holds {len(x)} tensors", "1 tensor")
    if group_list is None:
        raise OperatorRefusedError(NAME, "group_list", "is None", "int64 numbers of the groups")
    stacked = _stack(weight)
    check(x[0].dim() == 2, NAME, "x", f"has {x[0].dim()} dimensions", "2 for group_type 0")
    rows = x[0].shape[0]
    ends = group_ends(NAME, group_list, group_list_type, groups=stacked.shape[0], rows=rows)
    default = x[0].dtype
    call = Call(
        x_RK=x[0],
        weight_EKN=stacked,
        bias=_rows("bias", bias, stacked.shape[0]),
        scale=_rows("scale", scale, stacked.shape[0]),
        token_scale=_one("per_token_scale", per_token_scale),
        slices=row_slices(ends),
        output=default if output_dtype is None else dtype_of(NAME, "output_dtype", output_dtype),
        x_code=x_dtype,
        weight_code=weight_dtype,
    )
    if antiquant_scale:
        check_unset(NAME, scale=scale, scale_dtype=scale_dtype, x_dtype=x_dtype)
        pseudo = {
            "weight_dtype": (weight_dtype, FLOAT4_E2M1),
            "per_token_scale_dtype": (per_token_scale_dtype, FLOAT8_E8M0),
        }
        for argument, (code, wanted) in pseudo.items():
            check(code == wanted, NAME, argument, f"is {code}", f"{wanted}, with antiquant_scale")
        return [padded(_microscaled(replace(call, scale=antiquant_scale[0])), rows)]
    if scale_dtype is not None or per_token_scale_dtype is not None:
        for argument, code in (
            ("scale_dtype", scale_dtype),
            ("per_token_scale_dtype", per_token_scale_dtype),
        ):
            check(code == FLOAT8_E8M0, NAME, argument, f"is {code}", "float8_e8m0fnu (293)")
        return [padded(_microscaled(call), rows)]
    check_unset(NAME, x_dtype=x_dtype, weight_dtype=weight_dtype)
    _check_inner(call)
    _check_columns(stacked.shape[-1])
    if stacked.dtype == torch.int32:
        return [padded(_int4(call), rows)]
    if x[0].dtype == torch.int8:
        return [padded(_int8(call), rows)]
    return [padded(_float(call), rows)]


def grouped_matmul_meta(
    x: Tensors,
    weight: Tensors,
    *,
    bias: Tensors | None = None,
    scale: Tensors | None = None,
    offset: Tensors | None = None,
    antiquant_scale: Tensors | None = None,
    antiquant_offset: Tensors | None = None,
    per_token_scale: Tensors | None = None,
    group_list: Tensor | None = None,
    activation_input: Tensors | None = None,
    activation_quant_scale: Tensors | None = None,
    activation_quant_offset: Tensors | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    tuning_config: Sequence[int] | None = None,
    output_dtype: int | None = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    scale_dtype: int | None = None,
    per_token_scale_dtype: int | None = None,
) -> list[Tensor]:
    """Shape of `npu_grouped_matmul`."""
    columns = weight[0].shape[-1] * (NIBBLES if weight[0].dtype == torch.int32 else 1)
    dtype = x[0].dtype if output_dtype is None else dtype_of(NAME, "output_dtype", output_dtype)
    return [x[0].new_empty((x[0].shape[0], columns), dtype=dtype)]


def int4_sums(x_RK: Tensor, packed_KN: Tensor, scale_N: Tensor) -> Tensor:
    """int8 rows times int4 columns as the cube does it: two int4 passes, halves in between.

    x = 16 · high + low + 8, so that the caller adds 8 · Σ w · scale, which the checkpoint's scale
    bias holds.
    """
    weight = unpack_nibbles(packed_KN)
    wide = x_RK.to(torch.int16)
    high = (wide >> 4).to(torch.int8)
    low = ((wide & 0xF) - 8).to(torch.int8)
    upper, lower = (
        (accumulate(part, weight).float() * scale_N).half().float() for part in (high, low)
    )
    return upper * 16.0 + lower


def _float(call: Call) -> Tensor:
    check_dtype(NAME, "x", call.x_RK, FLOATS)
    check_same_dtype(NAME, call.x_RK, weight=call.weight_EKN)
    check_unset(NAME, scale=call.scale, per_token_scale=call.token_scale)
    check(call.output == call.x_RK.dtype, NAME, "output_dtype", f"is {call.output}", "that of x")
    if call.bias is not None:
        want = torch.float16 if call.x_RK.dtype == torch.float16 else torch.float32
        check(call.bias.dtype == want, NAME, "bias", f"is {call.bias.dtype}", f"{want}")
    parts = []
    for expert, rows in enumerate(call.slices):
        y = call.x_RK[rows].float() @ call.weight_EKN[expert].float()
        parts.append(y if call.bias is None else y + call.bias[expert].float())
    return torch.cat(parts).to(call.output)


def _int8(call: Call) -> Tensor:
    check_dtype(NAME, "weight", call.weight_EKN, (torch.int8,))
    if call.bias is not None:
        check_dtype(NAME, "bias", call.bias, (torch.int32,))
    sums = [
        accumulate(call.x_RK[rows], call.weight_EKN[expert])
        for expert, rows in enumerate(call.slices)
    ]
    if call.bias is not None:
        sums = [item + call.bias[expert] for expert, item in enumerate(sums)]
    if call.output == torch.int32:
        check_unset(NAME, scale=call.scale, per_token_scale=call.token_scale)
        return torch.cat(sums)
    _check_int8_scales(call)
    assert call.scale is not None
    scaled = torch.cat(
        [item.float() * real_scale(call.scale[expert]) for expert, item in enumerate(sums)]
    )
    if call.token_scale is not None:
        scaled = scaled * call.token_scale[: scaled.shape[0], None]
    return to_int8(scaled) if call.output == torch.int8 else scaled.to(call.output)


def _check_int8_scales(call: Call) -> None:
    """Scale dtypes by output: int8 wants packed ones, bfloat16 and float16 their own."""
    check_dtype(
        NAME, "output_dtype", torch.empty(0, dtype=call.output), (torch.int8, torch.int32, *LOW)
    )
    if call.scale is None:
        raise OperatorRefusedError(NAME, "scale", "is None", "one scale a column for int8")
    allowed = {
        torch.int8: (torch.int64,),
        torch.bfloat16: (torch.bfloat16, torch.float32),
    }.get(call.output, (torch.float32,))
    check_dtype(NAME, "scale", call.scale, allowed)
    shape = (call.weight_EKN.shape[0], call.weight_EKN.shape[2])
    check_shape(NAME, "scale", call.scale, shape, "[experts, columns]")
    if call.token_scale is not None:
        _check_token_scale(call.token_scale, call.x_RK)
        check(
            call.output != torch.int8,
            NAME,
            "per_token_scale",
            "is set for int8 output",
            "bfloat16 or float16 output",
        )


def _check_token_scale(token_scale: Tensor, x_RK: Tensor) -> None:
    check_dtype(NAME, "per_token_scale", token_scale, (torch.float32,))
    check_shape(NAME, "per_token_scale", token_scale, (x_RK.shape[0],), "[rows]")


def _int4(call: Call) -> Tensor:
    """int8 rows times int4 weights: packed scales, the scale bias before the token's."""
    check_dtype(NAME, "x", call.x_RK, (torch.int8,))
    check_dtype(NAME, "output_dtype", torch.empty(0, dtype=call.output), LOW)
    experts, _, packed = call.weight_EKN.shape
    columns = packed * NIBBLES
    if call.scale is None or call.bias is None or call.token_scale is None:
        raise OperatorRefusedError(
            NAME, "scale", "or bias or per_token_scale is None", "all three for int4 weights"
        )
    check_dtype(NAME, "scale", call.scale, (torch.int64,))
    check_shape(NAME, "scale", call.scale, (experts, 1, columns), "[experts, 1, columns]")
    check_dtype(NAME, "bias", call.bias, (torch.float32,))
    check_shape(NAME, "bias", call.bias, (experts, columns), "[experts, columns]")
    _check_token_scale(call.token_scale, call.x_RK)
    parts = []
    for expert, rows in enumerate(call.slices):
        scale = unpack_scale(call.scale[expert, 0])
        parts.append(int4_sums(call.x_RK[rows], call.weight_EKN[expert], scale) + call.bias[expert])
    covered = torch.cat(parts)
    return (covered * call.token_scale[: covered.shape[0], None]).to(call.output)


def _microscaled(call: Call) -> Tensor:
    check_unset(NAME, bias=call.bias)
    if call.scale is None or call.token_scale is None:
        raise OperatorRefusedError(NAME, "scale", "or per_token_scale is None", "both, E8M0 bytes")
    check_dtype(NAME, "output_dtype", torch.empty(0, dtype=call.output), (*LOW, torch.float32))
    rows, weights = microscaling.grouped_operands(
        NAME, call.x_RK, call.weight_EKN, call.x_code, call.weight_code
    )
    rows = rows * microscaling.token_factors(NAME, call.token_scale, rows.shape)
    parts = [
        rows[part] @ (weight * microscaling.weight_factors(NAME, call.scale[expert], weight.shape))
        for expert, (part, weight) in enumerate(zip(call.slices, weights, strict=True))
    ]
    return torch.cat(parts).to(call.output)


def _check_columns(columns: int) -> None:
    """310P writes whole rows of 16."""
    if emulated_generations() == ("310p",):
        wanted = "a multiple of 16 on 310p"
        check(columns % 16 == 0, NAME, "weight", f"has {columns} columns", wanted)


def _check_inner(call: Call) -> None:
    rows, inner = call.weight_EKN.shape[1:]
    check(
        call.x_RK.shape[1] == rows,
        NAME,
        "weight",
        f"has {rows} rows",
        f"{call.x_RK.shape[1]}, the columns of x",
    )
    for argument, size in (("x", rows), ("weight", inner)):
        check(
            size < INNER_LIMIT,
            NAME,
            argument,
            f"has a last dimension of {size}",
            f"below {INNER_LIMIT}",
        )


def _stack(weight: Tensors) -> Tensor:
    """[E, K, N] from one such tensor or from E tensors [K, N]."""
    if len(weight) == 1:
        check(
            weight[0].dim() == 3,
            NAME,
            "weight",
            f"has {weight[0].dim()} dimensions",
            "3 ([experts, K, N]) for a single tensor",
        )
        return weight[0]
    check(len(weight) <= 128, NAME, "weight", f"holds {len(weight)} tensors", "at most 128")
    for item in weight:
        check(item.dim() == 2, NAME, "weight", f"has {item.dim()} dimensions", "2 in a list")
        check(item.shape == weight[0].shape, NAME, "weight", "varies in shape", "one shape")
    return torch.stack(list(weight))


def _rows(argument: str, tensors: Tensors | None, experts: int) -> Tensor | None:
    if not tensors:
        return None
    if len(tensors) == 1:
        return tensors[0]
    check(
        len(tensors) == experts,
        NAME,
        argument,
        f"holds {len(tensors)} tensors",
        "1 or one a weight",
    )
    return torch.stack(list(tensors))


def _one(argument: str, tensors: Tensors | None) -> Tensor | None:
    if not tensors:
        return None
    check(len(tensors) == 1, NAME, argument, f"holds {len(tensors)} tensors", "1 tensor, as x")
    return tensors[0]
