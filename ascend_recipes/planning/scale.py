"""What a tiny plan on the emulated device may change against the real one."""

from collections.abc import Iterator

from ascend_recipes.schema.base import Json
from ascend_recipes.schema.plan import LaunchPlan

TINY_PLAN_FIELDS = frozenset(
    {
        "device",
        "scale",
        "digest",
        "model.checkpoint",
        "model.tiny_seed",
        "engine.model",
        "engine.max_model_len",
        "engine.max_num_seqs",
        "engine.max_num_batched_tokens",
        "engine.kv_cache_memory_bytes",
        "engine.tensor_parallel_size",
        "engine.data_parallel_size",
        "engine.distributed_executor_backend",
        "engine.compilation_config.cudagraph_capture_sizes",
        "env.OMP_NUM_THREADS",
        "env.TORCH_DEVICE_BACKEND_AUTOLOAD",
        "graph.capture_sizes",
        "cache.block_size",
        "layers.count",
        "groups",
        "roles.dies_per_node",
        "relaxed",
    }
)
"""Sizes, checkpoint, parallel degrees and memory. Registrations, backends, quantization, bindings,
patches, drafter and cache kinds are not here: they are what emulation is to prove."""


def differing_fields(first: LaunchPlan, second: LaunchPlan) -> set[str]:
    """Dotted names of the leaves in which two plans differ; list positions are left out."""
    left = set(_leaves(first.model_dump(mode="json"), ""))
    right = set(_leaves(second.model_dump(mode="json"), ""))
    return {path for path, _ in left ^ right}


def _leaves(tree: Json, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(tree, list) and any(isinstance(item, dict) for item in tree):
        if path == "groups":
            yield path, repr(tree)
            return
        for index, item in enumerate(tree):
            for name, value in _leaves(item, path):
                yield name, f"{index}: {value}"
    else:
        yield path, repr(tree)
