"""Shapes that the tensors of a checkpoint must have, by their published names; light at import.

Written from the configuration's fields, apart from the modules that load the tensors.
"""

from collections.abc import Mapping
from typing import cast

from ascend_recipes.schema.base import Json

Shape = tuple[int, ...]

BLOCK_STAGES = 3
"""Stages of the block drafter where config.json states none, as vLLM reads it
(vllm/models/deepseek_v4/nvidia/dspark.py of 0.32)."""


def tensor_shapes(config: Mapping[str, Json], *, drafter: str | None) -> dict[str, Shape]:
    """Tensor name -> shape of the unquantized tensor, all layers and experts.

    Args:
        config: fields of config.json.
        drafter: `mtp` or `dspark` for its stages too; none for the model alone.
    """
    sizes = cast(Mapping[str, int], config)
    ratios = cast(list[int], config["compress_ratios"])
    hidden, vocabulary = sizes["hidden_size"], sizes["vocab_size"]
    shapes: dict[str, Shape] = {
        "embed.weight": (vocabulary, hidden),
        "head.weight": (vocabulary, hidden),
    }
    shapes |= _merge("", sizes)
    for index in range(sizes["num_hidden_layers"]):
        prefix, hashed = f"layers.{index}.", index < sizes["num_hash_layers"]
        shapes |= _layer(prefix, sizes, ratios[index], hashed=hashed)
    stages = sizes["num_nextn_predict_layers"] if drafter == "mtp" else 0
    for index in range(stages):
        prefix = f"mtp.{index}."
        shapes |= _layer(prefix, sizes, 0, hashed=False) | _merge(prefix, sizes)
        for norm in ("enorm", "hnorm"):
            shapes[f"{prefix}{norm}.weight"] = (hidden,)
        for projection in ("e_proj", "h_proj"):
            shapes[f"{prefix}{projection}.weight"] = (hidden, hidden)
    if drafter == "dspark":
        shapes |= _block_drafter(sizes)
    return shapes


def _block_drafter(sizes: Mapping[str, int]) -> dict[str, Shape]:
    hidden, vocabulary, rank = (
        sizes["hidden_size"],
        sizes["vocab_size"],
        sizes["dspark_markov_rank"],
    )
    last = sizes.get("n_mtp_layers", BLOCK_STAGES) - 1
    layers = len(cast(list[int], sizes["dspark_target_layer_ids"]))
    shapes: dict[str, Shape] = {
        "mtp.0.main_proj.weight": (hidden, layers * hidden),
        "mtp.0.main_norm.weight": (hidden,),
        f"mtp.{last}.markov_head.markov_w1.weight": (vocabulary, rank),
        f"mtp.{last}.markov_head.markov_w2.weight": (vocabulary, rank),
        f"mtp.{last}.confidence_head.proj.weight": (1, hidden + rank),
    }
    for index in range(last + 1):
        shapes |= _layer(f"mtp.{index}.", sizes, 0, hashed=False)
    return shapes | _merge(f"mtp.{last}.", sizes)


def _merge(prefix: str, sizes: Mapping[str, int]) -> dict[str, Shape]:
    streams, hidden = sizes["hc_mult"], sizes["hidden_size"]
    return {
        f"{prefix}norm.weight": (hidden,),
        f"{prefix}hc_head_fn": (streams, streams * hidden),
        f"{prefix}hc_head_base": (streams,),
        f"{prefix}hc_head_scale": (1,),
    }


def _layer(prefix: str, sizes: Mapping[str, int], ratio: int, *, hashed: bool) -> dict[str, Shape]:
    streams, hidden = sizes["hc_mult"], sizes["hidden_size"]
    rows = (2 + streams) * streams
    shapes = _attention(f"{prefix}attn.", sizes, ratio)
    shapes |= _experts(f"{prefix}ffn.", sizes, hashed=hashed)
    for block in ("attn", "ffn"):
        shapes[f"{prefix}{block}_norm.weight"] = (hidden,)
        shapes[f"{prefix}hc_{block}_fn"] = (rows, streams * hidden)
        shapes[f"{prefix}hc_{block}_base"] = (rows,)
        shapes[f"{prefix}hc_{block}_scale"] = (3,)
    return shapes


def _attention(prefix: str, sizes: Mapping[str, int], ratio: int) -> dict[str, Shape]:
    hidden, head, heads = sizes["hidden_size"], sizes["head_dim"], sizes["num_attention_heads"]
    query, grouped = sizes["q_lora_rank"], sizes["o_groups"] * sizes["o_lora_rank"]
    shapes: dict[str, Shape] = {
        f"{prefix}attn_sink": (heads,),
        f"{prefix}wq_a.weight": (query, hidden),
        f"{prefix}q_norm.weight": (query,),
        f"{prefix}wq_b.weight": (heads * head, query),
        f"{prefix}wkv.weight": (head, hidden),
        f"{prefix}kv_norm.weight": (head,),
        f"{prefix}wo_a.weight": (grouped, heads * head // sizes["o_groups"]),
        f"{prefix}wo_b.weight": (hidden, grouped),
    }
    if ratio > 1:
        shapes |= _compressor(f"{prefix}compressor.", hidden, head, ratio)
    if ratio == 4:
        inner, width = f"{prefix}indexer.", sizes["index_head_dim"]
        shapes[f"{inner}wq_b.weight"] = (sizes["index_n_heads"] * width, query)
        shapes[f"{inner}weights_proj.weight"] = (sizes["index_n_heads"], hidden)
        shapes |= _compressor(f"{inner}compressor.", hidden, width, ratio)
    return shapes


def _compressor(prefix: str, hidden: int, head: int, ratio: int) -> dict[str, Shape]:
    # Ratio 4 overlaps: half of the width belongs to the previous block.
    width = 2 * head if ratio == 4 else head
    return {
        f"{prefix}ape": (ratio, width),
        f"{prefix}wkv.weight": (width, hidden),
        f"{prefix}wgate.weight": (width, hidden),
        f"{prefix}norm.weight": (head,),
    }


def _experts(prefix: str, sizes: Mapping[str, int], *, hashed: bool) -> dict[str, Shape]:
    hidden, inner, count = (
        sizes["hidden_size"],
        sizes["moe_intermediate_size"],
        sizes["n_routed_experts"],
    )
    shapes: dict[str, Shape] = {f"{prefix}gate.weight": (count, hidden)}
    if hashed:
        shapes[f"{prefix}gate.tid2eid"] = (sizes["vocab_size"], sizes["num_experts_per_tok"])
    else:
        shapes[f"{prefix}gate.bias"] = (count,)
    for number in range(count):
        shapes |= _expert(f"{prefix}experts.{number}.", hidden, inner)
    shared = inner * sizes["n_shared_experts"]
    return shapes | _expert(f"{prefix}shared_experts.", hidden, shared)


def _expert(prefix: str, hidden: int, inner: int) -> dict[str, Shape]:
    return {
        f"{prefix}w1.weight": (inner, hidden),
        f"{prefix}w2.weight": (hidden, inner),
        f"{prefix}w3.weight": (inner, hidden),
    }
