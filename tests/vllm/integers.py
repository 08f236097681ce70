"""Numbers in 8 and 4 bits, from the vendor's documents."""

from collections.abc import Mapping

import torch
from torch import Tensor

INT8_LIMIT = 127
SAFE = 5e-5
"""Rows with a number this near to a half may be rounded either way."""


def int8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Integers as floats, and a float32 scale a row."""
    scale = x.abs().amax(-1) / INT8_LIMIT
    return (x / scale.unsqueeze(-1)).nan_to_num(0.0).round(), scale


def far_from_halves(x: Tensor) -> Tensor:
    """Rows that `int8_rows` rounds in one way only, bool `[..., 1]`."""
    rows = x / x.abs().amax(-1, keepdim=True) * INT8_LIMIT
    return (rows - rows.floor() - 0.5).abs().amin(-1, keepdim=True) > SAFE


def integers(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    """Numbers of an int8 weight; where a bias of scales stands beside it, a byte holds two rows."""
    stored = tensors[name]
    if name.replace(".weight", ".scale_bias") not in tensors:
        return stored.float()
    # Signed halves: as if the byte were shifted up, then down again with its sign.
    low, high = (stored << 4) >> 4, stored >> 4
    return torch.stack((low, high), dim=1).flatten(0, 1).float()
