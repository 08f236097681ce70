"""Which captured operators take host data that changes from replay to replay.

Fused attention takes sequence lengths as host lists, which a capture freezes. The device's graph
can exchange them before a replay, operator by operator in the order of their capture; here stands
which layer each of those operators belongs to.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_layers: ContextVar[list[str] | None] = ContextVar("layers", default=None)


@contextmanager
def capturing() -> Iterator[list[str]]:
    """Collect the layers of a capture whose operators take host lengths, in order."""
    layers: list[str] = []
    token = _layers.set(layers)
    try:
        yield layers
    finally:
        _layers.reset(token)


def note_host_lengths(layer_name: str) -> None:
    """Say that the next operator takes the host lengths of this layer."""
    if (layers := _layers.get()) is not None:
        layers.append(layer_name)
