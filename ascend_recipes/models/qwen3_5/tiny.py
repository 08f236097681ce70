"""Tiny Qwen3.5: the sizes that shrink, the published tensor names, and seeded weights.

Head dimensions (256, and 128 in the delta net), the layer pattern, the output gate, the partial
interleaved mRoPE, the convolution width and the drafter layer stay as published, so that no shape
limit of the hardware is relaxed and every code path of the full model runs.
"""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from ascend_recipes.findings import recipe_error
from ascend_recipes.schema.base import Json
from ascend_recipes.tiny_tokenizer import TOKEN_IDS
from ascend_recipes.tiny_weights import SeededWeights, output_layer

if TYPE_CHECKING:
    import torch

TINY_VALUES: dict[str, Json] = {
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 12,
    "layer_types": None,
    "bos_token_id": None,
    "eos_token_id": [TOKEN_IDS["<|im_end|>"], TOKEN_IDS["<|endoftext|>"]],
    "pad_token_id": TOKEN_IDS["<|endoftext|>"],
}
"""Fields of the language model that tiny changes; head ratios of 27B (6 and 3) are kept.

`layer_types` follows from `full_attention_interval` and the number of layers.
"""

TINY_FIELDS = tuple(TINY_VALUES)
"""The committed list: nothing else of the configuration may differ from the full model."""

REQUIRED_FACTS = (
    "head_dim",
    "full_attention_interval",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "rms_norm_eps",
    "rope_parameters",
)

RELAXED: tuple[str, ...] = ()
"""Limits of the hardware that the tiny sizes break: none."""

is_quantized = None
"""There is no int8 form of the tiny model yet."""

TINY_VISION: dict[str, Json] = {
    "depth": 2,
    "hidden_size": 64,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 128,
    "num_heads": 4,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 256,
    "deepstack_visual_indexes": [],
}
"""Vision tower; only patch, merge and activation facts are the published ones."""


def tiny_values(_model: Mapping[str, Json]) -> dict[str, Json]:
    """The same for every model of the family."""
    return dict(TINY_VALUES)


def tiny_config(model: Mapping[str, Json], *, dtype: str) -> dict[str, Json]:
    """Build config.json from the full model's language configuration.

    Raises:
        RecipeError: a mixture of experts, which has no tiny form yet.
    """
    if "num_experts" in model:
        raise recipe_error("scale.tiny_experts", at="scale", fix="scale=real device=npu")
    text = {**model, **TINY_VALUES, "model_type": "qwen3_5_text", "dtype": dtype}
    interval = cast(int, model["full_attention_interval"])
    layers = cast(int, text["num_hidden_layers"])
    text["layer_types"] = [
        "linear_attention" if (index + 1) % interval else "full_attention"
        for index in range(layers)
    ]
    vision = {**TINY_VISION, "model_type": "qwen3_5", "out_hidden_size": text["hidden_size"]}
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": dtype,
        "image_token_id": TOKEN_IDS["<|image_pad|>"],
        "video_token_id": TOKEN_IDS["<|video_pad|>"],
        "vision_start_token_id": TOKEN_IDS["<|vision_start|>"],
        "vision_end_token_id": TOKEN_IDS["<|vision_end|>"],
        "tie_word_embeddings": text.get("tie_word_embeddings", False),
        "text_config": text,
        "vision_config": vision,
    }


def processor_files(config: Mapping[str, Json]) -> dict[str, dict[str, Json]]:
    """Image and video processor settings of the published checkpoints, for small pictures."""
    vision = cast(Mapping[str, Json], config["vision_config"])
    shared: dict[str, Json] = {
        "patch_size": vision["patch_size"],
        "temporal_patch_size": vision["temporal_patch_size"],
        "merge_size": vision["spatial_merge_size"],
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": 4096, "longest_edge": 65536},
        "processor_class": "Qwen3VLProcessor",
    }
    image: dict[str, Json] = {**shared, "image_processor_type": "Qwen2VLImageProcessorFast"}
    video: dict[str, Json] = {**shared, "video_processor_type": "Qwen3VLVideoProcessor"}
    return {"preprocessor_config.json": image, "video_preprocessor_config.json": video}


def tiny_tensors(
    config: Mapping[str, Json], *, seed: int, dtype: str
) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Yield the tensors of the checkpoint: language model, vision tower, output layer, drafter."""
    text = cast(dict[str, Json], config["text_config"])
    weights = SeededWeights(seed=seed, dtype=dtype)
    hidden = cast(int, text["hidden_size"])
    vocabulary = cast(int, text["vocab_size"])
    yield from weights.random("model.language_model.embed_tokens.weight", (vocabulary, hidden), 1.0)
    for index, kind in enumerate(cast(list[str], text["layer_types"])):
        yield from _layer(weights, f"model.language_model.layers.{index}", kind, text)
    yield from weights.random("model.language_model.norm.weight", (hidden,), 0.1)
    yield from _vision_tower(weights, cast(Mapping[str, int], config["vision_config"]))
    if not text.get("tie_word_embeddings"):
        yield "lm_head.weight", output_layer(weights, "lm_head.weight", vocabulary, hidden)
    if drafter_layers := cast(int, text.get("mtp_num_hidden_layers", 0)):
        yield from _drafter(weights, text, drafter_layers)


def _layer(
    weights: SeededWeights, prefix: str, kind: str, text: Mapping[str, Json]
) -> Iterator[tuple[str, "torch.Tensor"]]:
    sizes = cast(Mapping[str, int], text)
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    yield from weights.random(f"{prefix}.input_layernorm.weight", (hidden,), 0.1)
    if kind == "full_attention":
        yield from _attention(weights, f"{prefix}.self_attn", sizes)
    else:
        yield from _delta_net(weights, f"{prefix}.linear_attn", sizes)
    yield from weights.random(f"{prefix}.post_attention_layernorm.weight", (hidden,), 0.1)
    yield from weights.linear(f"{prefix}.mlp.gate_proj.weight", inner, hidden, 1.5)
    yield from weights.linear(f"{prefix}.mlp.up_proj.weight", inner, hidden)
    yield from weights.linear(f"{prefix}.mlp.down_proj.weight", hidden, inner, 1.0)


def _attention(
    weights: SeededWeights, prefix: str, sizes: Mapping[str, int]
) -> Iterator[tuple[str, "torch.Tensor"]]:
    hidden, head = sizes["hidden_size"], sizes["head_dim"]
    queries, keys = sizes["num_attention_heads"] * head, sizes["num_key_value_heads"] * head
    # Query and gate of each head stand side by side, hence twice the width.
    gate_factor = 2 if sizes.get("attn_output_gate", True) else 1
    yield from weights.linear(f"{prefix}.q_proj.weight", queries * gate_factor, hidden)
    yield from weights.linear(f"{prefix}.k_proj.weight", keys, hidden)
    yield from weights.linear(f"{prefix}.v_proj.weight", keys, hidden)
    yield from weights.linear(f"{prefix}.o_proj.weight", hidden, queries, 3.0)
    # Norm weights around 0.5 (the layer multiplies by 1 + w) give scores that pick tokens.
    yield from weights.random(f"{prefix}.q_norm.weight", (head,), 0.1, 0.5)
    yield from weights.random(f"{prefix}.k_norm.weight", (head,), 0.1, 0.5)


def _delta_net(
    weights: SeededWeights, prefix: str, sizes: Mapping[str, int]
) -> Iterator[tuple[str, "torch.Tensor"]]:
    hidden, heads = sizes["hidden_size"], sizes["linear_num_value_heads"]
    keys = sizes["linear_num_key_heads"] * sizes["linear_key_head_dim"]
    values = heads * sizes["linear_value_head_dim"]
    channels = 2 * keys + values
    yield from weights.linear(f"{prefix}.in_proj_qkv.weight", channels, hidden)
    yield from weights.linear(f"{prefix}.in_proj_z.weight", values, hidden)
    yield from weights.linear(f"{prefix}.in_proj_b.weight", heads, hidden)
    yield from weights.linear(f"{prefix}.in_proj_a.weight", heads, hidden)
    yield from weights.random(
        f"{prefix}.conv1d.weight", (channels, 1, sizes["linear_conv_kernel_dim"]), 0.6
    )
    yield f"{prefix}.A_log", _decay(weights, f"{prefix}.A_log", heads)
    yield f"{prefix}.dt_bias", _time_step_bias(weights, f"{prefix}.dt_bias", heads)
    # The only norm of the model that multiplies by the weight itself.
    yield from weights.random(f"{prefix}.norm.weight", (sizes["linear_value_head_dim"],), 0.1, 1.0)
    yield from weights.linear(f"{prefix}.out_proj.weight", hidden, values, 1.5)


def _decay(weights: SeededWeights, name: str, heads: int) -> "torch.Tensor":
    """Logarithms of decay rates between 1 and 16, in float32 as published."""
    import torch

    rates_N = torch.rand(heads, generator=weights.generator(name)) * 15 + 1
    return weights.store(rates_N.log(), float32=True)


def _time_step_bias(weights: SeededWeights, name: str, heads: int) -> "torch.Tensor":
    """Inverse softplus of time steps between 0.001 and 0.1: memories from tokens to pages."""
    import torch

    exponent_N = torch.rand(heads, generator=weights.generator(name)) * 2 - 3
    return weights.store((10.0**exponent_N).expm1().log())


def _drafter(
    weights: SeededWeights, text: Mapping[str, Json], layers: int
) -> Iterator[tuple[str, "torch.Tensor"]]:
    hidden = cast(int, text["hidden_size"])
    yield from weights.linear("mtp.fc.weight", hidden, 2 * hidden)
    for index in range(layers):
        yield from _layer(weights, f"mtp.layers.{index}", "full_attention", text)
    for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        yield from weights.random(f"mtp.{norm}.weight", (hidden,), 0.1)


def _vision_tower(
    weights: SeededWeights, sizes: Mapping[str, int]
) -> Iterator[tuple[str, "torch.Tensor"]]:
    prefix = "model.visual"
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    patch = (sizes["temporal_patch_size"], sizes["patch_size"], sizes["patch_size"])
    pixels = sizes["in_channels"] * math.prod(patch)
    yield from weights.random(
        f"{prefix}.patch_embed.proj.weight",
        (hidden, sizes["in_channels"], *patch),
        1 / math.sqrt(pixels),
    )
    yield from weights.random(f"{prefix}.patch_embed.proj.bias", (hidden,), 0.1)
    yield from weights.random(
        f"{prefix}.pos_embed.weight", (sizes["num_position_embeddings"], hidden), 0.5
    )
    for index in range(sizes["depth"]):
        block = f"{prefix}.blocks.{index}"
        for norm in ("norm1", "norm2"):
            yield from _affine_norm(weights, f"{block}.{norm}", hidden)
        yield from _affine(weights, f"{block}.attn.qkv", 3 * hidden, hidden)
        yield from _affine(weights, f"{block}.attn.proj", hidden, hidden)
        yield from _affine(weights, f"{block}.mlp.linear_fc1", inner, hidden)
        yield from _affine(weights, f"{block}.mlp.linear_fc2", hidden, inner)
    merged = hidden * sizes["spatial_merge_size"] ** 2
    yield from _affine_norm(weights, f"{prefix}.merger.norm", hidden)
    yield from _affine(weights, f"{prefix}.merger.linear_fc1", merged, merged)
    yield from _affine(weights, f"{prefix}.merger.linear_fc2", sizes["out_hidden_size"], merged)


def _affine(
    weights: SeededWeights, prefix: str, out_features: int, in_features: int
) -> Iterator[tuple[str, "torch.Tensor"]]:
    yield from weights.linear(f"{prefix}.weight", out_features, in_features)
    yield from weights.random(f"{prefix}.bias", (out_features,), 0.1)


def _affine_norm(
    weights: SeededWeights, prefix: str, features: int
) -> Iterator[tuple[str, "torch.Tensor"]]:
    yield from weights.random(f"{prefix}.weight", (features,), 0.1, 1.0)
    yield from weights.random(f"{prefix}.bias", (features,), 0.1)
