"""Operators inside a graph whose host arguments change between replays.

Fused attention takes sequence lengths as host lists, which capture would freeze. While a graph is
being captured, such a launch registers how to launch it again; before every replay the graph
wrapper gives each of them the lengths of the new step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial

from ascend_recipes.attention.host_lengths import HostLengths
from ascend_recipes.worker.device.interface import DeviceGraph

Launch = Callable[[HostLengths], None]
"""Queues one operator with the given lengths."""


@dataclass(frozen=True)
class _Task:
    layer_name: str
    launch: Launch
    update: Callable[[Callable[[], None]], None]


@dataclass
class GraphTasks:
    """The updatable launches of one captured graph."""

    graph: DeviceGraph
    tasks: list[_Task] = field(default_factory=list)

    def update(self, lengths_of: Callable[[str], HostLengths]) -> None:
        """Give every launch the lengths of the coming replay.

        Args:
            lengths_of: lengths of a layer, by its name.
        """
        for task in self.tasks:
            task.update(partial(task.launch, lengths_of(task.layer_name)))


_capturing: ContextVar[GraphTasks | None] = ContextVar("capturing", default=None)


@contextmanager
def capturing(tasks: GraphTasks) -> Iterator[None]:
    """Collect the updatable launches of a capture."""
    token = _capturing.set(tasks)
    try:
        yield
    finally:
        _capturing.reset(token)


def launch_with_host_lengths(launch: Launch, lengths: HostLengths, *, layer_name: str) -> None:
    """Launch now; in a capture, also keep the launch so that replays can change its lengths."""
    tasks = _capturing.get()
    if tasks is None:
        launch(lengths)
        return
    update = tasks.graph.update_task(lambda: launch(lengths))
    tasks.tasks.append(_Task(layer_name, launch, update))
