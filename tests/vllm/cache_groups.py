"""Child process: what vLLM's own functions make of cache specifications. JSON in, JSON out.

No engine and no model: the configuration is the handful of fields that the grouping reads.
"""

import json
import sys
from types import SimpleNamespace
from unittest.mock import patch

import torch
from vllm.config import CacheConfig
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
from vllm.model_executor.models import ModelRegistry
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity, get_kv_cache_configs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
)


def fake_config(case):
    cache = CacheConfig(block_size=case["block"], enable_prefix_caching=True)
    cache.kv_cache_layout = case["layout"]
    cache.mamba_cache_mode = case["mode"]
    return SimpleNamespace(
        cache_config=cache,
        model_config=SimpleNamespace(
            dtype=torch.bfloat16,
            max_model_len=case["length"],
            original_max_model_len=case["length"],
            use_mla=case.get("attention", {}).get("kind") == "latent",
            architecture="any",
            get_num_kv_heads=lambda _: case["attention"]["heads"],
            get_head_size=lambda: case["attention"]["size"],
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1, decode_context_parallel_size=1, pipeline_parallel_size=1
        ),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        num_prefill_lookahead_tokens=0,
        max_in_flight_tokens=case["step"],
    )


def hybrid_specs(case, config):
    """Attention and state layers after vLLM has aligned their pages."""
    shapes = getattr(MambaStateShapeCalculator, case["states"])(**case["state_sizes"])
    dtypes = (torch.bfloat16, torch.float32)
    model = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: shapes,
        get_mamba_state_dtype_from_config=lambda _: dtypes,
    )

    class Backend:
        get_supported_kernel_block_sizes = staticmethod(lambda: [MultipleOf(128)])
        customize_spec = staticmethod(lambda spec: spec)

    with (
        patch.object(ModelRegistry, "resolve_model_cls", lambda *_, **__: (model, "any")),
        patch.object(Platform, "_find_non_ssm_backends", classmethod(lambda *_: [Backend])),
        patch("vllm.config.vllm.set_current_vllm_config"),
    ):
        Platform._align_hybrid_block_size(config, Backend)
    cache = config.cache_config
    kind = MLAAttentionSpec if config.model_config.use_mla else FullAttentionSpec
    attention = kind(
        block_size=cache.block_size,
        num_kv_heads=case["attention"]["heads"],
        head_size=case["attention"]["size"],
        dtype=torch.bfloat16,
    )
    state = MambaSpec(
        shapes=shapes,
        dtypes=dtypes,
        block_size=cache.block_size,
        page_size_padded=cache.mamba_page_size_padded,
        mamba_cache_mode=case["mode"],
        num_speculative_blocks=case["drafts"],
    )
    specs = {f"layers.{n}.attn": attention for n in range(case["attention_layers"])}
    return specs | {f"layers.{n}.state": state for n in range(case["state_layers"])}


def listed_specs(case):
    specs = {}
    for number, layer in enumerate(case["layers"]):
        common = {
            "block_size": layer["block"],
            "num_kv_heads": 1,
            "head_size": layer["width"],
            "dtype": getattr(torch, layer["dtype"]),
            "block_stride_alignment": layer.get("alignment"),
        }
        if layer["window"]:
            spec = SlidingWindowMLASpec(**common, sliding_window=layer["window"])
        else:
            spec = MLAAttentionSpec(**common, tokens_per_state=layer["ratio"])
        specs[f"layers.{number}"] = spec
    return specs


def measure(case):
    config = fake_config(case)
    specs = listed_specs(case) if "layers" in case else hybrid_specs(case, config)
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


print(json.dumps({name: measure(case) for name, case in json.load(sys.stdin).items()}))
