"""The NPU, through `torch.npu`.

Nothing in this module has run on an NPU. The names and argument orders are those of torch_npu's
Python sources; the contract test runs it against a recording fake.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch

from ascend_recipes.worker.device.interface import DeviceEvent, DeviceStream, HostArguments
from ascend_recipes.worker.device.raw_memory import memory_view


class NpuGraph:
    """`torch.npu.NPUGraph`, captured so that torch_npu can exchange host arguments.

    With `auto_dispatch_capture`, torch_npu puts every operator that it has a graph handler for
    (fused infer attention among them) into a task group behind an event, and `update` launches
    each of them again, with new host lists, on a stream of its own.
    """

    def __init__(self, npu: ModuleType) -> None:
        self._npu = npu
        self._graph: Any = npu.NPUGraph()

    def capture(self, work: Callable[[], Any], *, pool: object | None) -> Any:
        """Record the work on the current stream."""
        npu = self._npu
        stream = npu.current_stream()
        with npu.graph(self._graph, pool=pool, stream=stream, auto_dispatch_capture=True):
            return work()

    def replay(self, host_arguments: Sequence[HostArguments]) -> None:
        """Exchange the host arguments, then queue the recorded work."""
        if host_arguments:
            # The last replay may still read the tasks that are about to change.
            self._npu.current_stream().synchronize()
            self._graph.update(cpu_update_input=list(host_arguments))
        self._graph.replay()


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
        """An empty graph."""
        return NpuGraph(self._npu)

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
