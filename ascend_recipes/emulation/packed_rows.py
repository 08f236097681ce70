"""The 8-bit rows of A5's attention caches: rope in bfloat16, the rest in fp8 with shared scales."""

# Shapes: T tokens, D head dim, G groups of 64, [..., 640] rows of bytes

import torch
from torch import Tensor

ROPE = 64
"""Dims at the end of a head that stay bfloat16."""
GROUP = 64
ROW_STEP = 128
LARGEST = 448.0
FLOOR = 1e-4
"""Least maximum of a group, so that a group of zeros has a scale."""
MANTISSA_BITS = 23


def row_bytes(head: int) -> int:
    """Bytes of a packed row: rope, values, scales, filled up to a multiple of 128."""
    used = 2 * ROPE + (head - ROPE) + -(-(head - ROPE) // GROUP)
    return -(-used // ROW_STEP) * ROW_STEP


def pack_rows(x_TD: Tensor) -> Tensor:
    """Rows [T, D] as bytes: 64 bfloat16 rope | fp8_e4m3 values | e8m0 scales | zeros.

    A scale is the power of two above max(|x|, 1e-4) / 448, also where that is a power of two
    itself: the operator looks at the exponent only.
    """
    tokens, head = x_TD.shape
    values_TGX = x_TD[:, :-ROPE].float().unflatten(-1, (-1, GROUP))
    largest_TG = values_TGX.abs().amax(-1).clamp(min=FLOOR) * (1 / LARGEST)
    exponent_TG = (largest_TG.view(torch.int32) >> MANTISSA_BITS) + 1
    scale_TG1 = (exponent_TG << MANTISSA_BITS).view(torch.float32)[..., None]
    limited_TGX = (values_TGX / scale_TG1).clamp(-LARGEST, LARGEST)
    row = torch.zeros(tokens, row_bytes(head), dtype=torch.uint8)
    parts = (
        x_TD[:, -ROPE:].to(torch.bfloat16).contiguous().view(torch.uint8),
        limited_TGX.flatten(1).to(torch.float8_e4m3fn).view(torch.uint8),
        exponent_TG.to(torch.uint8),
    )
    begin = 0
    for part in parts:
        row[:, begin : begin + part.shape[1]] = part
        begin += part.shape[1]
    return row


def unpack_rows(rows: Tensor, head: int) -> Tensor:
    """Rows of bytes [..., 640] as float32 [..., D], rope last."""
    values, groups = head - ROPE, -(-(head - ROPE) // GROUP)
    rows = rows.view(torch.uint8)
    rope = rows[..., : 2 * ROPE].contiguous().view(torch.bfloat16).float()
    stored = rows[..., 2 * ROPE : 2 * ROPE + values].contiguous().view(torch.float8_e4m3fn)
    exponent = rows[..., 2 * ROPE + values : 2 * ROPE + values + groups].int()
    scale = (exponent << MANTISSA_BITS).view(torch.float32)
    restored = stored.float().unflatten(-1, (groups, -1)) * scale[..., None]
    return torch.cat((restored.flatten(-2), rope), dim=-1)
