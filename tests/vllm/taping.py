"""Inside an engine host: what operations that round are given, layer by layer.

Rounding turns at a half: the last bits of float32 decide there, and what follows differs by whole
steps. An oracle that rounds the engine's own numbers, after it has found its own equal to them,
stays exact through any number of layers.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy
from torch import Tensor, nn

INDEXER = ("write_indexer_keys", "quantize_indexer_query")
FLOAT8 = (*INDEXER, "write_latent_rows", "mx_quant", "swiglu_mx_quant")
"""What rounds on A5."""
INT8_INDEXER = (*INDEXER, "lightning_indexer")
"""What rounds on A2 and A3 before blocks are chosen; of the last one its weights are taped."""
MODELSLIM = (*INT8_INDEXER, "dynamic_quant", "moe_init_routing")
"""What rounds in W8A8 and W4A8 on A2 and A3, but for what is rounded inside of the experts."""
WRITES = {"write_latent_rows", "write_indexer_keys"}
"""Their last argument says where rows go; rows that go nowhere are not taped."""

Tape = dict[str, numpy.ndarray]
Rows = dict[str, list[numpy.ndarray]]


@contextmanager
def taped(model: nn.Module, names: Collection[str]) -> Iterator[Tape]:
    """Tape calls below every decoder layer as `<layer>.<operation>.<number of the call>`.

    Args:
        model: model whose `model.layers` are decoder layers.
        names: operations to tape.
    """
    tape: Tape = {}
    with _recording(dict(enumerate(model.model.layers)), names) as rows:
        yield tape
    tape |= _joined(rows)


@contextmanager
def taped_passes(layer: nn.Module, number: int, names: Collection[str]) -> Iterator[list[Tape]]:
    """Tape calls below one layer as `taped` does, every pass by itself."""
    passes: list[Tape] = []

    def leave(*_: Any) -> None:
        passes.append(_joined(rows))
        rows.clear()

    with _recording({number: layer}, names) as rows:
        hook = layer.register_forward_hook(leave)
        yield passes
        hook.remove()


@contextmanager
def taped_rounds(owner: Any, method: str, operation: str) -> Iterator[list[list[numpy.ndarray]]]:
    """What an operation is given first while a method of an object runs, by run of the method."""
    from ascend_recipes.ops import operations

    rounds: list[list[numpy.ndarray]] = []
    running: list[bool] = []
    run = getattr(owner, method)

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Tensor, *args: Any, **kwargs: Any) -> Any:
            if running:
                rounds[-1].append(first.float().clone().numpy())
            return function(first, *args, **kwargs)

        return call

    def watched(*args: Any, **kwargs: Any) -> Any:
        rounds.append([])
        running.append(True)
        try:
            return run(*args, **kwargs)
        finally:
            running.clear()

    setattr(owner, method, watched)
    with operations.override(operation, wrap):
        yield rounds
    setattr(owner, method, run)


@contextmanager
def _recording(layers: dict[int, nn.Module], names: Collection[str]) -> Iterator[Rows]:
    from ascend_recipes.ops import operations

    rows: Rows = defaultdict(list)
    place: dict[str, Any] = {}
    with ExitStack() as stack:
        for index, layer in layers.items():
            for hook in (
                layer.register_forward_pre_hook(_entering(place, index)),
                layer.register_forward_hook(lambda *_: place.clear()),
            ):
                stack.callback(hook.remove)
        for name in names:
            stack.enter_context(operations.override(name, _taping(name, place, rows)))
        yield rows


def _joined(rows: Rows) -> Tape:
    return {key: numpy.concatenate(steps) for key, steps in rows.items()}


def start_taping(worker: Any, names: Collection[str]) -> None:
    """Tape in a worker's process until `stop_taping`; both for `collective_rpc`."""
    stack = ExitStack()
    tape = stack.enter_context(taped(worker.model_runner.get_model(), names))
    _running.append((stack, tape))


def stop_taping(_: Any) -> Tape:
    """What was taped."""
    stack, tape = _running.pop()
    stack.close()
    return tape


_running: list[tuple[ExitStack, Tape]] = []


def _entering(place: dict[str, Any], index: int) -> Callable[..., None]:
    def enter(*_: Any) -> None:
        place.clear()
        place.update(layer=index, calls=defaultdict(int))

    return enter


def _taping(name: str, place: dict[str, Any], rows: Rows) -> Any:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not place:
                # Of layers that are not taped.
                return function(first, *args, **kwargs)
            number = place["calls"][name]
            place["calls"][name] += 1
            # Behind the rows of a rank's experts, those of other ranks are undefined: NaN here.
            taken = args[0] if name == "lightning_indexer" else first
            kept = _slots(args[-1]) >= 0 if name in WRITES else ~taken.flatten(1).isnan().any(1)
            rows[f"{place['layer']}.{name}.{number}"].append(taken[kept].float().numpy())
            return function(first, *args, **kwargs)

        return call

    return wrap


def _slots(slots: Tensor) -> Tensor:
    return slots if slots.dim() == 1 else slots[:, 0]
