"""transformers' DeepSeek-V4 in ModelSlim's form, rounded as two ranks round it."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.vllm.conftest import Engine
from tests.vllm.oracle_deepseek_v4 import logits_of, oracle_model
from tests.vllm.oracle_int8 import dequantized, quantize_layer

RANKS = 2


@cache
def model_of_ranks(checkpoint: Path, scratch: Path, *, by_expert: bool) -> Any:
    """The model, experts on one rank each, or a part of each on every rank."""
    floats = dequantized(checkpoint, scratch / ("by_expert" if by_expert else "in_parts"))
    model = oracle_model(floats, "int8", scratch)
    for number, layer in enumerate(model.model.layers):
        quantize_layer(layer, number, checkpoint, ranks=RANKS, by_expert=by_expert)
    return model


def logits_of_ranks(
    engine: Engine, prompt: list[int], tokens: list[int], scratch: Path
) -> torch.Tensor:
    """Logits before each generated token, float32 `[tokens, vocabulary]`, in one pass."""
    plan = engine.planned.plan
    by_expert = bool(plan.engine.get("enable_expert_parallel"))
    model = model_of_ranks(Path(plan.model.checkpoint), scratch, by_expert=by_expert)
    return logits_of(model, prompt, tokens)
