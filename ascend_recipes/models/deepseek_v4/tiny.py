"""Tiny DeepSeek-V4: the sizes that shrink, the published tensor names, and seeded weights.

The head dimension (512), the rotated part, window, compression ratios, indexer heads (64, so that
no two scores are equal), streams, hash layers and drafter stay as published, and every kind of
layer is there. Hidden size and head count are smaller than the vendor's operators admit, which a
tiny plan records as relaxed.
"""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from ascend_recipes.schema.base import Json
from ascend_recipes.tiny_tokenizer import TOKEN_IDS
from ascend_recipes.tiny_weights import SeededWeights, output_layer

if TYPE_CHECKING:
    import torch

TINY_VALUES: dict[str, Json] = {
    "vocab_size": 320,
    "hidden_size": 256,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 7,
    "num_attention_heads": 16,
    "q_lora_rank": 128,
    "o_lora_rank": 64,
    "o_groups": 4,
    "n_routed_experts": 16,
    "index_topk": 32,
    "compress_ratios": None,
    "dspark_noise_token_id": 319,
    "dspark_target_layer_ids": [4, 5, 6],
    "dspark_markov_rank": 32,
    "bos_token_id": None,
    "eos_token_id": [TOKEN_IDS["<|im_end|>"], TOKEN_IDS["<|endoftext|>"]],
    "pad_token_id": TOKEN_IDS["<|endoftext|>"],
}
"""Fields that tiny changes. `compress_ratios` follows from the published list, see `tiny_ratios`;
32 selected blocks are a quarter of what a prompt of 512 tokens has."""

TINY_FIELDS = tuple(TINY_VALUES)
"""The committed list: nothing else of the configuration may differ from the full model."""

REQUIRED_FACTS = (
    "head_dim",
    "qk_rope_head_dim",
    "compress_ratios",
    "index_n_heads",
    "index_head_dim",
    "num_experts_per_tok",
    "num_hash_layers",
    "num_nextn_predict_layers",
    "hc_mult",
    "dspark_target_layer_ids",
)

RELAXED = ("shape.small",)
"""The operators take two hidden sizes and one number of selected blocks, none of them tiny."""

_BLOCK_STAGES = "n_mtp_layers"
"""Field of checkpoints whose drafter proposes blocks: number of its stages."""

_REPEATED_RATIOS = (4, 128, 4, 128, 4)
"""Ratios after the first two layers: those of both published models, shortened."""

_Tensors = Iterator[tuple[str, "torch.Tensor"]]


def tiny_ratios(published: list[int], drafter_layers: int) -> list[int]:
    """Ratio of every layer and, as published, a zero for every layer of the drafter."""
    return [*published[:2], *_REPEATED_RATIOS, *([0] * drafter_layers)]


def tiny_values(model: Mapping[str, Json]) -> dict[str, Json]:
    """Fields that tiny changes, the ratios of the model's first layers kept."""
    published = cast(list[int], model["compress_ratios"])
    stages = model.get(_BLOCK_STAGES, model["num_nextn_predict_layers"])
    ratios = tiny_ratios(published, cast(int, stages))
    return {**TINY_VALUES, "compress_ratios": cast(Json, ratios)}


def tiny_config(model: Mapping[str, Json], *, dtype: str) -> dict[str, Json]:
    """Build config.json from the full model's configuration."""
    return {
        **model,
        **tiny_values(model),
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "dtype": dtype,
    }


def processor_files(config: Mapping[str, Json]) -> dict[str, dict[str, Json]]:
    """None: the model reads text only."""
    return {}


_FLOAT_LAYERS = (
    ".wo_a.weight",
    ".compressor.wkv.weight",
    ".compressor.wgate.weight",
    ".weights_proj.weight",
    ".gate.weight",
    "norm.weight",
    ".main_proj.weight",
    ".markov_w1.weight",
    ".markov_w2.weight",
    ".confidence_head.proj.weight",
)
"""Ends of the weights that W8A8 checkpoints leave in float: operators take them as they are."""


def is_quantized(name: str) -> bool:
    """Whether a W8A8 checkpoint stores the weight in int8."""
    nested = name.startswith(("layers.", "mtp."))
    return nested and not name.endswith(_FLOAT_LAYERS)


def tiny_tensors(config: Mapping[str, Json], *, seed: int, dtype: str) -> _Tensors:
    """Yield the tensors of the checkpoint: model, output layer, drafter."""
    sizes = cast(Mapping[str, int], config)
    weights = SeededWeights(seed=seed, dtype=dtype)
    hidden, vocabulary = sizes["hidden_size"], sizes["vocab_size"]
    yield from weights.random("embed.weight", (vocabulary, hidden), 1.0)
    ratios = cast(list[int], config["compress_ratios"])
    for index in range(sizes["num_hidden_layers"]):
        hashed = index < sizes["num_hash_layers"]
        yield from _layer(weights, f"layers.{index}", sizes, ratios[index], hashed=hashed)
    yield from _head(weights, "", sizes)
    yield "head.weight", output_layer(weights, "head.weight", vocabulary, hidden)
    if _BLOCK_STAGES in config:
        yield from _block_drafter(weights, sizes)
        return
    for index in range(sizes["num_nextn_predict_layers"]):
        yield from _drafter(weights, f"mtp.{index}", sizes)


def _drafter(weights: SeededWeights, prefix: str, sizes: Mapping[str, int]) -> _Tensors:
    hidden = sizes["hidden_size"]
    for norm in ("enorm", "hnorm"):
        yield from weights.random(f"{prefix}.{norm}.weight", (hidden,), 0.1, 1.0)
    for projection in ("e_proj", "h_proj"):
        yield from weights.linear(f"{prefix}.{projection}.weight", hidden, hidden, 0.7)
    yield from _layer(weights, prefix, sizes, 0, hashed=False)
    yield from _head(weights, f"{prefix}.", sizes)


def _block_drafter(weights: SeededWeights, sizes: Mapping[str, int]) -> _Tensors:
    """Stages of a block drafter; what belongs to all of them lies with the first and the last."""
    hidden, rank, last = sizes["hidden_size"], sizes["dspark_markov_rank"], sizes[_BLOCK_STAGES] - 1
    layers = len(cast(list[int], sizes["dspark_target_layer_ids"]))
    yield from weights.linear("mtp.0.main_proj.weight", hidden, layers * hidden)
    yield from weights.random("mtp.0.main_norm.weight", (hidden,), 0.1, 1.0)
    for index in range(last + 1):
        yield from _layer(weights, f"mtp.{index}", sizes, 0, hashed=False)
    yield from _head(weights, f"mtp.{last}.", sizes)
    prefix, vocabulary = f"mtp.{last}.markov_head", sizes["vocab_size"]
    yield from weights.random(f"{prefix}.markov_w1.weight", (vocabulary, rank), 1.0)
    yield from weights.linear(f"{prefix}.markov_w2.weight", vocabulary, rank)
    yield from weights.linear(f"mtp.{last}.confidence_head.proj.weight", 1, hidden + rank)


def _head(weights: SeededWeights, prefix: str, sizes: Mapping[str, int]) -> _Tensors:
    """Merging of the streams and the norm behind it."""
    streams, hidden = sizes["hc_mult"], sizes["hidden_size"]
    yield from _mixing(weights, f"{prefix}hc_head", streams, streams * hidden, 1)
    yield from weights.random(f"{prefix}norm.weight", (hidden,), 0.1, 1.0)


def _layer(
    weights: SeededWeights, prefix: str, sizes: Mapping[str, int], ratio: int, *, hashed: bool
) -> _Tensors:
    streams, hidden = sizes["hc_mult"], sizes["hidden_size"]
    for block in ("attn", "ffn"):
        yield from weights.random(f"{prefix}.{block}_norm.weight", (hidden,), 0.1, 1.0)
        yield from _mixing(
            weights, f"{prefix}.hc_{block}", (2 + streams) * streams, streams * hidden, 3
        )
    yield from _attention(weights, f"{prefix}.attn", sizes)
    if ratio:
        yield from _compressor(
            weights, f"{prefix}.attn.compressor", hidden, sizes["head_dim"], ratio
        )
    if ratio == 4:
        yield from _indexer(weights, f"{prefix}.attn.indexer", sizes, ratio)
    yield from _experts(weights, f"{prefix}.ffn", sizes, hashed=hashed)


def _mixing(weights: SeededWeights, prefix: str, rows: int, columns: int, factors: int) -> _Tensors:
    """Coefficients of hyper-connections, in float32 as published."""
    deviation = 1 / math.sqrt(columns)
    yield from weights.random(f"{prefix}_fn", (rows, columns), deviation, float32=True)
    yield from weights.random(f"{prefix}_base", (rows,), 1.0, float32=True)
    yield from weights.random(f"{prefix}_scale", (factors,), 0.1, 0.5, float32=True)


def _attention(weights: SeededWeights, prefix: str, sizes: Mapping[str, int]) -> _Tensors:
    hidden, head, heads = sizes["hidden_size"], sizes["head_dim"], sizes["num_attention_heads"]
    query_rank, groups = sizes["q_lora_rank"], sizes["o_groups"]
    grouped = groups * sizes["o_lora_rank"]
    yield from weights.random(f"{prefix}.attn_sink", (heads,), 1.0, float32=True)
    yield from weights.linear(f"{prefix}.wq_a.weight", query_rank, hidden)
    yield from weights.random(f"{prefix}.q_norm.weight", (query_rank,), 0.1, 1.0)
    yield from weights.linear(f"{prefix}.wq_b.weight", heads * head, query_rank)
    yield from weights.linear(f"{prefix}.wkv.weight", head, hidden)
    # Keys longer than the unit vectors of queries give scores that pick tokens.
    yield from weights.random(f"{prefix}.kv_norm.weight", (head,), 0.1, 2.0)
    yield from weights.linear(f"{prefix}.wo_a.weight", grouped, heads * head // groups)
    yield from weights.linear(f"{prefix}.wo_b.weight", hidden, grouped, 2.0)


def _compressor(
    weights: SeededWeights, prefix: str, hidden: int, head: int, ratio: int
) -> _Tensors:
    # Ratio 4 overlaps: half of the width belongs to the previous block.
    width = 2 * head if ratio == 4 else head
    yield from weights.random(f"{prefix}.ape", (ratio, width), 0.5, float32=True)
    yield from weights.linear(f"{prefix}.wkv.weight", width, hidden)
    yield from weights.linear(f"{prefix}.wgate.weight", width, hidden)
    yield from weights.random(f"{prefix}.norm.weight", (head,), 0.1, 2.0)


def _indexer(weights: SeededWeights, prefix: str, sizes: Mapping[str, int], ratio: int) -> _Tensors:
    hidden, head, heads = sizes["hidden_size"], sizes["index_head_dim"], sizes["index_n_heads"]
    yield from weights.linear(f"{prefix}.wq_b.weight", heads * head, sizes["q_lora_rank"])
    yield from weights.linear(f"{prefix}.weights_proj.weight", heads, hidden)
    yield from _compressor(weights, f"{prefix}.compressor", hidden, head, ratio)


def _experts(
    weights: SeededWeights, prefix: str, sizes: Mapping[str, int], *, hashed: bool
) -> _Tensors:
    hidden, count = sizes["hidden_size"], sizes["n_routed_experts"]
    yield from weights.linear(f"{prefix}.gate.weight", count, hidden)
    if hashed:
        yield f"{prefix}.gate.tid2eid", _expert_table(weights, f"{prefix}.gate.tid2eid", sizes)
    else:
        yield from weights.random(f"{prefix}.gate.bias", (count,), 0.1, float32=True)
    names = [f"{prefix}.experts.{index}" for index in range(count)]
    for name in (*names, f"{prefix}.shared_experts"):
        # Gains that reach the limit of the activation in a few channels.
        yield from weights.linear(f"{name}.w1.weight", sizes["moe_intermediate_size"], hidden, 3.0)
        yield from weights.linear(f"{name}.w3.weight", sizes["moe_intermediate_size"], hidden, 4.0)
        yield from weights.linear(f"{name}.w2.weight", hidden, sizes["moe_intermediate_size"], 0.3)


def _expert_table(weights: SeededWeights, name: str, sizes: Mapping[str, int]) -> "torch.Tensor":
    """Different experts of every token, int32 `[vocabulary, experts per token]`."""
    import torch

    generator = weights.generator(name)
    order = torch.rand(sizes["vocab_size"], sizes["n_routed_experts"], generator=generator)
    chosen = order.argsort(dim=1)[:, : sizes["num_experts_per_tok"]]
    return chosen.to(torch.int32).contiguous()
