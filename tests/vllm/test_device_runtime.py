"""One contract for both device runtimes; the NPU's runs against a recording fake of torch.npu."""

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest
import torch

from ascend_recipes.worker.device.current import device_shims
from ascend_recipes.worker.device.emulated import EmulatedRuntime
from ascend_recipes.worker.device.interface import DeviceEvent, DeviceRuntime, DeviceStream
from ascend_recipes.worker.device.npu import NpuRuntime

pytestmark = pytest.mark.vllm


class FakeStream:
    def __init__(self, calls):
        self._calls = calls

    def synchronize(self):
        self._calls.append("stream.synchronize")

    def wait_stream(self, stream):
        self._calls.append("stream.wait_stream")

    def wait_event(self, event):
        self._calls.append("stream.wait_event")


class FakeEvent:
    def __init__(self, calls):
        self._calls = calls

    def record(self, stream=None):
        self._calls.append("event.record")

    def wait(self, stream=None):
        self._calls.append("event.wait")

    def reset(self, stream=None):
        self._calls.append("event.reset")

    def synchronize(self):
        self._calls.append("event.synchronize")

    def query(self):
        return True


class FakeNpu(ModuleType):
    """The part of torch.npu that we use; tensors live on the CPU, graphs run again on replay."""

    def __init__(self):
        super().__init__("torch.npu")
        self.calls: list[str] = []
        self._current = FakeStream(self.calls)

    def _note(self, name, result=None):
        self.calls.append(name)
        return result

    def Stream(self, *args, **kwargs):
        return self._note("Stream", FakeStream(self.calls))

    def Event(self, *args, **kwargs):
        return self._note("Event", FakeEvent(self.calls))

    def NPUGraph(self):
        def update(*, cpu_update_input):
            self._note(f"graph.update {cpu_update_input}")

        def replay():
            self._note("graph.replay")

        return self._note("NPUGraph", SimpleNamespace(replay=replay, update=update))

    @contextmanager
    def graph(self, graph, *, pool, stream, auto_dispatch_capture):
        assert auto_dispatch_capture
        self.calls.append("graph.begin")
        yield
        self.calls.append("graph.end")

    @contextmanager
    def stream(self, stream):
        previous, self._current = self._current, stream
        yield
        self._current = previous

    def current_stream(self, device=None):
        return self._current

    def set_stream(self, stream):
        self._current = stream

    def set_device(self, device):
        self._note(f"set_device {device.index}")

    def current_device(self):
        return 0

    def mem_get_info(self, device=None):
        return 3 << 30, 4 << 30

    def memory_stats(self, device=None):
        return {"allocated_bytes.all.peak": 5}

    def memory_reserved(self, device=None):
        return 6

    memory_allocated = max_memory_allocated = memory_reserved

    def get_device_properties(self, index):
        return SimpleNamespace(cube_core_num=24)

    def graph_pool_handle(self):
        return (0, 1)

    def synchronize(self, device=None):
        self._note("synchronize")

    def empty_cache(self):
        self._note("empty_cache")

    def reset_peak_memory_stats(self, device=None):
        self._note("reset_peak_memory_stats")

    def manual_seed_all(self, seed):
        self._note(f"seed {seed}")


@pytest.fixture(params=["emulated", "npu"])
def runtime(request) -> DeviceRuntime:
    if request.param == "emulated":
        return EmulatedRuntime()
    return NpuRuntime(FakeNpu(), device_type="cpu")


def test_streams_and_events(runtime: DeviceRuntime):
    stream, event = runtime.create_stream(), runtime.create_event()
    assert isinstance(stream, DeviceStream)
    assert isinstance(event, DeviceEvent)
    before = runtime.current_stream()
    with runtime.use_stream(stream):
        assert runtime.current_stream() is stream
        event.record()
    assert runtime.current_stream() is before
    before.wait_stream(stream)
    before.wait_event(event)
    event.synchronize()
    assert event.query()
    stream.synchronize()
    runtime.synchronize()


def test_memory(runtime: DeviceRuntime):
    free, total = runtime.memory()
    assert 0 < free <= total
    assert all(isinstance(value, int) for value in runtime.memory_statistics().values())
    assert runtime.reserved_memory() >= 0
    runtime.release_memory()
    runtime.reset_peak()


def test_raw_memory_is_the_same_memory(runtime: DeviceRuntime):
    owner = torch.arange(16, dtype=torch.int32)
    view = runtime.bytes_at(owner.data_ptr() + 8, 12)
    assert view.dtype == torch.uint8
    assert view.tolist() == owner[2:5].view(torch.uint8).tolist()
    view.zero_()
    assert owner.tolist() == [0, 1, 0, 0, 0, *range(5, 16)]


def test_a_graph_returns_what_its_work_returns(runtime: DeviceRuntime):
    graph = runtime.create_graph()
    assert graph.capture(lambda: 7, pool=runtime.create_graph_pool()) == 7
    graph.replay([])
    graph.replay([{"actual_seq_lengths": [1, 2]}])


def test_device_facts(runtime: DeviceRuntime):
    assert runtime.device_type in ("cpu", "npu")
    assert runtime.collectives_backend in ("gloo", "hccl")
    assert runtime.compute_units() > 0
    assert runtime.select(0).type == runtime.device_type
    runtime.seed(1)


def test_shims_come_and_go(runtime: DeviceRuntime):
    before = (torch.cuda.Event, torch.accelerator.synchronize, torch.Event)
    with device_shims(runtime) as names:
        assert {"torch.cuda.Event", "torch.accelerator.synchronize", "torch.Event"} <= set(names)
        assert (
            torch.cuda.Event is runtime.substitutes()["torch.cuda.Event"] or runtime.name == "npu"
        )
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()
        free, total = torch.accelerator.get_memory_info()
        assert 0 < free <= total
        stream = torch.cuda.Stream(device=torch.device("cpu"))
        with torch.cuda.stream(stream):
            assert torch.cuda.current_stream() is stream
    assert (torch.cuda.Event, torch.accelerator.synchronize, torch.Event) == before


def test_shims_go_after_an_error(runtime: DeviceRuntime):
    before = torch.cuda.Event
    with pytest.raises(KeyError), device_shims(runtime):
        raise KeyError
    assert torch.cuda.Event is before


def test_both_runtimes_substitute_the_same_names():
    emulated, npu = EmulatedRuntime(), NpuRuntime(FakeNpu())
    assert set(emulated.substitutes()) == set(npu.substitutes())


def test_an_emulated_replay_writes_the_captured_result():
    graph, source = EmulatedRuntime().create_graph(), torch.ones(3)
    result = graph.capture(lambda: source * 2, pool=None)
    address = result.data_ptr()
    source.fill_(5)
    graph.replay([])
    assert result.data_ptr() == address
    assert result.tolist() == [10, 10, 10]


def test_the_npu_exchanges_host_arguments_after_the_last_replay():
    fake = FakeNpu()
    graph = NpuRuntime(fake).create_graph()
    graph.capture(lambda: fake._note("work"), pool=None)
    assert fake.calls == ["NPUGraph", "graph.begin", "work", "graph.end"]
    fake.calls.clear()
    graph.replay([{"actual_seq_lengths": [3]}])
    assert fake.calls == [
        "stream.synchronize",
        "graph.update [{'actual_seq_lengths': [3]}]",
        "graph.replay",
    ]


def test_the_npu_module_is_short():
    path = sys.modules[NpuRuntime.__module__].__file__
    with open(path, encoding="utf-8") as text:  # noqa: PTH123
        assert len(text.readlines()) <= 300
