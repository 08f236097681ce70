"""Lightning indexer: which compressed keys a token attends to.

Legend: T tokens, H hidden, Q query rank, N indexer heads, D indexer head dimension, K selected.
"""

from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.quantization import QuantizationConfig

from ascend_recipes.cache.compressed import IndexKeyCache
from ascend_recipes.memory.compressed import OVERLAPPED, CompressedCaches
from ascend_recipes.models.deepseek_v4.compressor import Compressor
from ascend_recipes.models.deepseek_v4.rotary import RotaryRows
from ascend_recipes.ops import operations


class LightningIndexer(nn.Module):
    """Scores compressed keys with small heads of their own; all heads on every rank."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        config: Any,
        caches: CompressedCaches,
        *,
        quant_config: QuantizationConfig | None,
        prefix: str,
        weights: str,
    ) -> None:
        super().__init__()
        self.num_heads, self.head = config.index_n_heads, config.index_head_dim
        self.top_k = config.index_topk
        self.weight_scale = (self.head * self.num_heads) ** -0.5
        self.wq_b = ReplicatedLinear(
            config.q_lora_rank,
            self.num_heads * self.head,
            bias=False,
            quant_config=quant_config,
            prefix=f"{weights}.wq_b",
        )
        self.weights_proj = ReplicatedLinear(
            config.hidden_size,
            self.num_heads,
            bias=False,
            quant_config=None,
            prefix=f"{weights}.weights_proj",
        )
        self.compressor = Compressor(
            vllm_config,
            config,
            caches,
            ratio=OVERLAPPED,
            index=True,
            prefix=f"{prefix}.compressor",
        )
        self.k_cache = IndexKeyCache(
            vllm_config,
            caches.index_rows(),
            prefix=f"{prefix}.k_cache",
            key_dtype=getattr(torch, caches.index_dtype),
            top_k=self.top_k,
            num_heads=self.num_heads,
            head=self.head,
        )

    def forward(
        self, x_TH: torch.Tensor, query_TQ: torch.Tensor, rows: RotaryRows, table: RotaryRows
    ) -> torch.Tensor | None:
        """Write the step's keys, then select.

        Args:
            x_TH: input of the attention block.
            query_TQ: normalized low-rank query, shared with the attention.
            rows: rotary rows of the tokens.
            table: rotary rows of every position.

        Returns:
            int32 `[T, K]`, -1 after the last one; none in a profiling run.
        """
        self._write_keys(x_TH, table)
        step = self.k_cache.metadata
        query_TQ = self.wq_b(query_TQ)[0]
        query_TND = query_TQ.view(-1, self.num_heads, self.head)
        operations.partial_rotary(query_TND, rows.cosine, rows.sine)
        query_TND = operations.hadamard_rotation(query_TND)
        weights_TN = self.weights_proj(x_TH)[0].float() * self.weight_scale
        if step is None:
            return None
        keys_BPD, scales_BP1 = self.k_cache.views()
        query_TND, scale_TN = operations.quantize_indexer_query(
            query_TND, cache_dtype=self.k_cache.key_dtype
        )
        return operations.lightning_indexer(
            query_TND,
            weights_TN,
            scale_TN,
            keys_BPD,
            scales_BP1,
            query_start_R1=step.query_start_R1,
            kv_lengths_R=step.kv_lengths_R,
            block_table_RV=step.block_table_RV,
            metadata=step.splits[OVERLAPPED],
            top_k=self.top_k,
            ratio=OVERLAPPED,
        )

    def _write_keys(self, x_TH: torch.Tensor, table: RotaryRows) -> None:
        compressed = self.compressor(x_TH, table, self.k_cache)
        if compressed is None:
            return
        keys_CD, slots = compressed
        keys_CD = operations.hadamard_rotation(keys_CD)
        operations.write_indexer_keys(keys_CD, *self.k_cache.views(), slots)
