"""Parameters of a model by component, counted from its configuration.

Shapes are those of the published checkpoints; each counter says which fields it reads. What decides
is the kind of a layer and the fields there are, never a model's name.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ascend_recipes.schema.base import Json

Precision: TypeAlias = Literal["linear", "expert", "float", "float32", "int32"]
"""`linear` and `expert` take the checkpoint's format; the others stay what they are."""

Split: TypeAlias = Literal["tp", "ep", "shared", "none"]
"""Over which ranks: tensor parallel, experts, as the recipe says of the shared expert, or none."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Parameters that are stored and split alike."""

    component: str
    parameters: int
    precision: Precision = "linear"
    split: Split = "tp"

    def times(self, count: int, component: str = "") -> "Part":
        """The same in `count` layers, counted under another component if one is named."""
        return Part(
            component=component or self.component,
            parameters=self.parameters * count,
            precision=self.precision,
            split=self.split,
        )


class Sizes:
    """Whole numbers of a configuration."""

    def __init__(self, config: Mapping[str, Json]) -> None:
        self._config = config

    def __getitem__(self, field: str) -> int:
        value = self._config[field]
        assert isinstance(value, int), f"{field} is {value!r}"
        return value

    def __contains__(self, field: str) -> bool:
        return field in self._config

    def first(self, *fields: str, default: int = 0) -> int:
        """The first field that is there: models name the same size differently."""
        return next((self[field] for field in fields if field in self), default)

    def flag(self, field: str) -> bool:
        """A boolean field, false if absent."""
        return self._config.get(field) is True

    def nested(self, field: str) -> "Sizes":
        """Sizes of a nested mapping."""
        value = self._config[field]
        assert isinstance(value, dict), f"{field} is {value!r}"
        return Sizes(value)


def model_parts(config: Mapping[str, Json], layers: Mapping[str, int]) -> tuple[Part, ...]:
    """Everything of the language model but its drafter.

    Args:
        config: fields of the language model.
        layers: kind of layer -> how many.
    """
    sizes = Sizes(config)
    parts = [part.times(count) for kind, count in layers.items() for part in attention(sizes, kind)]
    total = sum(layers.values())
    dense = sizes.first("first_k_dense_replace") if _has_experts(sizes) else total
    parts += [part.times(dense) for part in _dense(sizes)] if dense else []
    parts += [part.times(total - dense) for part in _mixture(sizes)]
    parts += [part.times(total) for part in _around(sizes)]
    parts += _hashed(sizes, total - dense)
    vocabulary = sizes["vocab_size"] * sizes["hidden_size"]
    parts.append(Part(component="embedding", parameters=vocabulary, precision="float"))
    if not sizes.flag("tie_word_embeddings"):
        parts.append(Part(component="output head", parameters=vocabulary, precision="float"))
    parts.append(_copied("norms", sizes["hidden_size"]))
    parts += _stream_head(sizes)
    return tuple(parts)


def drafter_parts(config: Mapping[str, Json], kind: str, count: int) -> tuple[Part, ...]:
    """A drafter of `count` decoder layers, each with a projection of its two inputs.

    Embedding and output head are the target's.
    """
    sizes = Sizes(config)
    hidden = sizes["hidden_size"]
    layer = [*attention(sizes, kind), *_around(sizes), *_stream_head(sizes)]
    layer += _mixture(sizes) if _has_experts(sizes) else _dense(sizes)
    layer += [
        Part(component="projection", parameters=2 * hidden * hidden, split="none"),
        _copied("norms", 3 * hidden),
    ]
    return tuple(part.times(count, "drafter") for part in layer)


def attention(sizes: Sizes, kind: str) -> tuple[Part, ...]:
    """Attention or state mixing of one layer of a kind.

    Raises:
        KeyError: a kind that nobody has counted.
    """
    channelwise = kind.endswith("delta_attention")
    return tuple(_channel_delta(sizes) if channelwise else _ATTENTION[kind](sizes))


def _grouped_query(s: Sizes) -> Iterator[Part]:
    hidden, head = s["hidden_size"], s["head_dim"]
    queries = s["num_attention_heads"] * head * (2 if s.flag("attn_output_gate") else 1)
    keys = 2 * s["num_key_value_heads"] * head
    output = s["num_attention_heads"] * head
    yield Part(component="attention", parameters=hidden * (queries + keys + output))
    yield _copied("norms", 2 * head)


def _delta_net(s: Sizes) -> Iterator[Part]:
    hidden, heads = s["hidden_size"], s["linear_num_value_heads"]
    value = heads * s["linear_value_head_dim"]
    channels = 2 * s["linear_num_key_heads"] * s["linear_key_head_dim"] + value
    yield Part(component="linear attention", parameters=hidden * (channels + 2 * value))
    rest = 2 * hidden * heads + channels * s["linear_conv_kernel_dim"] + heads
    yield Part(component="linear attention", parameters=rest, precision="float")
    yield Part(component="linear attention", parameters=heads, precision="float32")
    yield _copied("norms", s["linear_value_head_dim"])


def _channel_delta(s: Sizes) -> Iterator[Part]:
    hidden, inner = s["hidden_size"], s.nested("linear_attn_config")
    heads, head = inner["num_heads"], inner["head_dim"]
    width = heads * head
    name = "linear attention"
    yield Part(component=name, parameters=hidden * 5 * width + head * width)
    rest = hidden * heads + 3 * width * inner["short_conv_kernel_size"] + width
    yield Part(component=name, parameters=rest, precision="float")
    yield Part(component=name, parameters=heads, precision="float32")
    yield _copied(name, hidden * head)
    yield _copied("norms", head)


def _latent(s: Sizes) -> Iterator[Part]:
    hidden, heads = s["hidden_size"], s["num_attention_heads"]
    latent, query = s["kv_lora_rank"], s["q_lora_rank"]
    rotary, values = s["qk_rope_head_dim"], heads * s["v_head_dim"]
    yield Part(component="attention", parameters=hidden * (query + latent + rotary), split="none")
    queries = query * heads * (s["qk_nope_head_dim"] + rotary)
    gate = hidden * values if s.flag("mla_use_output_gate") else 0
    yield Part(component="attention", parameters=queries + values * hidden + gate)
    expansion = latent * heads * (s["qk_nope_head_dim"] + s["v_head_dim"])
    yield Part(component="attention", parameters=expansion, precision="float")
    yield _copied("norms", query + latent)


def _indexed_latent(s: Sizes) -> Iterator[Part]:
    yield from _latent(s)
    head = s["index_head_dim"]
    queries = s["q_lora_rank"] * s["index_n_heads"] * head
    yield Part(component="indexer", parameters=queries + s["hidden_size"] * head, split="none")
    yield _copied("indexer", s["hidden_size"] * s["index_n_heads"] + 2 * head)


def _window(s: Sizes) -> Iterator[Part]:
    hidden, width = s["hidden_size"], s["num_attention_heads"] * s["head_dim"]
    query, out = s["q_lora_rank"], s["o_lora_rank"]
    yield Part(component="attention", parameters=hidden * (query + s["head_dim"]), split="none")
    projections = query * width + out * width + s["o_groups"] * out * hidden
    yield Part(component="attention", parameters=projections)
    sinks = s["num_attention_heads"]
    yield Part(component="attention", parameters=sinks, precision="float32")
    yield _copied("norms", query + s["head_dim"])


def _compressed_4(s: Sizes) -> Iterator[Part]:
    yield from _window(s)
    yield from _compressor(s, s["head_dim"], overlap=2, ratio=4, name="compressor")
    head = s["index_head_dim"]
    queries = s["q_lora_rank"] * s["index_n_heads"] * head
    yield Part(component="indexer", parameters=queries, split="none")
    yield _copied("indexer", s["hidden_size"] * s["index_n_heads"])
    yield from _compressor(s, head, overlap=2, ratio=4, name="indexer")


def _compressed_128(s: Sizes) -> Iterator[Part]:
    yield from _window(s)
    yield from _compressor(s, s["head_dim"], overlap=1, ratio=128, name="compressor")


def _compressor(s: Sizes, head: int, *, overlap: int, ratio: int, name: str) -> Iterator[Part]:
    width = overlap * head
    yield _copied(name, 2 * s["hidden_size"] * width + head)
    yield Part(component=name, parameters=ratio * width, precision="float32", split="none")


_ATTENTION: dict[str, Callable[[Sizes], Iterator[Part]]] = {
    "full_attention": _grouped_query,
    "linear_attention": _delta_net,
    "latent_attention": _latent,
    "shared_index_attention": _latent,
    "indexed_latent_attention": _indexed_latent,
    "sliding_attention": _window,
    "compressed_4": _compressed_4,
    "compressed_128": _compressed_128,
}


def _has_experts(s: Sizes) -> bool:
    return expert_count(s) > 0


def expert_count(s: Sizes) -> int:
    """Routed experts of a layer; 0 for a dense model."""
    return s.first("n_routed_experts", "num_experts")


def _dense(s: Sizes) -> list[Part]:
    if "intermediate_size" not in s:
        return []
    size = 3 * s["hidden_size"] * s["intermediate_size"]
    return [Part(component="feed-forward", parameters=size)]


def _mixture(s: Sizes) -> list[Part]:
    """Routed experts, shared experts, router and the projections of a latent mixture."""
    experts, hidden = expert_count(s), s["hidden_size"]
    if not experts:
        return []
    inner, width = s["moe_intermediate_size"], s.first("routed_expert_hidden_size", default=hidden)
    routed = Part(
        component="experts",
        parameters=3 * experts * width * inner,
        precision="expert",
        split="ep",
    )
    parts = [routed, _copied("router", experts * hidden)]
    if s.first("n_shared_experts", "num_shared_experts"):
        count = s.first("n_shared_experts", "num_shared_experts")
        shared = 3 * hidden * inner * count
        parts.append(Part(component="shared expert", parameters=shared, split="shared"))
        if "num_hash_layers" not in s:
            parts.append(_bias(experts))
    elif "shared_expert_intermediate_size" in s:
        shared = 3 * hidden * s["shared_expert_intermediate_size"]
        parts.append(Part(component="shared expert", parameters=shared, split="shared"))
        parts.append(_copied("router", hidden))
    if width != hidden:
        parts.append(Part(component="experts", parameters=2 * hidden * width, split="none"))
        parts.append(_copied("norms", width))
    if "num_hash_layers" in s:
        parts.append(_bias(experts))
    return parts


def _hashed(s: Sizes, layers: int) -> list[Part]:
    """Layers that route by a table of tokens have the table in place of the router's bias."""
    count = min(s.first("num_hash_layers"), layers)
    if not count:
        return []
    table = s["vocab_size"] * s["num_experts_per_tok"]
    entry = Part(component="router", parameters=table, precision="int32", split="none")
    return [entry.times(count), _bias(expert_count(s)).times(-count)]


def _around(s: Sizes) -> list[Part]:
    """Two norms of a layer, and what mixes its residual streams."""
    parts = [_copied("norms", 2 * s["hidden_size"])]
    streams = s.first("hc_mult")
    if streams:
        rows = (2 + streams) * streams
        size = 2 * (rows * streams * s["hidden_size"] + rows + 3)
        parts.append(
            Part(component="residual streams", parameters=size, precision="float32", split="none")
        )
    return parts


def _stream_head(s: Sizes) -> list[Part]:
    """What sums the residual streams at the end."""
    streams = s.first("hc_mult")
    if not streams:
        return []
    size = streams * streams * s["hidden_size"] + streams + 1
    return [Part(component="residual streams", parameters=size, precision="float32", split="none")]


def _bias(experts: int) -> Part:
    return Part(component="router", parameters=experts, precision="float32", split="none")


def _copied(component: str, parameters: int) -> Part:
    """Unquantized and the same on every rank."""
    return Part(component=component, parameters=parameters, precision="float", split="none")
