"""Models that stand in for one that no row knows, so that only what holds for all is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from ascend_recipes.registry.foreign import foreign_model
from ascend_recipes.registry.load import Registry, Table, load_registry
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.rows import ModelRow

_LATENT: Mapping[str, Json] = {
    "architectures": ["LatentForCausalLM"],
    "model_type": "latent",
    "num_hidden_layers": 4,
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "moe_intermediate_size": 1024,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "max_position_embeddings": 10_000_000,
    "vocab_size": 32000,
    "num_nextn_predict_layers": 1,
}

STAND_INS: Mapping[str, Mapping[str, Json]] = {
    # Tiny, so that no size is too large for a device; head counts that most sizes divide.
    "dense": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 4096,
        "intermediate_size": 4096,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "max_position_embeddings": 10_000_000,
        "vocab_size": 32000,
        "num_nextn_predict_layers": 1,
    },
    # Latent attention, with and without an index: half of the models that people serve.
    "latent": _LATENT,
    "indexed": {**_LATENT, "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128},
    "experts": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_hidden_layers": 4,
        "hidden_size": 2048,
        "intermediate_size": 4096,
        "moe_intermediate_size": 1024,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "vision_config": {},
        "max_position_embeddings": 10_000_000,
        "vocab_size": 32000,
        "num_nextn_predict_layers": 1,
    },
}


class _WithStandIns(Table[ModelRow]):
    """The registry's models, and the stand-ins behind them."""

    def __init__(self, known: Table[ModelRow], rows: Mapping[str, ModelRow]) -> None:
        super().__init__("models", ModelRow, {name: Path() for name in rows})
        self._known = known
        self._rows.update(rows)

    def __getitem__(self, key: str) -> ModelRow:
        return self._rows[key] if key in self._rows else self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._known, *self._rows))


@cache
def registry_with_stand_ins() -> Registry:
    """The registry, with the stand-ins among its models."""
    registry = load_registry()
    kinds = [kind for row in registry.backends.values() for kind in row.layer_kinds]
    rows = {
        name: foreign_model(config, kinds, where="a stand-in") for name, config in STAND_INS.items()
    }
    return replace(registry, models=_WithStandIns(registry.models, rows))
