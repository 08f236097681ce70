"""Arithmetic of the integer operators: accumulation, rounding, packed scales and nibbles."""

# Shapes: R rows, K inner size, N columns

import torch
from torch import Tensor

INT8_MAX = 127.0
NIBBLES = 8
"""Four-bit numbers in an int32."""


def accumulate(x_RK: Tensor, weight_KN: Tensor) -> Tensor:
    """Exact int32 sums of int8 products."""
    if 0 in (*x_RK.shape, *weight_KN.shape):
        return x_RK.new_zeros((x_RK.shape[0], weight_KN.shape[1]), dtype=torch.int32)
    return torch._int_mm(x_RK.contiguous(), weight_KN)


def to_int8(values: Tensor) -> Tensor:
    """Round to the nearest integer, ties to even, and saturate; NaN becomes 0."""
    return values.round().nan_to_num(0.0).clamp(-128, 127).to(torch.int8)


def quantize_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 of the last dimension: scale = largest size / 127, q = rint(v / scale)."""
    scale = values.abs().amax(dim=-1) / INT8_MAX
    return to_int8(values / scale.unsqueeze(-1)), scale


def unpack_nibbles(packed: Tensor) -> Tensor:
    """int32 [..., N/8] to int8 [..., N]: element j in bits 4j to 4j + 3, two's complement."""
    shifts = torch.arange(0, 4 * NIBBLES, 4, dtype=torch.int32, device=packed.device)
    # The left shift puts the sign bit of the nibble where an arithmetic right shift extends it.
    spread = (packed.unsqueeze(-1) >> shifts) << 28
    return (spread >> 28).to(torch.int8).flatten(-2)


def unpack_scale(packed: Tensor) -> Tensor:
    """Float32 numbers whose bits stand in the low half of int64."""
    low = packed & 0xFFFFFFFF
    signed = torch.where(low >= 2**31, low - 2**32, low).to(torch.int32)
    return signed.view(torch.float32)


def real_scale(scale: Tensor) -> Tensor:
    """Scales as float32, packed or not."""
    return unpack_scale(scale) if scale.dtype == torch.int64 else scale.float()
