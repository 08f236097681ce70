"""Attention of one layer: a sliding window plus compressed keys, one head for keys and values.

Legend: T tokens, H hidden, Q query rank, N query heads of this rank, D head dimension, R rotated
part, G output groups of this rank, L output rank.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization import QuantizationConfig

from ascend_recipes.cache.compressed import CompressedCache, WindowCache
from ascend_recipes.layers.normalization import PlainRMSNorm
from ascend_recipes.memory.compressed import OVERLAPPED, CompressedCaches
from ascend_recipes.models.deepseek_v4.compressor import Compressor
from ascend_recipes.models.deepseek_v4.indexer import LightningIndexer
from ascend_recipes.models.deepseek_v4.rotary import RotaryRows
from ascend_recipes.ops import operations
from ascend_recipes.quantization.microscaled import BlockFloatLinear, GroupedBlockFloatLinear


@dataclass(frozen=True)
class Rotation:
    """Rotary rows of one kind of layer: of a step's tokens and of every position."""

    tokens: RotaryRows
    table: RotaryRows


class GroupedLinear(UnquantizedLinearMethod):
    """A weight for each group of inputs; the checkpoint stacks them as rows."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Turn the weight once to `[G, X, L]`, as the operator takes it."""
        weight_GLX = layer.weight.data.view(self.groups, -1, layer.weight.shape[-1])
        weight_GXL = weight_GLX.transpose(1, 2).contiguous()
        layer.weight = nn.Parameter(weight_GXL, requires_grad=False)

    def apply(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Multiply `[T, G, X]` to `[T, G, L]`."""
        output: torch.Tensor = operations.grouped_projection(x, layer.weight)
        return output


class CompressedSparseAttention(nn.Module):
    """Attention with compression ratio 1 (window only), 4 (with an indexer) or 128."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        config: Any,
        caches: CompressedCaches,
        *,
        ratio: int,
        quant_config: QuantizationConfig | None,
        prefix: str,
        weights: str,
    ) -> None:
        """Build, with the caches that the ratio calls for; names as in the layer."""
        super().__init__()
        ranks = get_tensor_model_parallel_world_size()
        self.ratio = max(ratio, 1)
        self.num_heads = config.num_attention_heads // ranks
        self.groups = config.o_groups // ranks
        self.head = config.head_dim
        self.scale = self.head**-0.5
        self.epsilon = config.rms_norm_eps
        self._build_projections(config, quant_config, weights)
        self.attn_sink = nn.Parameter(torch.empty(self.num_heads, dtype=torch.float32), False)
        self.attn_sink.weight_loader = _load_heads_of_rank  # type: ignore[attr-defined]
        self.register_buffer("unit_weight", torch.ones(self.head), persistent=False)
        self.compressor: Compressor | None = None
        self.indexer: LightningIndexer | None = None
        self.compressed_cache: CompressedCache | None = None
        if self.ratio > 1:
            self.compressor = Compressor(
                vllm_config,
                config,
                caches,
                ratio=ratio,
                index=False,
                prefix=f"{prefix}.compressor",
            )
            self.compressed_cache = CompressedCache(
                vllm_config, caches.compressed_rows(ratio), prefix=prefix, ratio=ratio
            )
        if self.ratio == OVERLAPPED:
            self.indexer = LightningIndexer(
                vllm_config,
                config,
                caches,
                quant_config=quant_config,
                prefix=f"{prefix}.indexer",
                weights=f"{weights}.indexer",
            )
        self.swa_cache = WindowCache(
            vllm_config,
            caches.window_rows(),
            prefix=f"{prefix}.swa_cache",
            ratio=self.ratio,
            num_heads=self.num_heads,
            head=self.head,
            top_k=config.index_topk if self.ratio == OVERLAPPED else 0,
        )

    def _build_projections(
        self, config: Any, quant_config: QuantizationConfig | None, weights: str
    ) -> None:
        hidden, query_rank = config.hidden_size, config.q_lora_rank
        width = config.num_attention_heads * self.head
        grouped = config.o_groups * config.o_lora_rank
        self.wq_a = ReplicatedLinear(
            hidden, query_rank, bias=False, quant_config=quant_config, prefix=f"{weights}.wq_a"
        )
        self.q_norm = PlainRMSNorm(query_rank, self.epsilon)
        self.wq_b = ColumnParallelLinear(
            query_rank, width, bias=False, quant_config=quant_config, prefix=f"{weights}.wq_b"
        )
        self.wkv = ReplicatedLinear(
            hidden, self.head, bias=False, quant_config=quant_config, prefix=f"{weights}.wkv"
        )
        self.kv_norm = PlainRMSNorm(self.head, self.epsilon)
        self.wo_a = ColumnParallelLinear(
            width // config.o_groups,
            grouped,
            bias=False,
            quant_config=quant_config,
            prefix=f"{weights}.wo_a",
        )
        in_blocks = isinstance(self.wo_a.quant_method, BlockFloatLinear)
        grouped_method = GroupedBlockFloatLinear if in_blocks else GroupedLinear
        self.wo_a.quant_method = grouped_method(self.groups)
        self.wo_b = RowParallelLinear(
            grouped, hidden, bias=False, quant_config=quant_config, prefix=f"{weights}.wo_b"
        )

    def forward(self, x_TH: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """Attend; every cache of the layer is written before it is read.

        Args:
            x_TH: normalized input, the same on every rank.
            rotation: rotary rows of this kind of layer.
        """
        rows = rotation.tokens
        low_TQ = self.q_norm(self.wq_a(x_TH)[0])
        query_TND = self.wq_b(low_TQ)[0].view(-1, self.num_heads, self.head)
        query_TND = operations.rms_norm(query_TND, self.unit_weight, epsilon=self.epsilon)
        operations.partial_rotary(query_TND, rows.cosine, rows.sine)
        latent_TD = self.latent(x_TH, rows)
        indices_TK = None
        if self.indexer is not None:
            indices_TK = self.indexer(x_TH, low_TQ, rows, rotation.table)
        self._write(x_TH, latent_TD, rotation.table)
        out_TND = self._attend(query_TND, indices_TK)
        operations.partial_rotary(out_TND, rows.cosine, rows.sine, inverse=True)
        return self._project(out_TND)

    def latent(self, x_TH: torch.Tensor, rows: RotaryRows) -> torch.Tensor:
        """What the window cache keeps of each token, `[T, D]`."""
        latent_TD: torch.Tensor = self.kv_norm(self.wkv(x_TH)[0])
        operations.partial_rotary(latent_TD.unsqueeze(1), rows.cosine, rows.sine)
        return latent_TD

    def _write(self, x_TH: torch.Tensor, latent_TD: torch.Tensor, table: RotaryRows) -> None:
        step = self.swa_cache.metadata
        if step is not None:
            operations.write_latent_rows(latent_TD, self.swa_cache.pages_BPW, step.slots_T2)
        if self.compressor is None or self.compressed_cache is None:
            return
        compressed = self.compressor(x_TH, table, self.compressed_cache)
        if compressed is not None:
            rows_CD, slots = compressed
            operations.write_latent_rows(rows_CD, self.compressed_cache.pages_BPW, slots)

    def _attend(self, query_TND: torch.Tensor, indices_TK: torch.Tensor | None) -> torch.Tensor:
        step = self.swa_cache.metadata
        if step is None:
            return torch.zeros_like(query_TND)
        compressed = self.compressed_cache
        place = compressed.metadata if compressed is not None else None
        return operations.sparse_attention_shared_kv(
            query_TND,
            self.swa_cache.pages_BPW,
            window_table_RV=step.block_table_RV,
            query_start_R1=step.query_start_R1,
            kv_lengths_R=step.kv_lengths_R,
            sinks_N=self.attn_sink,
            metadata=step.splits[self.ratio],
            scale=self.scale,
            window=self.swa_cache.shape.window,
            compressed_cache_BPW=compressed.pages_BPW if compressed is not None else None,
            compressed_table_RV=place.block_table_RV if place is not None else None,
            ratio=self.ratio,
            indices_TK=indices_TK,
        )

    def _project(self, out_TND: torch.Tensor) -> torch.Tensor:
        """Each group of heads to its own low rank, then all of them to the hidden size."""
        grouped_TGX = out_TND.reshape(out_TND.shape[0], self.groups, -1)
        low_TGL = self.wo_a.quant_method.apply(self.wo_a, grouped_TGX)
        output: torch.Tensor = self.wo_b(low_TGL.flatten(1))[0]
        return output


def _load_heads_of_rank(parameter: nn.Parameter, loaded_N: torch.Tensor) -> None:
    heads = parameter.shape[0]
    first = heads * get_tensor_model_parallel_rank()
    parameter.data.copy_(loaded_N[first : first + heads])
