"""A tape of what an engine rounded, for oracles that round the same numbers.

Rounding turns at a half, and the last bits of float32 differ: one turn moves a logit by tenths.
So a model can follow a tape: where it rounds, it first finds its own numbers equal to the engine's,
and then rounds those.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor

FOLLOWED = 1e-4
"""Largest difference of a number on the tape, against the largest number beside it."""


class Tape:
    """What an engine rounded, by layer, operation and number of the call; one tape a rank."""

    def __init__(self, recorded: Sequence[dict[str, Any]]) -> None:
        assert len({tuple(sorted(tape)) for tape in recorded}) == 1, "ranks rounded other things"
        self.recorded = {
            key: [torch.from_numpy(tape[key]) for tape in recorded] for key in recorded[0]
        }
        self.taken: set[str] = set()

    def take(self, key: str, own: Tensor) -> Tensor:
        """The engine's rows in place of one's own, once they are found equal on every rank."""
        ranks = self.recorded[key]
        split = sum(rows.numel() for rows in ranks) == own.numel() > 0
        whole = [joined(ranks, own)] if split else [rows.view(own.shape) for rows in ranks]
        for rows in whole:
            error = difference(rows, own)
            assert error < FOLLOWED, f"{key}: {error:.1e}"
        self.taken.add(key)
        return whole[0]


def joined(ranks: Sequence[Tensor], own: Tensor) -> Tensor:
    """Parts of all ranks along the axis that they are split by, found by what they must equal.

    Rows by expert lie one after another, and heads, groups or columns of a row; of gate and up,
    which share a row, each rank has a part.
    """
    parted = [prod(own.shape[:axis]) for axis in range(own.dim())]
    candidates = [
        torch.cat([rows.reshape(number, -1) for rows in ranks], 1).view(own.shape)
        for number in (*parted, 2 * prod(own.shape[:-1]))
        if not any(rows.numel() % number for rows in ranks)
    ]
    return min(candidates, key=lambda rows: difference(rows, own))


def difference(rows: Tensor, own: Tensor) -> float:
    """Largest difference, against the largest number."""
    if not own.numel():
        return 0.0
    largest = own.abs().max().clamp(min=torch.finfo(own.dtype).tiny)
    return ((rows - own).abs().max() / largest).item()


_playing: list[Tape] = []


@contextmanager
def following(recorded: Sequence[dict[str, Any]]) -> Iterator[Tape]:
    """Let models round what an engine rounded; everything on the tape must be asked for."""
    tape = Tape(recorded)
    _playing.append(tape)
    try:
        yield tape
    finally:
        _playing.remove(tape)
    rounded = {key for key, ranks in tape.recorded.items() if any(rows.numel() for rows in ranks)}
    assert rounded == tape.taken & rounded, sorted(rounded - tape.taken)


def is_playing() -> bool:
    """Whether models follow a tape, which holds whole sequences."""
    return bool(_playing)


def followed(key: str, own: Tensor) -> Tensor:
    return _playing[-1].take(key, own) if _playing else own
