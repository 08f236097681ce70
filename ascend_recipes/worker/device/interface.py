"""What the worker and the runner need from a device, and nothing else.

Two implementations exist, `npu` and `emulated`; both pass the same contract test. Run-time code
asks for the runtime of its process with `device_runtime()` and never for a device by name.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch

HostArguments: TypeAlias = dict[str, list[int]]
"""Arguments of one operator call that live on the host, by the operator's own names."""


@runtime_checkable
class DeviceEvent(Protocol):
    """A point in the work of a stream."""

    def record(self, stream: "DeviceStream | None" = None) -> None:
        """Mark the work queued so far on the stream, the current one by default."""

    def synchronize(self) -> None:
        """Block the host until the marked work is done."""

    def query(self) -> bool:
        """Whether the marked work is done."""


@runtime_checkable
class DeviceStream(Protocol):
    """An ordered queue of device work."""

    def synchronize(self) -> None:
        """Block the host until all queued work is done."""

    def wait_stream(self, stream: "DeviceStream") -> None:
        """Let later work of this stream wait for the work queued so far on the other."""

    def wait_event(self, event: DeviceEvent) -> None:
        """Let later work of this stream wait for the event."""


@runtime_checkable
class DeviceGraph(Protocol):
    """Device work that was recorded once and can be queued again as a whole."""

    def capture(self, work: Callable[[], Any], *, pool: object | None) -> Any:
        """Record the work and return its result, whose memory every replay writes again."""

    def replay(self, host_arguments: Sequence[HostArguments]) -> None:
        """Queue the recorded work: same addresses, same launches, new contents.

        Args:
            host_arguments: for each captured operator that takes host data which changes from
                replay to replay, in the order of capture, its arguments by the operator's names.
        """


class DeviceRuntime(Protocol):
    """Streams, events, memory, graphs, collectives and raw memory of one kind of device."""

    name: str
    """`npu` or `emulated`."""
    device_type: str
    """Device string for torch: `npu` or `cpu`."""
    dispatch_key: str
    """Dispatcher key of the device's kernels."""
    collectives_backend: str
    """Back-end of torch.distributed between devices."""
    pins_host_memory: bool
    """Whether host buffers should be page-locked for asynchronous copies."""

    def select(self, index: int) -> torch.device:
        """Make a device current for this process and return it."""

    def synchronize(self, device: torch.device | None = None) -> None:
        """Block the host until all work of the device is done."""

    def create_stream(self) -> DeviceStream:
        """A new stream of the current device."""

    def current_stream(self) -> DeviceStream:
        """The stream that new work goes to."""

    def use_stream(self, stream: DeviceStream) -> AbstractContextManager[None]:
        """Send new work to the stream while the context is open."""

    def create_event(self) -> DeviceEvent:
        """A new event of the current device."""

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the current device."""

    def memory_statistics(self) -> dict[str, int]:
        """Allocator counters in bytes, by torch's names (`allocated_bytes.all.peak`, ...)."""

    def reserved_memory(self) -> int:
        """Bytes that torch's allocator holds on the current device."""

    def release_memory(self) -> None:
        """Return unused allocator memory to the device."""

    def reset_peak(self) -> None:
        """Start a new peak measurement."""

    def create_graph(self) -> DeviceGraph:
        """An empty graph of the current device."""

    def create_graph_pool(self) -> object:
        """Memory pool that graphs of this process share."""

    def bytes_at(self, address: int, size: int) -> torch.Tensor:
        """View device memory as uint8 `[size]`; the caller keeps its owner alive."""

    def seed(self, seed: int) -> None:
        """Seed the random generators of the device."""

    def compute_units(self) -> int:
        """Cores that kernels may spread over."""

    def substitutes(self) -> Mapping[str, object]:
        """Attributes of torch that vLLM's runners use and that this device has to serve.

        Key: dotted name, for example `torch.cuda.Event`; value: what stands in.
        """
