"""Wrapper that captures whole decode steps and replays them (`FULL_DECODE_ONLY`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from vllm.compilation.cuda_graph import CUDAGraphOptions, CUDAGraphWrapper
from vllm.compilation.monitor import validate_cudagraph_capturing_enabled
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.forward_context import (
    BatchDescriptor,
    ForwardContext,
    get_forward_context,
    is_forward_context_available,
)

from ascend_recipes.apply import current_plan
from ascend_recipes.attention.fused_infer import FusedInferMetadata
from ascend_recipes.graph.host_arguments import capturing
from ascend_recipes.worker.device.current import runtime_for
from ascend_recipes.worker.device.interface import DeviceGraph, HostArguments


@dataclass
class _Captured:
    graph: DeviceGraph
    layers: tuple[str, ...]
    """Layers whose operators take host lengths, in the order of capture."""
    addresses: tuple[int, ...]
    output: Any
    replays: int = 0


class StaticGraphWrapper(CUDAGraphWrapper):
    """One graph per batch descriptor over the graphs of the device runtime.

    It derives from vLLM's wrapper because the runner tests for that class when it unwraps the
    model and when it clears graphs. vLLM's captures through `torch.cuda` and checks addresses
    only in debug mode; here a replay with other addresses always fails, because on the device
    it would silently read old memory.
    """

    def __init__(
        self,
        runnable: Callable[..., Any],
        vllm_config: VllmConfig,
        runtime_mode: CUDAGraphMode,
        cudagraph_options: CUDAGraphOptions | None = None,
    ) -> None:
        super().__init__(runnable, vllm_config, runtime_mode, cudagraph_options)
        self._runtime = runtime_for(current_plan().device)
        self._captured: dict[BatchDescriptor, _Captured] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run, capture or replay, as the forward context says."""
        if not is_forward_context_available():
            return self.runnable(*args, **kwargs)
        context = get_forward_context()
        if context.cudagraph_runtime_mode != self.runtime_mode:
            return self.runnable(*args, **kwargs)
        batch = context.batch_descriptor
        assert batch is not None, "a graph mode was dispatched without a batch descriptor"
        addresses = _tensor_addresses(args, kwargs)
        if batch not in self._captured:
            return self._capture(batch, addresses, lambda: self.runnable(*args, **kwargs))
        return self._replay(batch, addresses, context)

    def clear_graphs(self) -> None:
        """Forget every captured graph."""
        super().clear_graphs()
        self._captured.clear()

    def replay_counts(self) -> dict[int, int]:
        """Replays so far by number of tokens, zero for graphs that were only captured."""
        return {batch.num_tokens: entry.replays for batch, entry in self._captured.items()}

    def _capture(
        self, batch: BatchDescriptor, addresses: tuple[int, ...], work: Callable[[], Any]
    ) -> Any:
        validate_cudagraph_capturing_enabled()
        sizes = self.compilation_config.cudagraph_capture_sizes or []
        assert batch.num_tokens in sizes, f"{batch.num_tokens} tokens are not in {sizes}"
        graph = self._runtime.create_graph()
        with capturing() as layers:
            output = graph.capture(work, pool=self.graph_pool)
        self._captured[batch] = _Captured(graph, tuple(layers), addresses, output)
        return output

    def _replay(
        self, batch: BatchDescriptor, addresses: tuple[int, ...], context: ForwardContext
    ) -> Any:
        entry = self._captured[batch]
        assert addresses == entry.addresses, (
            f"graph of {batch.num_tokens} tokens was captured with other input addresses"
        )
        entry.graph.replay([_host_arguments(context, layer) for layer in entry.layers])
        entry.replays += 1
        return entry.output


def _host_arguments(context: ForwardContext, layer_name: str) -> HostArguments:
    assert isinstance(context.attn_metadata, dict)
    metadata = context.attn_metadata[layer_name]
    assert isinstance(metadata, FusedInferMetadata)
    return metadata.lengths.operator_arguments()


def _tensor_addresses(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    values = [*args, *(kwargs[name] for name in sorted(kwargs))]
    return tuple(value.data_ptr() for value in values if isinstance(value, torch.Tensor))
