"""Collects what is in effect in a worker, for its receipt."""

from collections import Counter
from typing import TYPE_CHECKING

from torch import nn
from vllm.distributed.parallel_state import get_tp_group
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity
from vllm.v1.kv_cache_interface import MambaSpec

from ascend_recipes.cache.compressed import CompressedCache
from ascend_recipes.receipts import EffectiveValues

if TYPE_CHECKING:
    from ascend_recipes.worker.worker import AscendWorker


def effective_values(worker: "AscendWorker") -> EffectiveValues:
    """Read configuration, caches, backends and classes after warm-up."""
    runner, cache = worker.model_runner, worker.cache_config
    groups = runner.kv_cache_config.kv_cache_groups
    num_blocks = runner.kv_cache_config.num_blocks
    states = [g.kv_cache_spec for g in groups if isinstance(g.kv_cache_spec, MambaSpec)]
    compilation = worker.compilation_config
    communicator = get_tp_group().device_communicator
    model = runner.get_model()
    tokens, _ = get_kv_cache_capacity(worker.vllm_config, runner.kv_cache_config)
    return EffectiveValues(
        block_size=_block_size(worker),
        kernel_block_sizes=tuple(runner._kernel_block_sizes),
        num_blocks=num_blocks,
        num_kv_tokens=tokens,
        cache_layout=str(cache.kv_cache_layout),
        cache_groups=tuple(_describe_group(group) for group in groups),
        kv_dtype=cache.cache_dtype if cache.cache_dtype != "auto" else _short(runner.dtype),
        state_dtypes=tuple(_short(dtype) for dtype in states[0].dtypes) if states else (),
        state_cache_mode=cache.mamba_cache_mode,
        prefix_caching=bool(cache.enable_prefix_caching),
        prefix_retention=runner.kv_cache_config.prefix_cache_retention_interval,
        graph_mode=compilation.cudagraph_mode.name,
        capture_sizes=tuple(compilation.cudagraph_capture_sizes or ()),
        attention_backends=_attention_backends(worker),
        layer_classes=layer_classes(model),
        model_class=class_name(model),
        runner_class=class_name(runner),
        communicator_class=class_name(communicator) if communicator is not None else None,
        async_scheduling=bool(worker.scheduler_config.async_scheduling),
        max_num_batched_tokens=worker.scheduler_config.max_num_batched_tokens,
        quantization=worker.model_config.quantization,
    )


def _block_size(worker: "AscendWorker") -> int:
    """Tokens of a block, of window blocks where caches of several kinds share the pool.

    With several kinds vLLM's own field holds the smallest block of any of them.
    """
    layers = worker.compilation_config.static_forward_context.values()
    windows = {
        layer.shape.block_tokens
        for layer in layers
        if isinstance(layer, CompressedCache) and layer.shape.role == "window"
    }
    return windows.pop() if len(windows) == 1 else worker.cache_config.block_size


def layer_classes(model: nn.Module) -> dict[str, int]:
    """Classes of a model's modules with their counts, containers of torch left out."""
    names = (class_name(module) for module in model.modules())
    return dict(sorted(Counter(name for name in names if not name.startswith("torch.")).items()))


def class_name(instance: object) -> str:
    """`module:Name` of an object's class."""
    return f"{type(instance).__module__}:{type(instance).__qualname__}"


def _attention_backends(worker: "AscendWorker") -> tuple[str, ...]:
    layers = worker.compilation_config.static_forward_context.values()
    backends = {
        layer.get_attn_backend() for layer in layers if isinstance(layer, AttentionLayerBase)
    }
    return tuple(sorted(f"{backend.__module__}:{backend.__qualname__}" for backend in backends))


def _describe_group(group: object) -> str:
    spec = group.kv_cache_spec  # type: ignore[attr-defined]
    layers = len(group.layer_names)  # type: ignore[attr-defined]
    return f"{type(spec).__name__} x{layers}, block {spec.block_size}, {spec.page_size_bytes} B"


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
