"""The model class that vLLM loads for DeepSeek-V4.

Legend: T tokens, M streams, H hidden.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.utils import maybe_prefix
from vllm.sequence import IntermediateTensors

from ascend_recipes.models.deepseek_v4.attention import Rotation
from ascend_recipes.models.deepseek_v4.layer import DecoderLayer, StreamHead, layer_ratio
from ascend_recipes.models.deepseek_v4.loading import load_model_weights
from ascend_recipes.models.deepseek_v4.rotary import rotary_table
from ascend_recipes.models.deepseek_v4.tap import drafter_tap


class DeepseekV4Model(nn.Module):
    """Embedding, decoder layers over four streams, and their merging."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        self.positions = vllm_config.model_config.max_model_len
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, prefix=f"{prefix}.embed_tokens"
        )
        self.ratios = tuple(layer_ratio(config, i) for i in range(config.num_hidden_layers))
        self.layers = nn.ModuleList(
            DecoderLayer(
                vllm_config,
                config,
                ratio=ratio,
                hashed=index < config.num_hash_layers,
                quant_config=vllm_config.quant_config,
                prefix=f"{prefix}.layers.{index}",
                weights=f"layers.{index}",
            )
            for index, ratio in enumerate(self.ratios)
        )
        self.head = StreamHead(config)
        self.tap = drafter_tap(vllm_config)

    def forward(
        self,
        input_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        embeddings_TH: torch.Tensor | None,
    ) -> torch.Tensor:
        """Hidden states `[T, H]` before the output layer."""
        x_TH = self.embed_tokens(input_ids_T) if embeddings_TH is None else embeddings_TH
        streams_TMH = x_TH.unsqueeze(1).repeat(1, self.config.hc_mult, 1)
        rotations = {kind: self._rotation(kind, positions_T) for kind in self._kinds()}
        for index, (layer, ratio) in enumerate(zip(self.layers, self.ratios, strict=True)):
            streams_TMH = layer(streams_TMH, input_ids_T, rotations[ratio > 1])
            if self.tap is not None:
                self.tap.after_layer(index, streams_TMH)
        hidden: torch.Tensor = self.head(streams_TMH)
        return hidden

    def _kinds(self) -> set[bool]:
        return {ratio > 1 for ratio in self.ratios}

    def _rotation(self, compressed: bool, positions_T: torch.Tensor) -> Rotation:
        table = rotary_table(
            self.config,
            ratio=max(self.ratios) if compressed else 1,
            positions=self.positions,
            device=positions_T.device,
        )
        return Rotation(table.at(positions_T), table)


class AscendDeepseekV4ForCausalLM(nn.Module):
    """DeepSeek-V4 Flash and Pro."""

    packed_modules_mapping = {"gate_up_proj": ["w1", "w3"]}

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        self.model = DeepseekV4Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(
            config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "lm_head")
        )
        self.logits_processor = LogitsProcessor(config.vocab_size)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings `[T, H]`."""
        embeddings: torch.Tensor = self.model.embed_tokens(input_ids)
        return embeddings

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Hidden states `[T, H]`; pipeline stages are not supported."""
        assert intermediate_tensors is None, "the model is not split into pipeline stages"
        hidden: torch.Tensor = self.model(input_ids, positions, inputs_embeds)
        return hidden

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits `[T, vocabulary]`."""
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def get_mtp_target_hidden_states(self) -> torch.Tensor | None:
        """What the drafter reads of every token; none without a drafter."""
        return self.model.tap.buffer if self.model.tap is not None else None

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Read tensors by their published names.

        Raises:
            RecipeError: a tensor that no parameter takes, or a parameter that none fills.
        """
        return load_model_weights(self, weights)
