"""Compressor: one key for every 4 or 128 tokens.

Legend: T tokens, H hidden, D head dimension, E = coff * D with coff 2 at ratio 4 and 1 at 128,
C compressed rows, r ratio.
"""

from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import ReplicatedLinear

from ascend_recipes.cache.compressed import CompressedCache
from ascend_recipes.memory.compressed import OVERLAPPED, CompressedCaches
from ascend_recipes.models.deepseek_v4.rotary import RotaryRows
from ascend_recipes.ops import operations
from ascend_recipes.ops.compressed_attention import compressed_rows


class Compressor(nn.Module):
    """Pools keys by learned scores; keeps what an unfinished block needs in a cache of states."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        config: Any,
        caches: CompressedCaches,
        *,
        ratio: int,
        index: bool,
        prefix: str,
    ) -> None:
        """Build.

        Args:
            vllm_config: the engine's configuration.
            config: the model's configuration.
            caches: geometry of the caches.
            ratio: r.
            index: whether this is the indexer's compressor, with a head of its own size.
            prefix: name of the module.
        """
        super().__init__()
        self.ratio = ratio
        self.epsilon = config.rms_norm_eps
        head = caches.index_head if index else caches.head
        width = 2 * head if ratio == OVERLAPPED else head
        # Never quantized: the operator takes the weights themselves.
        self.wkv = ReplicatedLinear(
            config.hidden_size, width, bias=False, quant_config=None, prefix=f"{prefix}.wkv"
        )
        self.wgate = ReplicatedLinear(
            config.hidden_size, width, bias=False, quant_config=None, prefix=f"{prefix}.wgate"
        )
        self.ape = nn.Parameter(torch.empty(ratio, width, dtype=torch.float32), False)
        # The operator of A5 takes this in float32, that of the others in the type of its input.
        kept = torch.float32 if caches.hardware == "a5" else None
        self.norm = nn.ParameterDict({"weight": nn.Parameter(torch.empty(head, dtype=kept), False)})
        self.state_cache = CompressedCache(
            vllm_config,
            caches.state_rows(ratio, index=index),
            prefix=f"{prefix}.state_cache",
            ratio=ratio,
        )

    def forward(
        self, x_TH: torch.Tensor, table: RotaryRows, target: CompressedCache
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Compress the tokens of a step.

        Args:
            x_TH: input of the attention block.
            table: rotary rows of every position.
            target: cache that will hold the rows; only its page geometry is used.

        Returns:
            `[C, D]` keys and their slots, negative where there is no key; none in a profiling
            run.
        """
        states, place = self.state_cache.metadata, target.metadata
        if states is None or place is None:
            return None
        requests = states.start_R.shape[0]
        cosine_CR, sine_CR, slots = operations.compressor_metadata(
            table.cosine,
            table.sine,
            query_start_R1=place.query_start_R1,
            start_R=place.start_R,
            block_table_RV=place.target_table_RV,
            block_size=target.shape.rows,
            ratio=self.ratio,
            num_rows=compressed_rows(x_TH.shape[0], requests, self.ratio),
            flat=False,
        )
        rows_CD = operations.compressor(
            x_TH,
            self.wkv.weight,
            self.wgate.weight,
            self.ape,
            self.norm["weight"],
            self.state_cache.pages_BPW,
            cosine_CR,
            sine_CR,
            block_table_RV=states.block_table_RV,
            query_start_R1=states.query_start_R1,
            start_R=states.start_R,
            ratio=self.ratio,
            epsilon=self.epsilon,
        )
        return rows_CD, slots
