"""The block drafter (DSpark): three stages propose several tokens at once, then a chain corrects.

Keys of the context come from the target's last layers; the stages run over the block only, one
token that is known and otherwise noise. What each position proposes gets a bias by the token
before it, so that choosing is the only part that goes token by token.

Legend: T tokens, X widths of the target's layers side by side, M streams, H hidden, R requests,
V vocabulary.
"""

from collections.abc import Iterable, Iterator, Mapping

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

from ascend_recipes.attention.compressed_sparse import slot_pairs
from ascend_recipes.layers.normalization import PlainRMSNorm
from ascend_recipes.models.deepseek_v4.attention import CompressedSparseAttention, Rotation
from ascend_recipes.models.deepseek_v4.layer import DecoderLayer, StreamHead
from ascend_recipes.models.deepseek_v4.loading import DRAFTER_PREFIX, fill_parameters
from ascend_recipes.models.deepseek_v4.rotary import rotary_table
from ascend_recipes.models.deepseek_v4.shapes import BLOCK_STAGES
from ascend_recipes.ops import operations

_EMBEDDING = "model.embed_tokens.weight"
_OUTPUT = "lm_head.weight"
_OWN_COPIES = {"embed.weight": _EMBEDDING, "head.weight": _OUTPUT}
"""Tensors that some files repeat for the drafter."""

_SHARED_MODULES = ("main_proj", "main_norm", "markov_head")
"""Modules of the whole drafter, which files keep with its first or last stage."""
_UNUSED_MODULE = "confidence_head"
"""Predicts whether a draft will be accepted; nothing here asks."""


class BlockAttention(CompressedSparseAttention):
    """Attention over the window before a block of drafts and the whole block."""

    def write_context(self, x_TH: torch.Tensor, rotation: Rotation, slots_T: torch.Tensor) -> None:
        """Cache the keys of tokens that the target has run over.

        Args:
            x_TH: what the drafter makes of the target's layers.
            rotation: rotary rows of the tokens.
            slots_T: places in this layer's cache; -1 is not written.
        """
        pairs_T2 = slot_pairs(slots_T, self.swa_cache.shape.rows)
        latent_TD = self.latent(x_TH, rotation.tokens)
        operations.write_latent_rows(latent_TD, self.swa_cache.pages_BPW, pairs_T2)

    def _attend(self, query_TND: torch.Tensor, indices_TK: torch.Tensor | None) -> torch.Tensor:
        step = self.swa_cache.metadata
        if step is None:
            return torch.zeros_like(query_TND)
        return operations.draft_block_attention(
            query_TND,
            self.swa_cache.pages_BPW,
            window_table_RV=step.block_table_RV,
            kv_lengths_R=step.kv_lengths_R,
            sinks_N=self.attn_sink,
            scale=self.scale,
            window=self.swa_cache.shape.window,
        )


class MarkovHead(nn.Module):
    """Bias of every token by the token before it, of low rank; whole on every rank."""

    def __init__(self, vocabulary: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocabulary, rank)
        self.markov_w2 = ReplicatedLinear(rank, vocabulary, bias=False, return_bias=False)

    def forward(self, token_ids_R: torch.Tensor) -> torch.Tensor:
        """`[R, V]`."""
        bias: torch.Tensor = self.markov_w2(self.markov_w1(token_ids_R))
        return bias


class BlockDraftModel(nn.Module):
    """Embedding, stages, and what stands before and behind them."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        config, quant_config = vllm_config.model_config.hf_config, vllm_config.quant_config
        self.config = config
        self.positions = vllm_config.model_config.max_model_len
        hidden, first = config.hidden_size, config.num_hidden_layers
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, hidden, prefix=maybe_prefix(prefix, "embed_tokens")
        )
        self.main_proj = ReplicatedLinear(
            hidden * len(config.dspark_target_layer_ids),
            hidden,
            bias=False,
            return_bias=False,
            quant_config=quant_config,
            prefix=f"{DRAFTER_PREFIX}0.main_proj",
        )
        self.main_norm = PlainRMSNorm(hidden, config.rms_norm_eps)
        self.layers = nn.ModuleList(
            DecoderLayer(
                vllm_config,
                config,
                ratio=0,
                hashed=False,
                quant_config=quant_config,
                prefix=maybe_prefix(prefix, f"layers.{first + stage}"),
                weights=f"{DRAFTER_PREFIX}{stage}",
                attention=BlockAttention,
            )
            for stage in range(getattr(config, "n_mtp_layers", BLOCK_STAGES))
        )
        self.head = StreamHead(config)
        self.markov_head = MarkovHead(config.vocab_size, config.dspark_markov_rank)

    def rotation(self, positions_T: torch.Tensor) -> Rotation:
        """Rotary rows of window layers."""
        table = rotary_table(
            self.config, ratio=1, positions=self.positions, device=positions_T.device
        )
        return Rotation(table.at(positions_T), table)


class AscendDeepseekV4BlockDrafter(nn.Module):
    """What the block proposer calls."""

    packed_modules_mapping = {"gate_up_proj": ["w1", "w3"]}

    has_own_embed_tokens = False
    """Whether the checkpoint holds an embedding of the drafter; else vLLM shares the target's."""
    has_own_lm_head = False

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        self.noise_token_id: int = config.dspark_noise_token_id
        self.model = BlockDraftModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(
            config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "lm_head")
        )
        self.logits_processor = LogitsProcessor(config.vocab_size)

    @property
    def cache_names(self) -> tuple[str, ...]:
        """Names of the stages' caches, first stage first."""
        return tuple(layer.attn.swa_cache.prefix for layer in self.model.layers)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings `[T, H]`."""
        embeddings: torch.Tensor = self.model.embed_tokens(input_ids)
        return embeddings

    def write_context(
        self,
        target_TX: torch.Tensor,
        positions_T: torch.Tensor,
        slots: Mapping[str, torch.Tensor],
    ) -> None:
        """Cache the keys of tokens that the target has run over, in every stage.

        Args:
            target_TX: means over the streams of the target's layers, side by side.
            positions_T: positions of the tokens.
            slots: places `[T]` by the name of the stage's cache.
        """
        context_TH = self.model.main_norm(self.model.main_proj(target_TX))
        rotation = self.model.rotation(positions_T)
        for layer in self.model.layers:
            layer.attn.write_context(context_TH, rotation, slots[layer.attn.swa_cache.prefix])

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states `[T, H]` of the blocks of all requests, before the output layer."""
        x_TH = self.embed_input_ids(input_ids)
        streams_TMH = x_TH.unsqueeze(1).repeat(1, self.config.hc_mult, 1)
        rotation = self.model.rotation(positions)
        for layer in self.model.layers:
            streams_TMH = layer(streams_TMH, input_ids, rotation)
        hidden_TH: torch.Tensor = self.model.head(streams_TMH)
        return hidden_TH

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits `[T, V]` without the bias by the token before."""
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def successor_bias(self, token_ids_R: torch.Tensor) -> torch.Tensor:
        """Bias `[R, V]` of the token that follows each."""
        bias: torch.Tensor = self.model.markov_head(token_ids_R)
        return bias

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Read the drafter's tensors by their published names.

        Raises:
            RecipeError: a tensor that no parameter takes, or a parameter that none fills.
        """
        filled = fill_parameters(self, _names(weights), optional={_EMBEDDING, _OUTPUT})
        self.has_own_embed_tokens = _EMBEDDING in filled
        self.has_own_lm_head = _OUTPUT in filled
        return filled


def _names(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Names of parameters: what belongs to the whole drafter lies with its first or last stage."""
    for name, tensor in weights:
        if not name.startswith(DRAFTER_PREFIX):
            continue
        stage, _, rest = name.removeprefix(DRAFTER_PREFIX).partition(".")
        module = rest.partition(".")[0]
        if module == _UNUSED_MODULE:
            continue
        if module in _SHARED_MODULES:
            yield f"model.{rest}", tensor
        elif module == "norm" or module.startswith("hc_head"):
            yield f"model.head.{rest}", tensor
        else:
            yield _OWN_COPIES.get(rest) or f"model.layers.{stage}.{rest}", tensor
