"""transformers' DeepSeek-V4 over the same checkpoint, with what a recipe rounds put in by itself.

`float`: the model as it is. `int8`: the indexer's scorer with queries and keys in 8 bits, as the
A2 and A3 kernel rounds. `w8a8`: besides, every quantized layer multiplies what int8 holds.
Written from the vendor's documents, without our operations.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ascend_recipes.torchvision_schemas import define_missing_schemas
from tests.vllm.conftest import Engine
from tests.vllm.oracle import dense

Rounding = Literal["float", "int8", "w8a8"]

TOLERANCE = 1e-3
"""Largest difference of a float32 logit; logits have a deviation of 2."""

INT8_LIMIT = 127
HEAD_SCORE_SCALE = 1024
"""The kernel divides integer products by this before it rounds them to float16."""

QUANTIZED_LINEAR = (
    ".self_attn.q_a_proj",
    ".self_attn.q_b_proj",
    ".self_attn.kv_proj",
    ".self_attn.o_b_proj",
    ".indexer.q_b_proj",
    ".shared_experts.gate_proj",
    ".shared_experts.up_proj",
    ".shared_experts.down_proj",
)


@cache
def oracle_model(checkpoint: Path, rounding: Rounding, scratch: Path) -> Any:
    define_missing_schemas()
    from transformers import DeepseekV4ForCausalLM

    folder = dequantized(checkpoint, scratch) if rounding == "w8a8" else checkpoint
    model = DeepseekV4ForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    for name, module in list(model.named_modules()):
        kind = type(module).__name__
        if kind == "DeepseekV4IndexerScorer" and rounding != "float":
            module.forward = Int8Scorer(module).forward
        if rounding == "w8a8" and name.endswith(QUANTIZED_LINEAR):
            module.forward = quantized_linear(module)
        if rounding == "w8a8" and kind == "DeepseekV4Experts":
            module.forward = quantized_experts(module)
    return model.eval()


def oracle_logits(
    checkpoint: Path,
    prompt: list[int],
    tokens: list[int],
    *,
    rounding: Rounding,
    scratch: Path,
) -> Tensor:
    """As `logits_of`, for a checkpoint and what the recipe rounds."""
    return logits_of(oracle_model(checkpoint, rounding, scratch), prompt, tokens)


@torch.no_grad()
def logits_of(model: Any, prompt: list[int], tokens: list[int]) -> Tensor:
    """Logits before each generated token, float32 `[tokens, vocabulary]`, in one pass."""
    logits = model(input_ids=torch.tensor([prompt + tokens[:-1]]), use_cache=False).logits
    return logits[0, len(prompt) - 1 :].float()


@contextmanager
def stretched_windows(model: Any) -> Iterator[None]:
    """Rotate pure window layers with YaRN too, as vllm-ascend does and the official model does not.

    Frequency k of R/2 is divided by the factor where it turns less than `beta_slow` times within
    the original context, kept where it turns more than `beta_fast` times, mixed in between.
    """
    rotary, config = model.model.rotary_emb, model.config
    rope = config.rope_parameters["compress"]
    kept = rotary.main_inv_freq
    base, width = config.rope_parameters["main"]["rope_theta"], 2 * kept.numel()
    bounds = [
        width
        * math.log(rope["original_max_position_embeddings"] / (turns * math.tau))
        / (2 * math.log(base))
        for turns in (rope["beta_fast"], rope["beta_slow"])
    ]
    low, high = math.floor(bounds[0]), math.ceil(bounds[1])
    ramp = ((torch.arange(kept.numel()) - low) / (high - low)).clamp(0, 1)
    rotary.main_inv_freq = kept * (1 - ramp) + kept / rope["factor"] * ramp
    try:
        yield
    finally:
        rotary.main_inv_freq = kept


def assert_matches(
    engine: Engine, prompt: list[int], answer: dict[str, Any], rounding: Rounding, scratch: Path
) -> None:
    """Greedy tokens equal, logits of every step and token close."""
    checkpoint = Path(engine.planned.plan.model.checkpoint)
    expected = oracle_logits(
        checkpoint, prompt, answer["tokens"], rounding=rounding, scratch=scratch
    )
    assert answer["tokens"] == expected.argmax(-1).tolist()
    actual = dense(answer["logits"], expected.shape[-1])
    assert (actual - expected).abs().max().item() < TOLERANCE


class Int8Scorer:
    """Scores of compressed keys with 8-bit queries and keys."""

    def __init__(self, scorer: nn.Module) -> None:
        self.scorer = scorer

    def forward(self, q: Tensor, compressed_kv: Tensor, hidden_states: Tensor) -> Tensor:
        query, query_scale = int8_rows(rotated(q))
        keys, key_scale = int8_rows(rotated(compressed_kv))
        products = torch.einsum("bshd,btd->bsht", query, keys)
        head_scores = (products.clamp(min=0) / HEAD_SCORE_SCALE).half().float()
        scorer = self.scorer
        factor = scorer.softmax_scale * scorer.weights_scaling
        weights = scorer.weights_proj(hidden_states).float() * factor
        weights = (weights.half() * query_scale.half()).half().float()
        scores = torch.einsum("bsht,bsh->bst", head_scores, weights)
        return scores * key_scale.half().float().unsqueeze(1)


def rotated(x: Tensor) -> Tensor:
    """Orthogonal Hadamard rotation in Sylvester's order."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < x.shape[-1]:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return x.float() @ matrix * x.shape[-1] ** -0.5


def int8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Integers as floats, and a float32 scale a row."""
    scale = x.abs().amax(-1) / INT8_LIMIT
    rows = (x / scale.unsqueeze(-1)).nan_to_num(0.0)
    note_margin(distance_to_half(rows))
    return rows.round(), scale


def note_margin(distances: Tensor) -> None:
    """Tell those who watch how near a rounding was to its turning point."""
    if distances.numel():
        for margins in _watching:
            margins.append(distances.min().item())


def distance_to_half(rows: Tensor) -> Tensor:
    """How far numbers are from where rounding turns."""
    return (rows - rows.floor() - 0.5).abs()


_watching: list[list[float]] = []


@contextmanager
def tie_margins() -> Iterator[list[float]]:
    """Least `distance_to_half` of every rounding to int8."""
    margins: list[float] = []
    _watching.append(margins)
    try:
        yield margins
    finally:
        _watching.remove(margins)


def fake_quantized(x: Tensor) -> Tensor:
    rows, scale = int8_rows(x)
    return rows * scale.unsqueeze(-1)


def quantized_linear(module: nn.Linear) -> Any:
    return lambda x: nn.functional.linear(fake_quantized(x), module.weight)


def quantized_experts(module: Any) -> Any:
    def forward(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        out = torch.zeros_like(hidden_states)
        rows = fake_quantized(hidden_states)
        for expert in top_k_index.unique().tolist():
            token, slot = (top_k_index == expert).nonzero(as_tuple=True)
            hidden = nn.functional.linear(rows[token], module.gate_up_proj[expert])
            active = fake_quantized(module._apply_gate(hidden))
            part = nn.functional.linear(active, module.down_proj[expert])
            out.index_add_(0, token, part * top_k_weights[token, slot, None])
        return out

    return forward


def dequantized(checkpoint: Path, scratch: Path) -> Path:
    """The checkpoint with int8 weights multiplied out, in float32."""
    target = scratch / checkpoint.name
    target.mkdir(parents=True, exist_ok=True)
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    names = index["weight_map"]
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(names.values())):
        with safe_open(checkpoint / file, "pt") as handle:
            tensors |= {name: handle.get_tensor(name) for name in names if names[name] == file}
    floats = {}
    for name, tensor in tensors.items():
        if name.endswith(("weight_scale", "weight_offset", "scale_bias")):
            continue
        if tensor.dtype == torch.int8:
            tensor = integers(name, tensors) * tensors[name.replace(".weight", ".weight_scale")]
        floats[name] = tensor
    save_file(floats, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text((checkpoint / "config.json").read_text())
    return target


def integers(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    """Numbers of an int8 weight; where a bias of scales stands beside it, a byte holds two rows."""
    stored = tensors[name]
    if name.replace(".weight", ".scale_bias") not in tensors:
        return stored.float()
    # Signed halves: as if the byte were shifted up, then down again with its sign.
    low, high = (stored << 4) >> 4, stored >> 4
    return torch.stack((low, high), dim=1).flatten(0, 1).float()
