"""A model row from a `config.json`: for models that nobody has written a row for.

Only what a configuration says is used: kinds of layers, heads, experts, context. Nothing goes by
the model's name. Rules can judge such a model and the planner can size it; the native runtime
does not serve it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from ascend_recipes.errors import ExitCode, RecipeError, Source
from ascend_recipes.findings import Phrase, finding, phrase
from ascend_recipes.paths import display_path
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.complaints import PhrasedError
from ascend_recipes.schema.rows import CheckpointFacts, DrafterFacts, LayerFacts, ModelRow

Config = Mapping[str, Json]

_TEXT_KEYS = ("text_config", "language_config", "llm_config", "thinker_config")
"""Where composite configurations keep the language model."""

_SYNONYMS = {
    "num_experts": ("num_local_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_topk", "moe_top_k", "num_experts_per_token"),
    "max_position_embeddings": ("model_max_length", "seq_length", "max_seq_len"),
    "num_hidden_layers": ("n_layer", "num_layers"),
    "num_attention_heads": ("n_head",),
    "hidden_size": ("n_embd", "d_model"),
}
"""Field that our code reads -> other spellings of it."""

_FORMATS = ("bf16", "w8a8", "w4a8", "fp8_block", "w8a8_mxfp8", "w4a4_mxfp4")
"""Formats of which anybody may hold weights of any model: one checkpoint variant each."""

_MOST_DRAFTS = 15


def read_foreign(path: Path, layer_kinds: Iterable[str]) -> ModelRow:
    """The row of a `config.json` in a file.

    Args:
        path: the file.
        layer_kinds: every kind of layer that some backend serves.

    Raises:
        RecipeError: not JSON, or without the fields that any decoder has (exit code 2).
    """
    shown = display_path(path)
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return foreign_model(tree, layer_kinds, where=shown)
    except (ValueError, KeyError, AttributeError) as error:
        detail: Phrase | str = str(error)
        if isinstance(error, KeyError):
            detail = phrase("registry.no_field", name=str(error))
        if isinstance(error, PhrasedError):
            detail = error.told
        invalid = finding(
            "registry.invalid_config", source=Source(origin=shown), file=shown, said=detail
        )
        raise RecipeError((invalid,), ExitCode.USAGE) from None


def foreign_model(published: Config, layer_kinds: Iterable[str], *, where: str) -> ModelRow:
    """The row of a configuration as published.

    Args:
        published: content of `config.json`.
        layer_kinds: every kind of layer that some backend serves.
        where: where it came from, for the row's sources.

    Raises:
        KeyError: a field that any decoder has is missing.
    """
    key = next((name for name in _TEXT_KEYS if isinstance(published.get(name), dict)), None)
    config = _normalized(published, key)
    channelwise = next((kind for kind in layer_kinds if kind.endswith("_delta_attention")), "")
    layers = _layers(config, channelwise)
    architectures = published.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else "unknown"
    drafters = _drafters(config, layers)
    return ModelRow(
        about=f"a model known by its configuration only, {where}",
        family="foreign",
        architecture=str(named),
        model_type=str(published.get("model_type", "unknown")),
        text_config_key=key,
        native=False,
        native_formats=(),
        config=config,
        layers=tuple(LayerFacts(kind=kind, count=count) for kind, count in layers.items()),
        layer_pattern=", ".join(f"{kind} x{count}" for kind, count in layers.items()),
        traits=tuple(_traits(config, layers, published)),
        attention_kinds=(_attention_kind(layers),),
        heads_split=_split_fields(config),
        drafters=drafters,
        checkpoints={
            name: CheckpointFacts(format=name, drafters=tuple(drafters)) for name in _FORMATS
        },
        max_model_len=_whole(config, "max_position_embeddings"),
        sources=(where,),
    )


def _normalized(published: Config, key: str | None) -> dict[str, Json]:
    """Fields of the language model under the names that our code reads."""
    inner = published[key] if key else {}
    assert isinstance(inner, dict)
    outer = {name: value for name, value in published.items() if not isinstance(value, dict)}
    whole = {**(outer if key else published), **inner}
    config: dict[str, Json] = {name: item for name, item in whole.items() if item is not None}
    for field, others in _SYNONYMS.items():
        found = [config[name] for name in others if name in config]
        if field not in config and found:
            config[field] = found[0]
    heads = _whole(config, "num_attention_heads")
    if config.get("num_key_value_heads") is None:
        config["num_key_value_heads"] = heads
    if config.get("head_dim") is None:
        config["head_dim"] = _whole(config, "hidden_size") // heads
    if "n_routed_experts" in config and not config["n_routed_experts"]:
        del config["n_routed_experts"]
    config.setdefault("max_position_embeddings", 4096)
    return config


def _layers(config: Config, channelwise: str) -> dict[str, int]:
    """Kinds of decoder layers and how many there are of each.

    Args:
        config: fields of the language model.
        channelwise: name of the kind whose states decay by channel.
    """
    total = _whole(config, "num_hidden_layers")
    ratios, kinds = config.get("compress_ratios"), config.get("layer_types")
    linear = config.get("linear_attn_config")
    if isinstance(ratios, list):
        named = [f"compressed_{ratio}" if ratio else "sliding_attention" for ratio in ratios]
        return dict(Counter(named[:total]))
    if isinstance(linear, dict):
        full = linear.get("full_attn_layers")
        latent = len(full) if isinstance(full, list) else total // 4
        return {channelwise: total - latent, "latent_attention": latent}
    if "linear_num_value_heads" in config:
        interval = config.get("full_attention_interval", 4)
        states = [kind == "linear_attention" for kind in kinds] if isinstance(kinds, list) else []
        every = interval if isinstance(interval, int) and interval else 4
        count = sum(states) if states else total - total // every
        return {"linear_attention": count, "full_attention": total - count}
    if "kv_lora_rank" in config and "index_topk" in config:
        return {"indexed_latent_attention": total}
    return {"latent_attention" if "kv_lora_rank" in config else "full_attention": total}


def _attention_kind(layers: Mapping[str, int]) -> str:
    if any(kind.startswith("compressed") for kind in layers):
        return "dsa"
    if len(layers) > 1:
        return "hybrid"
    kinds = {"indexed_latent_attention": "sfa", "latent_attention": "mla"}
    return kinds.get(next(iter(layers)), "full")


def _traits(config: Config, layers: Mapping[str, int], published: Config) -> list[str]:
    experts = config.get("n_routed_experts") or config.get("num_experts")
    shared = ("n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size")
    present = {
        "moe": bool(experts),
        "shared_expert": bool(experts) and any(config.get(name) for name in shared),
        "latent_attention": "kv_lora_rank" in config,
        "lightning_indexer": "index_topk" in config,
        "compressed_context": "compress_ratios" in config,
        "gated_delta_net": "linear_num_value_heads" in config,
        "recurrent_state": len(layers) > 1 and "compress_ratios" not in config,
        "vision": "vision_config" in published,
        "encoder_decoder": published.get("is_encoder_decoder") is True,
    }
    kinds = [kind for kind in layers if kind.endswith("_delta_attention")]
    return [name for name, holds in present.items() if holds] + kinds


def _split_fields(config: Config) -> tuple[str, ...]:
    names = ["num_attention_heads", "linear_num_key_heads", "linear_num_value_heads", "o_groups"]
    return tuple(name for name in names if config.get(name))


def _drafters(config: Config, layers: Mapping[str, int]) -> dict[str, DrafterFacts]:
    """The layers of a checkpoint that propose tokens, where the configuration counts some."""
    names = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    count = next((config[name] for name in names if config.get(name)), 0)
    if not isinstance(count, int) or not count:
        return {}
    kind = next((name for name in layers if not keeps_state(name)), None)
    facts = DrafterFacts(
        architecture="unknown", layers=count, layer_kind=kind, max_draft_tokens=_MOST_DRAFTS
    )
    return {"mtp": facts}


def keeps_state(kind: str) -> bool:
    """Whether layers of a kind keep a recurrent state in place of tokens."""
    return kind == "linear_attention" or kind.endswith("_delta_attention")


def _whole(config: Config, field: str) -> int:
    value = config[field]
    if not isinstance(value, int):
        raise PhrasedError(phrase("registry.not_whole", field=field, value=repr(value)))
    return value
