"""The NPU, through `torch.npu`.

Nothing in this module has run on an NPU. The names and argument orders are those of torch_npu's
Python sources; the contract test runs it against a recording fake.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch

from ascend_recipes.worker.device.interface import DeviceEvent, DeviceStream
from ascend_recipes.worker.device.raw_memory import memory_view


class NpuGraph:
    """`torch.npu.NPUGraph` with tasks whose host arguments change between replays.

    Operators that take lengths as host lists are captured inside a task group; before a replay
    the group is opened for update on a second stream, the operator is launched again with new
    lists, and an event inside the graph makes the replay wait for the update.
    """

    def __init__(self, npu: ModuleType, update_stream: DeviceStream) -> None:
        self._npu = npu
        self._update_stream = update_stream
        self._graph: Any = npu.NPUGraph()

    def capture(self, work: Callable[[], Any], *, pool: object | None) -> Any:
        """Record the work on the current stream."""
        with self._npu.graph(self._graph, pool=pool, stream=self._npu.current_stream()):
            return work()

    def replay(self) -> None:
        """Queue the recorded work."""
        self._graph.replay()

    def update_task(self, launch: Callable[[], None]) -> Callable[[Callable[[], None]], None]:
        """Capture one operator as a task group behind an event, and return its updater."""
        npu, stream = self._npu, self._npu.current_stream()
        updated = npu.ExternalEvent()
        updated.wait(stream)
        updated.reset(stream)
        npu.graph_task_group_begin(stream)
        launch()
        handle = npu.graph_task_group_end(stream)

        def update(new_launch: Callable[[], None]) -> None:
            with npu.stream(self._update_stream):
                npu.graph_task_update_begin(self._update_stream, handle)
                new_launch()
                npu.graph_task_update_end(self._update_stream)
                updated.record(self._update_stream)

        return update


class NpuRuntime:
    """`DeviceRuntime` over torch.npu."""

    name = "npu"
    dispatch_key = "PrivateUse1"
    collectives_backend = "hccl"
    pins_host_memory = True

    def __init__(self, npu: ModuleType, *, device_type: str = "npu") -> None:
        """Take the `torch.npu` module, so that a test can pass a fake.

        Args:
            npu: `torch.npu`.
            device_type: `npu`, or the device on which a fake keeps its tensors.
        """
        self._npu = npu
        self.device_type = device_type
        self._update_stream: DeviceStream | None = None

    def select(self, index: int) -> torch.device:
        """Make the device current."""
        device = torch.device(self.device_type, index)
        self._npu.set_device(device)
        return device

    def synchronize(self, device: torch.device | None = None) -> None:
        """Wait for all streams of the device."""
        self._npu.synchronize(device)

    def create_stream(self) -> DeviceStream:
        """A new stream of the current device."""
        stream: DeviceStream = self._npu.Stream()
        return stream

    def current_stream(self) -> DeviceStream:
        """The current stream of the current device."""
        stream: DeviceStream = self._npu.current_stream()
        return stream

    def use_stream(self, stream: DeviceStream) -> AbstractContextManager[None]:
        """Context in which new work goes to the stream."""
        context: AbstractContextManager[None] = self._npu.stream(stream)
        return context

    def create_event(self) -> DeviceEvent:
        """A new event of the current device."""
        event: DeviceEvent = self._npu.Event()
        return event

    def memory(self) -> tuple[int, int]:
        """Free and total bytes as the driver reports them."""
        free, total = self._npu.mem_get_info()
        return int(free), int(total)

    def memory_statistics(self) -> dict[str, int]:
        """Counters of torch_npu's caching allocator, in bytes."""
        return dict(self._npu.memory_stats())

    def reserved_memory(self) -> int:
        """Bytes held by torch_npu's caching allocator."""
        return int(self._npu.memory_reserved())

    def release_memory(self) -> None:
        """Return cached blocks to the driver."""
        self._npu.empty_cache()

    def reset_peak(self) -> None:
        """Start a new peak measurement."""
        self._npu.reset_peak_memory_stats()

    def create_graph(self) -> NpuGraph:
        """An empty graph; all graphs of the process share one update stream."""
        if self._update_stream is None:
            self._update_stream = self.create_stream()
        return NpuGraph(self._npu, self._update_stream)

    def create_graph_pool(self) -> object:
        """Handle of a memory pool for graphs."""
        pool: object = self._npu.graph_pool_handle()
        return pool

    def bytes_at(self, address: int, size: int) -> torch.Tensor:
        """View device memory of the current device as uint8 `[size]`."""
        device = torch.device(self.device_type, self._npu.current_device())
        return memory_view(address, size, device)

    def seed(self, seed: int) -> None:
        """Seed the generators of every device."""
        self._npu.manual_seed_all(seed)

    def compute_units(self) -> int:
        """Cube cores of the current device, each with its vector cores."""
        return int(self._npu.get_device_properties(self._npu.current_device()).cube_core_num)

    def substitutes(self) -> Mapping[str, object]:
        """torch.npu's counterparts of the CUDA and accelerator names that runners use."""
        npu = self._npu
        return {
            "torch.Event": npu.Event,
            "torch.cuda.Event": npu.Event,
            "torch.cuda.Stream": npu.Stream,
            "torch.cuda.current_stream": npu.current_stream,
            "torch.cuda.stream": npu.stream,
            "torch.cuda.set_stream": npu.set_stream,
            "torch.accelerator.synchronize": npu.synchronize,
            "torch.accelerator.empty_cache": npu.empty_cache,
            "torch.accelerator.empty_host_cache": npu.empty_cache,
            "torch.accelerator.get_memory_info": npu.mem_get_info,
            "torch.accelerator.memory_stats": npu.memory_stats,
            "torch.accelerator.memory_reserved": npu.memory_reserved,
            "torch.accelerator.memory_allocated": npu.memory_allocated,
            "torch.accelerator.max_memory_allocated": npu.max_memory_allocated,
            "torch.accelerator.reset_peak_memory_stats": npu.reset_peak_memory_stats,
        }
