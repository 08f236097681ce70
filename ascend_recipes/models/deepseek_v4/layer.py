"""Decoder layer: attention and experts between hyper-connections.

Legend: T tokens, M streams, H hidden.
"""

from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.quantization import QuantizationConfig

from ascend_recipes.apply import current_plan
from ascend_recipes.layers.normalization import PlainRMSNorm
from ascend_recipes.memory.compressed import CompressedCaches
from ascend_recipes.models.deepseek_v4.attention import CompressedSparseAttention, Rotation
from ascend_recipes.models.deepseek_v4.experts import ExpertBlock
from ascend_recipes.ops import operations


class DecoderLayer(nn.Module):
    """Two blocks, each fed by a mix of the streams and mixed back into them."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        config: Any,
        *,
        ratio: int,
        hashed: bool,
        quant_config: QuantizationConfig | None,
        prefix: str,
        weights: str,
        attention: type[CompressedSparseAttention] = CompressedSparseAttention,
    ) -> None:
        """Build.

        Args:
            vllm_config: the engine's configuration.
            config: the model's configuration.
            ratio: compression of the attention.
            hashed: whether tokens are routed by a table.
            quant_config: format of the checkpoint.
            prefix: name of the layer in vLLM, by which its caches are found.
            weights: name of the layer in the checkpoint.
            attention: class of the attention; a drafter's differs.
        """
        super().__init__()
        self.epsilon = config.rms_norm_eps
        self.mixing_epsilon = config.hc_eps
        self.iterations = config.hc_sinkhorn_iters
        self.attn = attention(
            vllm_config,
            config,
            planned_caches(vllm_config, config),
            ratio=ratio,
            quant_config=quant_config,
            prefix=f"{prefix}.attn",
            weights=f"{weights}.attn",
        )
        self.ffn = ExpertBlock(config, quant_config, hashed=hashed, weights=f"{weights}.ffn")
        self.attn_norm = PlainRMSNorm(config.hidden_size, self.epsilon)
        self.ffn_norm = PlainRMSNorm(config.hidden_size, self.epsilon)
        rows, columns = (2 + config.hc_mult) * config.hc_mult, config.hc_mult * config.hidden_size
        for block in ("attn", "ffn"):
            self.register_parameter(f"hc_{block}_fn", _float32(rows, columns))
            self.register_parameter(f"hc_{block}_base", _float32(rows))
            self.register_parameter(f"hc_{block}_scale", _float32(3))

    def forward(
        self, streams_TMH: torch.Tensor, input_ids_T: torch.Tensor, rotation: Rotation
    ) -> torch.Tensor:
        """Apply to the streams `[T, M, H]`."""
        x_TH, post_TM, mix_TMM = self._enter(
            streams_TMH, self.hc_attn_fn, self.hc_attn_scale, self.hc_attn_base
        )
        y_TH = self.attn(self.attn_norm(x_TH), rotation)
        streams_TMH = operations.hyper_connection_post(y_TH, streams_TMH, post_TM, mix_TMM)
        x_TH, post_TM, mix_TMM = self._enter(
            streams_TMH, self.hc_ffn_fn, self.hc_ffn_scale, self.hc_ffn_base
        )
        y_TH = self.ffn(self.ffn_norm(x_TH), input_ids_T)
        return operations.hyper_connection_post(y_TH, streams_TMH, post_TM, mix_TMM)

    def _enter(
        self,
        streams_TMH: torch.Tensor,
        weight_FX: nn.Parameter,
        scale_3: nn.Parameter,
        base_F: nn.Parameter,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return operations.hyper_connection_pre(
            streams_TMH,
            weight_FX,
            scale_3,
            base_F,
            iterations=self.iterations,
            norm_epsilon=self.epsilon,
            epsilon=self.mixing_epsilon,
        )


class StreamHead(nn.Module):
    """Merges the streams and normalizes; its parameters belong to the model that holds it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.epsilon = config.rms_norm_eps
        self.mixing_epsilon = config.hc_eps
        streams, hidden = config.hc_mult, config.hidden_size
        self.hc_head_fn = _float32(streams, streams * hidden)
        self.hc_head_base = _float32(streams)
        self.hc_head_scale = _float32(1)
        self.norm = PlainRMSNorm(hidden, self.epsilon)

    def forward(self, streams_TMH: torch.Tensor) -> torch.Tensor:
        """`[T, M, H]` to `[T, H]`."""
        merged_TH = operations.hyper_connection_head(
            streams_TMH,
            self.hc_head_fn,
            self.hc_head_scale,
            self.hc_head_base,
            norm_epsilon=self.epsilon,
            epsilon=self.mixing_epsilon,
        )
        normed: torch.Tensor = self.norm(merged_TH)
        return normed


def planned_caches(vllm_config: VllmConfig, config: Any) -> CompressedCaches:
    """Geometry of the caches: the plan's, because vLLM changes the block size after planning."""
    plan = current_plan()
    return CompressedCaches(
        hardware=plan.hardware,
        block=plan.cache.kernel_block_size,
        head=config.head_dim,
        index_head=config.index_head_dim,
        window=config.sliding_window,
        dtype=str(vllm_config.model_config.dtype).removeprefix("torch."),
        float_index=plan.features.get("cache.precision") == "float",
    )


def layer_ratio(config: Any, index: int) -> int:
    """Compression ratio of a layer; entries behind the list, of a drafter, are window layers."""
    ratios = config.compress_ratios
    return int(ratios[index]) if index < min(len(ratios), config.num_hidden_layers) else 0


def _float32(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=torch.float32), requires_grad=False)
