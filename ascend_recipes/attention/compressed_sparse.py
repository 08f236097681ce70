"""Backend of every cache of compressed sparse attention: which rows a step reads and writes.

vLLM makes one builder for each kind of cache in a group. What it builds lies in buffers that
outlive the step, so that captured graphs can read it; the layers find it by the cache's name.

Legend: T tokens, R requests, V blocks of a request, B blocks, P rows of a page.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheSpec
from vllm.v1.kv_cache_layout import KVCacheLayout

from ascend_recipes.ops import operations

if TYPE_CHECKING:
    from ascend_recipes.cache.compressed import CompressedCache, IndexKeyCache, WindowCache

NULL_BLOCK = 0
"""vLLM gives this block to no request."""

_SPLIT_NUMBERS = 1024
"""int32 numbers in which the operators keep how their work is split over cores."""


@dataclass
class CompressedSparseMetadata(AttentionMetadata):
    """One step as one cache sees it.

    Under a full graph vLLM pads the tokens but leaves the padding requests without any, and what
    operators give for tokens of nobody is undefined. Here each padding request has a share of
    them as its whole context, in the null block.
    """

    num_tokens: int
    """Tokens of the step, padding included."""
    query_start_R1: torch.Tensor
    """int32, first token of each request and the end."""
    start_R: torch.Tensor
    """int32, position of each request's first token of the step."""
    kv_lengths_R: torch.Tensor
    """int32, tokens of each request up to and including this step's."""
    block_table_RV: torch.Tensor
    """int32, blocks of the cache."""
    target_table_RV: torch.Tensor
    """The same with -1 for the null block, which padding requests share and nobody writes."""
    slots_T2: torch.Tensor | None = None
    """int32, block and row of each token in a window cache; block -1 is not written."""
    splits: dict[int, torch.Tensor] = field(default_factory=dict)
    """int32 `[1024]` by ratio: how the operator that reads the cache is split over cores."""


class CompressedSparseBuilder(AttentionMetadataBuilder[CompressedSparseMetadata]):
    """Builds the metadata of one kind of cache."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        scheduler = vllm_config.scheduler_config
        layers = vllm_config.compilation_config.static_forward_context
        self._caches: list[CompressedCache] = [layers[name] for name in layer_names]
        self._role = self._caches[0].shape.role
        self._rows = self._caches[0].shape.rows
        by_ratio = {cache.attention_ratio: cache for cache in self._caches}
        self._readers: dict[int, Any] = by_ratio
        requests = scheduler.max_num_seqs
        self._query_start = torch.zeros(requests + 1, dtype=torch.int32, device=device)
        self._kv_lengths = torch.zeros(requests, dtype=torch.int32, device=device)
        self._start = torch.zeros(requests, dtype=torch.int32, device=device)
        self._slots = torch.full(
            (scheduler.max_num_batched_tokens, 2), -1, dtype=torch.int32, device=device
        )
        self._target_table = torch.empty(0, dtype=torch.int32, device=device)
        self._splits = {
            ratio: torch.zeros(_SPLIT_NUMBERS, dtype=torch.int32, device=device)
            for ratio in by_ratio
        }

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> CompressedSparseMetadata:
        """Convert vLLM's metadata of one step.

        Args:
            common_prefix_len: unused; vLLM always passes 0.
            common_attn_metadata: lengths, block table and slots of the step.
            fast_build: whether this is a draft step; nothing differs.
        """
        common = common_attn_metadata
        requests = common.num_reqs
        query_start_R1, kv_lengths_R = self._lengths(common)
        start_R = self._start[:requests]
        torch.sub(kv_lengths_R, query_start_R1.diff(), out=start_R)
        metadata = CompressedSparseMetadata(
            num_tokens=common.num_actual_tokens,
            query_start_R1=query_start_R1,
            start_R=start_R,
            kv_lengths_R=kv_lengths_R,
            block_table_RV=common.block_table_tensor[:requests],
            target_table_RV=self._targets(common.block_table_tensor[:requests]),
        )
        if self._role == "window":
            metadata.slots_T2 = self._pairs(common.slot_mapping[: common.num_actual_tokens])
            metadata.splits = self._attention_splits(metadata)
        elif self._role == "index_keys":
            metadata.splits = self._indexer_splits(metadata)
        return metadata

    def _lengths(self, common: CommonAttentionMetadata) -> tuple[torch.Tensor, torch.Tensor]:
        """Starts and context lengths, padding tokens dealt to padding requests."""
        requests = common.num_reqs
        query_start_R1 = self._query_start[: requests + 1]
        kv_lengths_R = self._kv_lengths[:requests]
        bounds_R1 = common.query_start_loc_cpu[: requests + 1]
        missing = common.num_actual_tokens - int(bounds_R1[-1])
        if missing == 0:
            query_start_R1.copy_(common.query_start_loc[: requests + 1])
            kv_lengths_R.copy_(common.seq_lens[:requests])
            return query_start_R1, kv_lengths_R
        padding_R = bounds_R1.diff() == 0
        share, rest = divmod(missing, int(padding_R.sum()))
        assert rest == 0, f"{missing} padding tokens cannot be dealt to the padding requests"
        lengths_R = bounds_R1.diff() + padding_R * share
        query_start_R1[1:].copy_(lengths_R.cumsum(0))
        padding_R = padding_R.to(kv_lengths_R.device)
        kv_lengths_R.copy_(torch.where(padding_R, share, common.seq_lens[:requests]))
        return query_start_R1, kv_lengths_R

    def _targets(self, table_RV: torch.Tensor) -> torch.Tensor:
        """Block table of a cache whose rows the layers place themselves."""
        if self._role == "window":
            return table_RV
        if self._target_table.numel() == 0:
            columns = table_RV.shape[1]
            self._target_table = table_RV.new_empty(self._kv_lengths.shape[0], columns)
        targets_RV = self._target_table[: table_RV.shape[0]]
        targets_RV.copy_(table_RV.masked_fill(table_RV == NULL_BLOCK, -1))
        return targets_RV

    def _pairs(self, slots_T: torch.Tensor) -> torch.Tensor:
        return slot_pairs(slots_T, self._rows, out_T2=self._slots[: slots_T.shape[0]])

    def _attention_splits(self, step: CompressedSparseMetadata) -> dict[int, torch.Tensor]:
        for ratio, cache in self._readers.items():
            reader: WindowCache = cache
            split = operations.sparse_attention_metadata(
                query_start_R1=step.query_start_R1,
                kv_lengths_R=step.kv_lengths_R,
                num_heads=reader.num_heads,
                head_dim=reader.head,
                window=reader.shape.window,
                ratio=ratio,
                top_k=reader.top_k,
            )
            self._splits[ratio].copy_(split)
        return self._splits

    def _indexer_splits(self, step: CompressedSparseMetadata) -> dict[int, torch.Tensor]:
        for ratio, cache in self._readers.items():
            reader: IndexKeyCache = cache
            split = operations.lightning_indexer_metadata(
                query_start_R1=step.query_start_R1,
                kv_lengths_R=step.kv_lengths_R,
                num_heads=reader.index_heads,
                head_dim=reader.head,
                top_k=reader.top_k,
                ratio=ratio,
            )
            self._splits[ratio].copy_(split)
        return self._splits


def slot_pairs(
    slots_T: torch.Tensor, rows: int, *, out_T2: torch.Tensor | None = None
) -> torch.Tensor:
    """Block and row of each slot, int32 `[T, 2]`; a slot of -1 gives a negative block."""
    pairs_T2 = out_T2
    if pairs_T2 is None:
        pairs_T2 = slots_T.new_empty(slots_T.shape[0], 2, dtype=torch.int32)
    # Rounding down keeps -1 a negative block.
    pairs_T2[:, 0] = torch.div(slots_T, rows, rounding_mode="floor")
    pairs_T2[:, 1] = slots_T % rows
    return pairs_T2


class CompressedSparseBackend(AttentionBackend):
    """All caches of compressed sparse attention; the model's own layers compute."""

    forward_includes_kv_cache_update: bool = True

    @staticmethod
    def get_name() -> str:
        """`CUSTOM`: vLLM looks the name up in its enum, where only this one is free."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        """Never called: vLLM's attention layer, which asks, is not used."""
        raise TypeError("layers of compressed sparse attention compute by themselves")

    @staticmethod
    def get_builder_cls() -> type[CompressedSparseBuilder]:
        """The class that prepares a step."""
        return CompressedSparseBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(
        kv_cache_spec: KVCacheSpec | None = None,
    ) -> list[int | MultipleOf]:
        """Any: groups of different caches are never split, and pages are as the plan says."""
        return [MultipleOf(1)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Blocks outermost: only then does vLLM pack pages of different sizes into one block."""
        return (KVCacheLayout.BLHNC,)

    @classmethod
    def is_mla(cls) -> bool:
        """One latent vector serves as key and value."""
        return True
