"""Grouped-query attention over the paged cache through fused infer attention.

Cache layout. vLLM hands every layer a 4-D view `[block, head slot, token, content]` of one raw
allocation. This backend asks for two head slots, the first for keys and the second for values,
with all heads of a token as content: `[block, 2, 128, kv_heads * head_dim]`. In the layout LBHNC
that is, per block, a dense `[128, kv_heads, head_dim]` of keys followed by one of values, which
is the operator's block form BnBsH. Read as one buffer of half blocks, keys of block i are half
block 2i and values are half block 2i + 1. The operators therefore get two contiguous caches over
the same memory, the value cache starting one half block later, and block tables and slots that
count half blocks. Two strided views with a block stride of two would be simpler, but the
documentation of `npu_fused_infer_attention_score` and of `npu_scatter_pa_kv_cache` excludes
non-contiguous tensors, and a copy to close the gaps would move the whole cache at every step.

A manager block that is larger than 128 tokens (hybrid models make it as large as a recurrent
state) is split by vLLM into kernel blocks of 128; the layout is the same.

Legend: T tokens, R requests, M kernel blocks of a request, N query heads, K kv heads,
D head dimension, B kernel blocks, P tokens of a kernel block (128).
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheSpec
from vllm.v1.kv_cache_layout import KVCacheLayout

from ascend_recipes.attention.host_lengths import HostLengths, host_lengths
from ascend_recipes.graph.host_arguments import note_host_lengths
from ascend_recipes.ops import operations

KERNEL_BLOCK = 128
"""Tokens of one block that the operators accept for bf16 and fp16 caches."""

_MASK_SIZE = 2048
"""Side of the mask that the operator's compressed causal mode wants, whatever the lengths are."""


@dataclass
class FusedInferMetadata(AttentionMetadata):
    """What one step of attention needs; lengths are host data, as the operator takes them."""

    num_tokens: int
    """Tokens of the step, padding included."""
    lengths: HostLengths
    block_table_RM: torch.Tensor
    """int32, counted in half blocks."""
    slots_T: torch.Tensor
    """int32, counted in half blocks; -1 marks tokens that are not cached."""
    causal: bool


class FusedInferBuilder(AttentionMetadataBuilder[FusedInferMetadata]):
    """Builds `FusedInferMetadata` into buffers whose addresses graphs can rely on."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH
    requires_block_table_width: ClassVar[bool] = True

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
        block_table_width: int,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        scheduler = vllm_config.scheduler_config
        self._block_table = torch.zeros(
            scheduler.max_num_seqs, block_table_width, dtype=torch.int32, device=device
        )
        self._slots = torch.zeros(
            scheduler.max_num_batched_tokens, dtype=torch.int32, device=device
        )

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> FusedInferMetadata:
        """Convert vLLM's metadata of one step.

        Args:
            common_prefix_len: unused; vLLM always passes 0.
            common_attn_metadata: lengths, block table and slots of the step.
            fast_build: whether this is a draft step, whose device lengths run ahead of the host.
        """
        common = common_attn_metadata
        num_tokens, num_requests = common.num_actual_tokens, common.num_reqs
        return FusedInferMetadata(
            num_tokens=num_tokens,
            lengths=host_lengths(common, exact_on_host=not fast_build),
            block_table_RM=self._half_block_table(common.block_table_tensor[:num_requests]),
            slots_T=self._half_block_slots(common.slot_mapping[:num_tokens]),
            causal=bool(common.causal),
        )

    def _half_block_table(self, block_table_RM: torch.Tensor) -> torch.Tensor:
        rows, width = block_table_RM.shape
        target_RM = self._block_table[:rows, :width]
        torch.mul(block_table_RM, 2, out=target_RM)
        return target_RM

    def _half_block_slots(self, slots_T: torch.Tensor) -> torch.Tensor:
        # slot = block * 128 + offset becomes 2 * block * 128 + offset; -1 stays -1.
        block_T = torch.div(slots_T, KERNEL_BLOCK, rounding_mode="floor")
        half_T = torch.where(slots_T < 0, slots_T, slots_T + block_T * KERNEL_BLOCK)
        return self._slots[: slots_T.shape[0]].copy_(half_T)


class FusedInferImpl(AttentionImpl[FusedInferMetadata]):
    """Writes keys and values of the step, then attends over the paged cache."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
    ) -> None:
        _refuse("ALiBi", alibi_slopes is not None)
        _refuse("logits soft cap", bool(logits_soft_cap))
        _refuse(f"attention type {attn_type}", attn_type != AttentionType.DECODER)
        _refuse("a cache shared with another layer", kv_sharing_target_layer_name is not None)
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = scale
        self.num_kv_heads = num_kv_heads or num_heads
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype

    def forward(
        self,
        layer: Attention,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: FusedInferMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend.

        Args:
            layer: the calling layer.
            query: `[T, N, D]`.
            key: `[T, K, D]`.
            value: `[T, K, D]`.
            kv_cache: `[B, 2, P, K * D]`.
            attn_metadata: none in a profiling run.
            output: `[T, N, D]` or `[T, N * D]`, written.
            output_scale: refused.
            output_block_scale: refused.
        """
        _refuse("quantized output", output_scale is not None or output_block_scale is not None)
        if attn_metadata is None:
            return output.zero_()
        num_tokens = attn_metadata.num_tokens
        query_TND = query[:num_tokens].view(num_tokens, self.num_heads, self.head_size)
        key_TKD = key[:num_tokens].view(num_tokens, self.num_kv_heads, self.head_size)
        value_TKD = value[:num_tokens].view(num_tokens, self.num_kv_heads, self.head_size)
        output_TND = output[:num_tokens].view(num_tokens, self.num_heads, self.head_size)
        key_cache, value_cache = split_cache(kv_cache, self.num_kv_heads, self.head_size)
        operations.write_kv_cache(key_TKD, value_TKD, key_cache, value_cache, attn_metadata.slots_T)

        lengths = attn_metadata.lengths
        note_host_lengths(layer.layer_name)
        attended_TND = operations.paged_attention(
            query_TND,
            key_cache,
            value_cache,
            block_table_RM=attn_metadata.block_table_RM,
            query_lengths_cumulative=list(lengths.query_cumulative),
            kv_lengths=list(lengths.kv),
            block_size=KERNEL_BLOCK,
            num_kv_heads=self.num_kv_heads,
            scale=self.scale,
            mask=_causal_mask(query.device) if attn_metadata.causal else None,
            causal=attn_metadata.causal,
            window=self.sliding_window,
        )
        output_TND.copy_(attended_TND)
        return output


class FusedInferAttentionBackend(AttentionBackend):
    """Attention of ordinary full-attention and sliding-window layers."""

    accept_output_buffer: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [
        torch.bfloat16,
        torch.float16,
        torch.float32,
    ]
    forward_includes_kv_cache_update: bool = True

    @staticmethod
    def get_name() -> str:
        """`CUSTOM`: vLLM looks the name up in its enum, where only this one is free."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[FusedInferImpl]:
        """The class that computes."""
        return FusedInferImpl

    @staticmethod
    def get_builder_cls() -> type[FusedInferBuilder]:
        """The class that prepares a step."""
        return FusedInferBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(
        kv_cache_spec: KVCacheSpec | None = None,
    ) -> list[int | MultipleOf]:
        """128 tokens; larger manager blocks are split."""
        return [KERNEL_BLOCK]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Layers outermost, blocks dense, head slots before tokens."""
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        """Two head slots, keys and values, with all heads of a token as content."""
        content = spec.num_kv_heads * spec.head_size * spec.dtype.itemsize
        return replace(spec, num_head_slots=2, state_content_bytes=content)


def split_cache(
    kv_cache: torch.Tensor, num_kv_heads: int, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """View the cache of a layer as contiguous key and value caches counted in half blocks.

    Args:
        kv_cache: `[B, 2, P, K * D]`, dense.
        num_kv_heads: K.
        head_dim: D.

    Returns:
        Two views `[2 * B - 1, P, K, D]` of the same memory; the second starts at half block 1.
    """
    blocks, slots, tokens, _ = kv_cache.shape
    halves = kv_cache.view(blocks * slots, tokens, num_kv_heads, head_dim)
    return halves[:-1], halves[1:]


@cache
def _causal_mask(device: torch.device) -> torch.Tensor:
    """int8 `[2048, 2048]`, 1 above the diagonal; shared by all layers of the device."""
    # An ordinary tensor even when first needed in inference mode: it outlives the step.
    with torch.inference_mode(mode=False):
        ones = torch.ones(_MASK_SIZE, _MASK_SIZE, dtype=torch.int8, device=device)
        return torch.triu(ones, diagonal=1)


def _refuse(what: str, present: bool) -> None:
    if present:
        raise ValueError(f"the fused infer attention backend does not support {what}")
