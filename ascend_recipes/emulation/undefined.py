"""What stands where the hardware leaves memory as it was: numbers that nobody takes for results."""

import torch
from torch import Tensor


def poison(dtype: torch.dtype) -> float:
    """NaN, or the lowest integer."""
    return torch.nan if dtype.is_floating_point else torch.iinfo(dtype).min


def padded(rows: Tensor, total: int) -> Tensor:
    """Rows, and behind them rows that nobody wrote, `total` in all."""
    missing = total - rows.shape[0]
    return torch.cat((rows, rows.new_full((missing, *rows.shape[1:]), poison(rows.dtype))))
