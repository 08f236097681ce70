"""The emulated device: CPU tensors, work done at once, graphs that run again.

Emulation is for correctness, not for speed. Because work is synchronous, streams and events
have nothing to wait for; a graph replays by running the recorded callable again, and checks
what real capture would demand (see `ascend_recipes.graph`).
"""

import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ascend_recipes.worker.device.interface import DeviceStream, HostArguments
from ascend_recipes.worker.device.raw_memory import memory_view


class EmulatedEvent:
    """An event of a device whose work is always done."""

    def __init__(self, *_args: object, **_options: object) -> None:
        """Accept and ignore the options of torch's events (`blocking`, `enable_timing`)."""

    def record(self, stream: object | None = None) -> None:
        """Do nothing: the work is done."""

    def wait(self, stream: object | None = None) -> None:
        """Do nothing: the work is done."""

    def synchronize(self) -> None:
        """Do nothing: the work is done."""

    def query(self) -> bool:
        """Always true."""
        return True

    def elapsed_time(self, end_event: "EmulatedEvent") -> float:
        """Zero milliseconds: emulation measures nothing."""
        return 0.0


class EmulatedStream:
    """A stream of a device whose work is always done."""

    def __init__(self, device: torch.device | None = None, **_options: object) -> None:
        self.device = device or torch.device("cpu")

    def synchronize(self) -> None:
        """Do nothing: the work is done."""

    def wait_stream(self, stream: object) -> None:
        """Do nothing: the work is done."""

    def wait_event(self, event: object) -> None:
        """Do nothing: the work is done."""

    def record_event(self, event: EmulatedEvent | None = None) -> EmulatedEvent:
        """Return the event, or a new one."""
        return event or EmulatedEvent()


class EmulatedGraph:
    """Runs the captured work again on replay and copies results to the captured addresses."""

    def __init__(self) -> None:
        self._work: Callable[[], Any] | None = None
        self._result: Any = None

    def capture(self, work: Callable[[], Any], *, pool: object | None) -> Any:
        """Run the work and remember it with its result."""
        assert self._work is None, "a graph is captured once"
        self._work = work
        self._result = work()
        return self._result

    def replay(self, host_arguments: Sequence[HostArguments]) -> None:
        """Run the work again; its result lands where the captured result lies.

        The work reads its host arguments afresh, so there is nothing to exchange.
        """
        assert self._work is not None, "replay before capture"
        _copy_tensors(self._result, self._work())


class EmulatedRuntime:
    """`DeviceRuntime` over CPU tensors."""

    name = "emulated"
    device_type = "cpu"
    dispatch_key = "CPU"
    collectives_backend = "gloo"
    pins_host_memory = False

    def __init__(self) -> None:
        self._stream: DeviceStream = EmulatedStream()

    def select(self, index: int) -> torch.device:
        """Every rank is a process of its own with its own CPU tensors."""
        return torch.device("cpu")

    def synchronize(self, device: torch.device | None = None) -> None:
        """Do nothing: the work is done."""

    def create_stream(self) -> EmulatedStream:
        """A stream with nothing to wait for."""
        return EmulatedStream()

    def current_stream(self) -> DeviceStream:
        """The stream set by `use_stream`, or the default one."""
        return self._stream

    @contextmanager
    def use_stream(self, stream: DeviceStream) -> Iterator[None]:
        """Make the stream current while the context is open."""
        previous, self._stream = self._stream, stream
        try:
            yield
        finally:
            self._stream = previous

    def create_event(self) -> EmulatedEvent:
        """An event that is always done."""
        return EmulatedEvent()

    def memory(self) -> tuple[int, int]:
        """Host memory less the most that this process has used.

        Other processes are left out, so that what they do cannot change the result.
        """
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total - resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, total

    def memory_statistics(self) -> dict[str, int]:
        """Empty: the CPU allocator keeps no counters."""
        return {}

    def reserved_memory(self) -> int:
        """Zero: the CPU allocator keeps no counters."""
        return 0

    def release_memory(self) -> None:
        """Do nothing: freed memory is not cached."""

    def reset_peak(self) -> None:
        """Do nothing: the CPU allocator keeps no counters."""

    def create_graph(self) -> EmulatedGraph:
        """A graph that runs its work again."""
        return EmulatedGraph()

    def create_graph_pool(self) -> object:
        """A token; emulated graphs allocate like everything else."""
        return object()

    def bytes_at(self, address: int, size: int) -> torch.Tensor:
        """View host memory as uint8 `[size]`."""
        return memory_view(address, size, torch.device("cpu"))

    def seed(self, seed: int) -> None:
        """Do nothing beyond what torch.manual_seed already did for CPU tensors."""

    def compute_units(self) -> int:
        """Threads that torch may use."""
        return torch.get_num_threads()

    def substitutes(self) -> Mapping[str, object]:
        """CPU stand-ins for the CUDA and accelerator names that vLLM's runners use."""
        return {
            "torch.Event": EmulatedEvent,
            "torch.cuda.Event": EmulatedEvent,
            "torch.cuda.Stream": EmulatedStream,
            "torch.cuda.current_stream": lambda device=None: self.current_stream(),
            "torch.cuda.stream": self.use_stream,
            "torch.cuda.set_stream": self._set_stream,
            "torch.accelerator.synchronize": self.synchronize,
            "torch.accelerator.empty_cache": self.release_memory,
            "torch.accelerator.empty_host_cache": self.release_memory,
            "torch.accelerator.get_memory_info": lambda device=None: self.memory(),
            "torch.accelerator.memory_stats": lambda device=None: self.memory_statistics(),
            "torch.accelerator.memory_reserved": lambda device=None: 0,
            "torch.accelerator.memory_allocated": lambda device=None: 0,
            "torch.accelerator.max_memory_allocated": lambda device=None: 0,
            "torch.accelerator.reset_peak_memory_stats": lambda device=None: None,
        }

    def _set_stream(self, stream: DeviceStream) -> None:
        self._stream = stream


def _copy_tensors(target: Any, source: Any) -> None:
    """Copy every tensor of a nested result into the tensor at the same place of the target."""
    if isinstance(target, torch.Tensor):
        if target.data_ptr() != source.data_ptr():
            target.copy_(source)
    elif isinstance(target, list | tuple):
        for inner_target, inner_source in zip(target, source, strict=True):
            _copy_tensors(inner_target, inner_source)
    elif isinstance(target, dict):
        for key, inner_target in target.items():
            _copy_tensors(inner_target, source[key])
