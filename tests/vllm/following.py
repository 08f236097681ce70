"""A tape of what an engine rounded, for oracles that round the same numbers.

Rounding turns at a half, and the last bits of float32 differ: one turn moves a logit by tenths.
So a model can follow a tape: where it rounds, it first finds its own numbers equal to the engine's,
and then rounds those.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

FOLLOWED = 1e-4
"""Largest difference of a number on the tape, against the largest number beside it."""


class Tape:
    """What an engine rounded, by layer, operation and number of the call."""

    def __init__(self, recorded: dict[str, Any]) -> None:
        self.recorded = {key: torch.from_numpy(rows) for key, rows in recorded.items()}
        self.taken: set[str] = set()

    def take(self, key: str, own: Tensor) -> Tensor:
        """The engine's rows in place of one's own, once they are found equal."""
        engine = self.recorded[key].view(own.shape)
        if own.numel():
            error = (engine - own).abs().max() / own.abs().max()
            assert error < FOLLOWED, f"{key}: {error:.1e}"
        self.taken.add(key)
        return engine


_playing: list[Tape] = []


@contextmanager
def following(recorded: dict[str, Any]) -> Iterator[Tape]:
    """Let models round what an engine rounded; everything on the tape must be asked for."""
    tape = Tape(recorded)
    _playing.append(tape)
    try:
        yield tape
    finally:
        _playing.remove(tape)
    left = {key for key, rows in tape.recorded.items() if rows.numel()} - tape.taken
    assert not left, sorted(left)


def followed(key: str, own: Tensor) -> Tensor:
    return _playing[-1].take(key, own) if _playing else own
