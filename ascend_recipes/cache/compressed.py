"""Caches of compressed sparse attention as layers that vLLM allocates pages for.

vLLM allows one specification a layer object, hence every cache is an object of its own, registered
under its own name. Pages are views `[blocks, rows, width]` into one buffer shared by all layers:
each page is contiguous, pages are far apart.

Legend: B blocks, P rows of a page, W elements of a row.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.kv_cache_interface import KVCacheSpec, MLAAttentionSpec, SlidingWindowMLASpec

from ascend_recipes.attention.compressed_sparse import (
    CompressedSparseBackend,
    CompressedSparseMetadata,
)
from ascend_recipes.memory.pages import CacheShape
from ascend_recipes.ops.latent_cache import indexer_views

if TYPE_CHECKING:
    from vllm.v1.attention.backend import AttentionBackend


class CompressedCache(nn.Module, AttentionLayerBase):
    """One cache of one layer."""

    def __init__(
        self, vllm_config: VllmConfig, shape: CacheShape, *, prefix: str, ratio: int = 1
    ) -> None:
        """Register under `prefix`.

        Args:
            vllm_config: the engine's configuration.
            shape: page of the cache.
            prefix: name of the layer in vLLM's forward context.
            ratio: compression of the attention layer that owns the cache; 1 for a window only.
        """
        super().__init__()
        self.prefix = prefix
        self.shape = shape
        self.attention_ratio = ratio
        self.kv_cache = torch.tensor([])
        layers = vllm_config.compilation_config.static_forward_context
        assert prefix not in layers, f"two layers are named {prefix}"
        layers[prefix] = self

    @property
    def pages_BPW(self) -> torch.Tensor:
        """Pages of the cache."""
        return self.kv_cache[:, 0]

    @property
    def metadata(self) -> CompressedSparseMetadata | None:
        """What this step needs to know; none in a profiling run."""
        step = get_forward_context().attn_metadata
        return step.get(self.prefix) if isinstance(step, dict) else None

    def get_attn_backend(self) -> type["AttentionBackend"]:
        """One backend for every kind of cache."""
        return CompressedSparseBackend

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        """Page of the cache in vLLM's words."""
        shape, dtype = self.shape, getattr(torch, self.shape.dtype)
        alignment = shape.block_alignment if shape.block_alignment > 1 else None
        if shape.window is None:
            return MLAAttentionSpec(
                block_size=shape.block_tokens,
                num_kv_heads=1,
                head_size=shape.width,
                dtype=dtype,
                tokens_per_state=shape.ratio,
                block_stride_alignment=alignment,
            )
        return SlidingWindowMLASpec(
            block_size=shape.block_tokens,
            num_kv_heads=1,
            head_size=shape.width,
            dtype=dtype,
            sliding_window=shape.window,
            block_stride_alignment=alignment,
        )


class IndexKeyCache(CompressedCache):
    """Indexer keys and their scales in one page of bytes."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        shape: CacheShape,
        *,
        prefix: str,
        key_dtype: torch.dtype,
        top_k: int,
        num_heads: int,
        head: int,
    ) -> None:
        """As above; the rest is what splitting the indexer's work over cores depends on."""
        super().__init__(vllm_config, shape, prefix=prefix, ratio=shape.ratio)
        self.key_dtype = key_dtype
        self.top_k = top_k
        self.index_heads = num_heads
        self.head = head

    def views(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys `[B, P, D]` and scales `[B, P, 1]`."""
        return indexer_views(self.pages_BPW, self.key_dtype)


class WindowCache(CompressedCache):
    """Raw keys of the window; knows what attention over them and compressed keys looks like."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        shape: CacheShape,
        *,
        prefix: str,
        ratio: int,
        num_heads: int,
        head: int,
        top_k: int,
    ) -> None:
        """As above.

        Args:
            vllm_config: the engine's configuration.
            shape: page of the cache.
            prefix: name of the layer.
            ratio: compression of the attention layer; 1 without compressed keys.
            num_heads: query heads of this rank.
            head: dimension of a head.
            top_k: compressed keys that the indexer selects; 0 where all visible ones count.
        """
        super().__init__(vllm_config, shape, prefix=prefix, ratio=ratio)
        self.num_heads = num_heads
        self.head = head
        self.top_k = top_k
