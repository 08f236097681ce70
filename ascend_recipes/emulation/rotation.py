"""Emulated partial rotation of interleaved pairs."""

# Shapes: B batch, S sequence, N heads, D head dim, R rotated part

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_recipes.emulation.limits import check_limit
from ascend_recipes.emulation.refusal import check, check_contiguous, check_dtype, check_same_dtype

NAME = "inplace_partial_rotary_mul"
SYMBOL = f"_C_ascend::{NAME}"


def rotate_pairs(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """`x` with neighbours (2k, 2k + 1) turned; cosine and sine hold every frequency twice."""
    partner = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * cosine + partner * sine


def inplace_partial_rotary_mul(
    x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str, partial_slice: Sequence[int]
) -> None:
    """`_C_ascend::inplace_partial_rotary_mul`, mode interleave: turns `x[..., slice]` in place.

    `r1` holds cosines and `r2` sines, [B, 1 or S, 1, R].
    """
    check(x.dim() == 4, NAME, "x", f"has {x.dim()} dimensions", "4 (BSND)")
    check_contiguous(NAME, x=x)
    check(x.numel() > 0, NAME, "x", "is empty", "a tensor with elements")
    check_limit(SYMBOL, "head_dim", "x", x.shape[-1], "has head dim")
    check(x.shape[-1] % 2 == 0, NAME, "x", f"has odd head dim {x.shape[-1]}", "an even one")
    check(rotary_mode == "interleave", NAME, "rotary_mode", f"is '{rotary_mode}'", "interleave")
    check(len(partial_slice) == 2, NAME, "partial_slice", f"is {list(partial_slice)}", "two bounds")
    begin, end = partial_slice
    rotated = end - begin
    fits = 0 <= begin < end <= x.shape[-1] and rotated % 2 == 0
    check(
        fits,
        NAME,
        "partial_slice",
        f"is {list(partial_slice)}",
        f"an even part of the head dim {x.shape[-1]}",
    )
    for argument, factor in (("r1", r1), ("r2", r2)):
        shape = factor.shape
        fits = (
            factor.dim() == 4
            and shape[0] == x.shape[0]
            and shape[1] in (1, x.shape[1])
            and shape[2] == 1
            and shape[3] == rotated
        )
        wanted = f"[{x.shape[0]}, 1 or {x.shape[1]}, 1, {rotated}]"
        check(fits, NAME, argument, f"has shape {list(shape)}", wanted)
        check_dtype(NAME, argument, factor, (x.dtype, torch.float32))
    check_same_dtype(NAME, r1, r2=r2)
    if r1.dtype != x.dtype:
        _check_mixed(x, r1)
    part = x[..., begin:end]
    part.copy_(rotate_pairs(part.float(), r1.float(), r2.float()))


def _check_mixed(x: Tensor, factor: Tensor) -> None:
    """float32 factors of half-precision heads: A2 and A3 only have the path of one position."""
    alone = factor.shape[1] == 1 and 1 in x.shape[1:3]
    positions = 1 if alone else max(x.shape[1:3])
    problem = "is float32 beside half-precision heads; positions and heads of a row are"
    check_limit(SYMBOL, "mixed_positions", "r1", positions, problem)


def inplace_partial_rotary_mul_meta(
    x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str, partial_slice: Sequence[int]
) -> None:
    """`inplace_partial_rotary_mul` has no output."""
