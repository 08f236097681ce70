"""Emulated batched product whose axes are turned before and after."""

# Shapes: B batch, M rows, K inner size, N columns

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_recipes.emulation.refusal import (
    check,
    check_same_dtype,
    check_shape,
    check_unset,
)

NAME = "npu_transpose_batchmatmul"
STRAIGHT = (0, 1, 2)


def transpose_batchmatmul(
    input: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
) -> Tensor:
    """`npu::npu_transpose_batchmatmul` without bias and output quantization.

    `perm_x1` brings the input to [B, M, K], `perm_x2` the weight to [B, K, N]; `perm_y` turns the
    product.
    """
    check_unset(NAME, bias=bias, scale=scale)
    check(
        batch_split_factor in (None, 1),
        NAME,
        "batch_split_factor",
        f"is {batch_split_factor}",
        "1 (others not emulated)",
    )
    check_same_dtype(NAME, input, weight=weight)
    check_shape(NAME, "input", input, (None, None, None), "3 dimensions")
    left_BMK = input.permute(_axes("perm_x1", perm_x1))
    check_shape(NAME, "weight", weight, (None, None, None), "3 dimensions")
    right_BKN = weight.permute(_axes("perm_x2", perm_x2))
    shape = (left_BMK.shape[0], left_BMK.shape[2], None)
    check_shape(NAME, "weight", right_BKN, shape, "[batch, inner size, columns] once turned")
    product_BMN = torch.bmm(left_BMK.float(), right_BKN.float()).to(input.dtype)
    return product_BMN.permute(_axes("perm_y", perm_y)).contiguous()


def transpose_batchmatmul_meta(
    input: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
) -> Tensor:
    """Shape of `npu_transpose_batchmatmul`."""
    batch, rows, _ = input.permute(_axes("perm_x1", perm_x1)).shape
    columns = weight.permute(_axes("perm_x2", perm_x2)).shape[2]
    product = input.new_empty(batch, rows, columns)
    return product.new_empty(product.permute(_axes("perm_y", perm_y)).shape)


def _axes(argument: str, axes: Sequence[int] | None) -> tuple[int, ...]:
    chosen = STRAIGHT if axes is None else tuple(axes)
    wanted = "an order of the axes 0, 1, 2"
    check(sorted(chosen) == list(STRAIGHT), NAME, argument, f"is {list(chosen)}", wanted)
    return chosen
