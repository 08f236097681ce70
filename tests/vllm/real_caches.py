"""Child process: the caches that vLLM gives a model of real size, which stands on the meta device.

The real configuration makes vLLM's engine configuration; the model that serves it is built without
weights; its layers say what they cache; vLLM groups that. JSON in, JSON out.
"""

import json
import sys

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.v1.attention.backends.utils import (
    get_supported_kv_cache_layouts,
    resolve_kv_cache_layout,
)
from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity, get_kv_cache_configs


def layer_specs(config):
    layers = config.compilation_config.static_forward_context
    found = {
        name: layer.get_kv_cache_spec(config)
        for name, layer in layers.items()
        if hasattr(layer, "get_kv_cache_spec")
    }
    return {name: spec for name, spec in found.items() if spec is not None}


def measure(case):
    config = EngineArgs(load_format="dummy", enforce_eager=True, **case["args"])
    config = config.create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, case["meeting"], 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        with torch.device("meta"):
            model = initialize_model(config)
        current_platform.update_block_size_for_backend(config)
    real = sum(item.numel() for item in model.parameters() if item.device.type != "meta")
    assert real < 0.01 * sum(item.numel() for item in model.parameters())
    specs = layer_specs(config)
    layouts = get_supported_kv_cache_layouts(get_current_attn_backends(config))
    resolve_kv_cache_layout(config, [[layout.name for layout in layouts]], specs.values())
    (made,) = get_kv_cache_configs(config, [specs], [case["memory"]])
    tokens, concurrency = get_kv_cache_capacity(config, made)
    return {
        "groups": sorted(
            (len(group.layer_names), group.kv_cache_spec.block_size)
            for group in made.kv_cache_groups
        ),
        "num_blocks": made.num_blocks,
        "block_bytes": made.kv_cache_tensors[0].size // made.num_blocks,
        "tokens": tokens,
        "concurrency": concurrency,
    }


sys.stdout.write(f"\n{json.dumps(measure(json.load(sys.stdin)))}\n")
