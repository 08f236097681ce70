"""The multi-token-prediction layer as a drafter.

It takes the target's streams before they are merged, and returns streams of its own, which the
next draft step takes. Its one layer attends within the window and never routes by token.

Legend: T tokens, M streams, H hidden.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.utils import maybe_prefix
from vllm.sequence import IntermediateTensors

from ascend_recipes.layers.normalization import PlainRMSNorm
from ascend_recipes.models.deepseek_v4.attention import Rotation
from ascend_recipes.models.deepseek_v4.layer import DecoderLayer, StreamHead
from ascend_recipes.models.deepseek_v4.loading import DRAFTER_PREFIX, fill_parameters
from ascend_recipes.models.deepseek_v4.rotary import rotary_table

_EMBEDDING = "model.embed_tokens.weight"
_OUTPUT = "lm_head.weight"
_OWN_COPIES = {"emb.tok_emb.weight": _EMBEDDING, "head.weight": _OUTPUT}
"""Tensors that some ModelSlim files repeat for the drafter."""

_STAGE_MODULES = ("enorm", "hnorm", "e_proj", "h_proj")


class DraftStage(nn.Module):
    """Joins the next token's embedding with the streams and runs one layer over them."""

    def __init__(self, vllm_config: VllmConfig, config: Any, *, prefix: str, weights: str) -> None:
        super().__init__()
        hidden, quant_config = config.hidden_size, vllm_config.quant_config
        self.enorm = PlainRMSNorm(hidden, config.rms_norm_eps)
        self.hnorm = PlainRMSNorm(hidden, config.rms_norm_eps)
        self.e_proj = ReplicatedLinear(
            hidden, hidden, bias=False, quant_config=quant_config, prefix=f"{weights}.e_proj"
        )
        self.h_proj = ReplicatedLinear(
            hidden, hidden, bias=False, quant_config=quant_config, prefix=f"{weights}.h_proj"
        )
        self.block = DecoderLayer(
            vllm_config,
            config,
            ratio=0,
            hashed=False,
            quant_config=quant_config,
            prefix=f"{prefix}.block",
            weights=weights,
        )
        self.head = StreamHead(config)

    def forward(
        self,
        embeddings_TH: torch.Tensor,
        streams_TMH: torch.Tensor,
        input_ids_T: torch.Tensor,
        rotation: Rotation,
    ) -> torch.Tensor:
        """Streams `[T, M, H]` of the next position."""
        streams, hidden = streams_TMH.shape[1:]
        token_TH = self.e_proj(self.enorm(embeddings_TH))[0]
        # One row a stream: linear layers and their quantization take matrices.
        flat = self.h_proj(self.hnorm(streams_TMH).flatten(0, 1))[0]
        joined_TMH = flat.view(-1, streams, hidden) + token_TH.unsqueeze(1)
        output: torch.Tensor = self.block(joined_TMH, input_ids_T, rotation)
        return output


class DraftModel(nn.Module):
    """Embedding and stages; the stages follow the target's layers in number."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        self.positions = vllm_config.model_config.max_model_len
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "embed_tokens")
        )
        first = config.num_hidden_layers
        numbers = range(first, first + config.num_nextn_predict_layers)
        self.layers = nn.ModuleDict(
            {
                str(number): DraftStage(
                    vllm_config,
                    config,
                    prefix=maybe_prefix(prefix, f"layers.{number}"),
                    weights=f"{DRAFTER_PREFIX}{number - first}",
                )
                for number in numbers
            }
        )

    def stage(self, step: int) -> DraftStage:
        """Stage of a draft step; they take turns."""
        number = self.config.num_hidden_layers + step % len(self.layers)
        stage = self.layers[str(number)]
        assert isinstance(stage, DraftStage)
        return stage


class AscendDeepseekV4Drafter(nn.Module):
    """What vLLM's proposer calls."""

    packed_modules_mapping = {"gate_up_proj": ["w1", "w3"]}

    has_own_embed_tokens = False
    """Whether the checkpoint holds an embedding of the drafter; else vLLM shares the target's."""
    has_own_lm_head = False

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        self.model = DraftModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
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
        hidden_states: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        spec_step_idx: int = 0,
    ) -> torch.Tensor:
        """One draft step.

        Args:
            input_ids: `[T]`, the tokens after those that `hidden_states` belong to.
            positions: `[T]`.
            hidden_states: `[T, M * H]`, streams of the target or of the last step.
            intermediate_tensors: none; there are no pipeline stages.
            inputs_embeds: embeddings, if vLLM computed them already.
            spec_step_idx: number of the step.

        Returns:
            `[T, M * H]` streams.
        """
        config = self.config
        embeddings_TH = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        # The first position has no streams before it; the drafter was trained without it.
        embeddings_TH = embeddings_TH.masked_fill((positions == 0).unsqueeze(1), 0)
        table = rotary_table(
            config, ratio=1, positions=self.model.positions, device=positions.device
        )
        streams_TMH = self.model.stage(spec_step_idx)(
            embeddings_TH,
            hidden_states.view(-1, config.hc_mult, config.hidden_size),
            input_ids,
            Rotation(table.at(positions), table),
        )
        flat: torch.Tensor = streams_TMH.flatten(1)
        return flat

    def compute_logits(
        self, hidden_states: torch.Tensor, spec_step_idx: int = 0
    ) -> torch.Tensor | None:
        """Logits of streams `[T, M * H]`."""
        streams_TMH = hidden_states.view(-1, self.config.hc_mult, self.config.hidden_size)
        merged_TH = self.model.stage(spec_step_idx).head(streams_TMH)
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, merged_TH)
        return logits

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Read the drafter's tensors by their published names.

        Raises:
            RecipeError: a tensor that no parameter takes, or a parameter that none fills.
        """
        filled = fill_parameters(self, self._names(weights), optional={_EMBEDDING, _OUTPUT})
        self.has_own_embed_tokens = _EMBEDDING in filled
        self.has_own_lm_head = _OUTPUT in filled
        return filled

    def _names(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            if not name.startswith(DRAFTER_PREFIX):
                continue
            index, _, rest = name.removeprefix(DRAFTER_PREFIX).partition(".")
            stage = f"model.layers.{self.config.num_hidden_layers + int(index)}"
            yield _OWN_COPIES.get(rest) or f"{stage}.{_stage_name(rest)}", tensor


def _stage_name(rest: str) -> str:
    """Name within the stage: the layer's tensors are those of its block."""
    module = rest.partition(".")[0]
    if module in _STAGE_MODULES:
        return rest
    if module == "norm" or module.startswith("hc_head"):
        return f"head.{rest}"
    return f"block.{rest}"
