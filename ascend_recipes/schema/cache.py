"""The `cache` section: what is kept per token and per sequence, and how much memory it gets."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from ascend_recipes.schema.base import Count, Fraction, Spec


class CacheCommon(Spec):
    """Fields of every cache kind."""

    block_size: Count
    """Tokens per block that the kernels address."""
    prefix_caching: bool = True
    """Reuse the cache of an earlier request with the same beginning."""
    memory_fraction: Fraction = 0.9
    """Share of device memory for weights, activations and cache together."""
    memory_bytes: Count | None = None
    """Bytes of cache per device; none lets the engine measure what is left."""


class PagedCacheSpec(CacheCommon):
    """Keys and values in pages."""

    kind: Literal["paged"]
    kv_dtype: Literal["model", "int8", "fp8"] = "model"
    """Element type of keys and values; `model` keeps the model's dtype."""


class HybridCacheSpec(CacheCommon):
    """Pages for attention layers and states for recurrent layers in one pool."""

    kind: Literal["hybrid"]
    kv_dtype: Literal["model", "int8", "fp8"] = "model"
    """Element type of keys and values; `model` keeps the model's dtype."""
    state_mode: Literal["none", "align"] = "align"
    """Keep a state snapshot at block boundaries (`align`) or only the running one (`none`)."""
    state_dtype: Literal["model_config", "float32", "bfloat16", "float16"] = "model_config"
    """Element type of recurrent states; `model_config` takes the model's own setting."""


class HeterogeneousCacheSpec(CacheCommon):
    """Window, compressed, indexer and compressor-state caches over one block space."""

    kind: Literal["heterogeneous"]
    precision: Literal["hardware", "float"] = "hardware"
    """`hardware` is the generation's cache dtype; `float` is for tests and is marked."""
    retention_interval_tokens: NonNegativeInt = 0
    """Keep cached prefixes only at multiples of this many tokens; 0 keeps all."""


CacheSpec = Annotated[
    PagedCacheSpec | HybridCacheSpec | HeterogeneousCacheSpec, Field(discriminator="kind")
]
