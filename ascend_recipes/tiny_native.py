"""Writes float checkpoints in float8 blocks and 4-bit floats, for tiny models.

Blocks of 128 x 128 of a float8 weight, and 32 neighbours in a row of a 4-bit one, share a power of
two: the least with which nothing overflows, or up to twice doubled, since blocks of random weights
would all have the same one. Two 4-bit numbers lie in a byte, the first one low.

Legend: N outputs, K inputs of a linear layer.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_WEIGHT, _SCALE = ".weight", ".scale"
_BLOCK = 128
_SHARED = 32
_FLOAT8_LARGEST, _FLOAT4_LARGEST = 448.0, 6.0
_FLOAT4_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Where a magnitude turns from one of 0, 0.5, 1, 1.5, 2, 3, 4, 6 to the next."""


def native_tensors(
    tensors: "Iterator[tuple[str, torch.Tensor]]", storage: Callable[[str], str | None]
) -> "Iterator[tuple[str, torch.Tensor]]":
    """Replace weights by what is stored, with their scales beside them.

    Args:
        tensors: float tensors by their published names.
        storage: `float8`, `float4`, `int64` or none (as it is), by name of a tensor.
    """
    import torch

    for name, tensor in tensors:
        kind = storage(name)
        if kind is None:
            yield name, tensor
        elif kind == "int64":
            yield name, tensor.to(torch.int64)
        else:
            wide = tensor.float()
            stored, scale = _float8(name, wide) if kind == "float8" else _float4(wide)
            yield name, stored
            yield f"{name.removesuffix(_WEIGHT)}{_SCALE}", scale.to(torch.float8_e8m0fnu)


def _float8(name: str, weight_NK: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """float8 `[N, K]` and powers of two `[N / 128, K / 128]`, which no two neighbours share."""
    import torch

    blocks = weight_NK.unflatten(0, (-1, _BLOCK)).unflatten(2, (-1, _BLOCK))
    least = _powers(blocks.abs().amax((1, 3)), _FLOAT8_LARGEST)
    row, column = torch.arange(least.shape[0])[:, None], torch.arange(least.shape[1])
    scale = torch.ldexp(least, (row + 2 * column + zlib.crc32(name.encode())) % 3)
    divided = blocks / scale[:, None, :, None]
    return divided.flatten(2).flatten(0, 1).to(torch.float8_e4m3fn), scale


def _float4(weight_NK: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """Pairs in int8 `[N, K / 2]` and powers of two `[N, K / 32]`."""
    import torch

    groups = weight_NK.unflatten(1, (-1, _SHARED))
    scale = _powers(groups.abs().amax(2), _FLOAT4_LARGEST)
    divided_NK = (groups / scale[:, :, None]).flatten(1)
    code_NK = torch.bucketize(divided_NK.abs(), torch.tensor(_FLOAT4_BOUNDS)).to(torch.uint8)
    code_NK |= divided_NK.signbit().to(torch.uint8) << 3
    return (code_NK[:, ::2] | (code_NK[:, 1::2] << 4)).view(torch.int8), scale


def _powers(largest: "torch.Tensor", limit: float) -> "torch.Tensor":
    """Least power of two that brings each number to the limit or below; 1 for zero."""
    import torch

    mantissa, exponent = torch.frexp(largest / limit)
    # A power of two itself has the mantissa one half, and would do with the exponent below.
    return torch.ldexp(torch.ones_like(largest), exponent - (mantissa == 0.5).int())
