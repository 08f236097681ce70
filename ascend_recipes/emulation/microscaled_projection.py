"""Emulated batched product of microscaled operands whose axes are turned before and after."""

# Shapes: T rows, G batch, X inner size, L columns

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_recipes.emulation.dtypes import dtype_of
from ascend_recipes.emulation.microscaling import BLOCK, LOW, token_factors, weight_factors
from ascend_recipes.emulation.refusal import (
    OperatorRefusedError,
    check,
    check_dtype,
    check_shape,
    check_unset,
)

NAME = "npu_transpose_quant_batchmatmul"
GROUPS = [0, 0, BLOCK]
ROWS_FIRST, AS_IT_IS = [1, 0, 2], [0, 1, 2]


def transpose_quant_batchmatmul(
    x1: Tensor,
    x2: Tensor,
    dtype: int,
    *,
    bias: Tensor | None = None,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    group_sizes: Sequence[int] | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
) -> Tensor:
    """`npu::npu_transpose_quant_batchmatmul` on [T, G, X] and [G, X, L], as its caller uses it.

    The documentation of the operator is empty: form, orders of the axes and scales are those of
    vllm-ascend's only call, the order of the result that of the vendor's Meta kernel.
    """
    check_unset(NAME, bias=bias, x1_dtype=x1_dtype, x2_dtype=x2_dtype)
    check(
        batch_split_factor in (None, 1),
        NAME,
        "batch_split_factor",
        f"is {batch_split_factor}",
        "1 (others not emulated)",
    )
    for argument, found, wanted in (
        ("group_sizes", group_sizes, GROUPS),
        ("perm_x1", perm_x1, ROWS_FIRST),
        ("perm_x2", perm_x2, AS_IT_IS),
        ("perm_y", perm_y, ROWS_FIRST),
    ):
        fits = found is not None and list(found) == wanted
        check(fits, NAME, argument, f"is {found}", f"{wanted} (others not emulated)")
    output = dtype_of(NAME, "dtype", dtype)
    check_dtype(NAME, "dtype", torch.empty(0, dtype=output), LOW)
    if x1_scale is None or x2_scale is None:
        raise OperatorRefusedError(NAME, "x1_scale", "or x2_scale is None", "both, E8M0")
    _check_operands(x1, x2, x1_scale, x2_scale)
    left_TGX = x1.float() * torch.stack(
        [token_factors(NAME, part, x1[:, 0].shape) for part in _bytes(x1_scale).unbind(1)], dim=1
    )
    right_GXL = x2.float() * torch.stack(
        [weight_factors(NAME, part, x2.shape[1:]) for part in _bytes(x2_scale)]
    )
    product_GTL = torch.bmm(left_TGX.transpose(0, 1), right_GXL)
    return product_GTL.transpose(0, 1).contiguous().to(output)


def transpose_quant_batchmatmul_meta(x1: Tensor, x2: Tensor, dtype: int, **_: object) -> Tensor:
    """Shape of `npu_transpose_quant_batchmatmul`."""
    shape = (x1.shape[0], x1.shape[1], x2.shape[2])
    return x1.new_empty(shape, dtype=dtype_of(NAME, "dtype", dtype))


def _check_operands(x1: Tensor, x2: Tensor, x1_scale: Tensor, x2_scale: Tensor) -> None:
    for argument, tensor in (("x1", x1), ("x2", x2)):
        check_shape(NAME, argument, tensor, (None, None, None), "3 dimensions")
    check(x1.numel() > 0, NAME, "x1", "is empty", "a tensor with elements")
    rows, groups, inner = x1.shape
    check_shape(NAME, "x2", x2, (groups, inner, None), "[batch, inner size, columns]")
    pairs = -(-inner // (2 * BLOCK))
    check_shape(NAME, "x1_scale", x1_scale, (rows, groups, pairs, 2), "[rows, batch, X/64, 2]")
    columns = x2.shape[2]
    check_shape(NAME, "x2_scale", x2_scale, (groups, pairs, columns, 2), "[batch, X/64, L, 2]")


def _bytes(scale: Tensor) -> Tensor:
    return scale.contiguous().view(torch.uint8)
