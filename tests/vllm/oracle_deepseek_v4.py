"""transformers' DeepSeek-V4 over the same checkpoint, with what a recipe rounds put in by itself.

`float`: the model as it is. `int8`: the indexer's scorer with queries and keys in 8 bits, as the
A2 and A3 kernel rounds. `modelslim`: besides, every quantized layer multiplies what int8 or int4
holds. What is rounded to 8 bits follows a tape where one plays (`tests.vllm.following`).
Written from the vendor's documents, without our operations.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ascend_recipes.torchvision_schemas import define_missing_schemas
from tests.vllm.conftest import Engine
from tests.vllm.following import followed, is_playing
from tests.vllm.oracle import dense
from tests.vllm.oracle_int8 import dequantized, int8_rows, quantize_layer

Rounding = Literal["float", "int8", "modelslim"]

TOLERANCE = 1e-3
"""Largest difference of a float32 logit; logits have a deviation of 2."""

CHUNK = 256
"""Tokens up to which one pass is as quick as several over a cache."""

HEAD_SCORE_SCALE = 1024
"""The kernel divides integer products by this before it rounds them to float16."""


@cache
def oracle_model(checkpoint: Path, rounding: Rounding, scratch: Path) -> Any:
    define_missing_schemas()
    from transformers import DeepseekV4ForCausalLM

    folder = dequantized(checkpoint, scratch) if rounding == "modelslim" else checkpoint
    model, loaded = DeepseekV4ForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    # Every tensor under the name that transformers looks for; of the drafter it wants none.
    assert not any(loaded.values()), loaded
    for number, layer in enumerate(model.model.layers):
        for module in list(layer.modules()):
            if type(module).__name__ == "DeepseekV4IndexerScorer" and rounding != "float":
                module.forward = Int8Scorer(module, number).forward
        if rounding == "modelslim":
            quantize_layer(layer, number, checkpoint)
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
    whole = is_playing() or len(prompt) + len(tokens) <= CHUNK
    compute = logits_of if whole else logits_in_chunks
    return compute(oracle_model(checkpoint, rounding, scratch), prompt, tokens)


@torch.no_grad()
def logits_of(model: Any, prompt: list[int], tokens: list[int]) -> Tensor:
    """Logits before each generated token, float32 `[tokens, vocabulary]`, in one pass."""
    logits = model(input_ids=torch.tensor([prompt + tokens[:-1]]), use_cache=False).logits
    return logits[0, len(prompt) - 1 :].float()


@torch.no_grad()
def logits_in_chunks(model: Any, prompt: list[int], tokens: list[int]) -> Tensor:
    """As `logits_of`, over transformers' own cache: layers see their window, not the whole prompt.

    A fifth of the time for 1500 tokens.
    """
    sequence, rows, cache = prompt + tokens[:-1], [], None
    for first in range(0, len(sequence), CHUNK):
        chunk = torch.tensor([sequence[first : first + CHUNK]])
        output = model(input_ids=chunk, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0])
    return torch.cat(rows)[len(prompt) - 1 :].float()


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

    def __init__(self, scorer: nn.Module, layer: int) -> None:
        self.scorer = scorer
        self.layer = layer

    def forward(self, q: Tensor, compressed_kv: Tensor, hidden_states: Tensor) -> Tensor:
        q = followed(f"{self.layer}.quantize_indexer_query.0", rotated(q))
        compressed_kv = followed(f"{self.layer}.write_indexer_keys.0", rotated(compressed_kv))
        query, query_scale = int8_rows(q)
        keys, key_scale = int8_rows(compressed_kv)
        products = torch.einsum("bshd,btd->bsht", query, keys)
        head_scores = (products.clamp(min=0) / HEAD_SCORE_SCALE).half().float()
        scorer = self.scorer
        factor = scorer.softmax_scale * scorer.weights_scaling
        weights = scorer.weights_proj(hidden_states).float() * factor
        weights = followed(f"{self.layer}.lightning_indexer.0", weights)
        weights = (weights.half() * query_scale.half()).half().float()
        scores = torch.einsum("bsht,bsh->bst", head_scores, weights)
        return scores * key_scale.half().float().unsqueeze(1)


def rotated(x: Tensor) -> Tensor:
    """Orthogonal Hadamard rotation in Sylvester's order."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < x.shape[-1]:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return x.float() @ matrix * x.shape[-1] ** -0.5
