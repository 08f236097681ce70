"""Inside an engine host: what operations that round are given, layer by layer.

Rounding turns at a half: the last bits of float32 decide there, and what follows differs by whole
steps. An oracle that rounds the engine's own numbers, after it has found its own equal to them,
stays exact through any number of layers.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy
from torch import Tensor, nn

OPERATIONS = (
    "write_latent_rows",
    "write_indexer_keys",
    "quantize_indexer_query",
    "mx_quant",
    "swiglu_mx_quant",
)
WRITES = {"write_latent_rows", "write_indexer_keys"}
"""Their last argument says where rows go; rows that go nowhere are not taped."""

Tape = dict[str, numpy.ndarray]


@contextmanager
def taped(model: nn.Module, bound: set[str]) -> Iterator[Tape]:
    """Tape calls below every decoder layer as `<layer>.<operation>.<number of the call>`.

    Args:
        model: model whose `model.layers` are decoder layers.
        bound: operations of the plan.
    """
    from ascend_recipes.ops import operations

    rows: dict[str, list[numpy.ndarray]] = defaultdict(list)
    place: dict[str, Any] = {}
    with ExitStack() as stack:
        for index, layer in enumerate(model.model.layers):
            hook = layer.register_forward_pre_hook(_entering(place, index))
            stack.callback(hook.remove)
        for name in OPERATIONS:
            if name in bound:
                stack.enter_context(operations.override(name, _taping(name, place, rows)))
        tape: Tape = {}
        yield tape
        tape |= {key: numpy.concatenate(steps) for key, steps in rows.items()}


def _entering(place: dict[str, Any], index: int) -> Callable[..., None]:
    def enter(*_: Any) -> None:
        place.clear()
        place.update(layer=index, calls=defaultdict(int))

    return enter


def _taping(name: str, place: dict[str, Any], rows: dict[str, list[numpy.ndarray]]) -> Any:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Tensor, *args: Any, **kwargs: Any) -> Any:
            number = place["calls"][name]
            place["calls"][name] += 1
            kept = first[_slots(args[-1]) >= 0] if name in WRITES else first
            rows[f"{place['layer']}.{name}.{number}"].append(kept.float().clone().numpy())
            return function(first, *args, **kwargs)

        return call

    return wrap


def _slots(slots: Tensor) -> Tensor:
    return slots if slots.dim() == 1 else slots[:, 0]
