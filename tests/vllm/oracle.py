"""transformers' own model of the family over the same checkpoint."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ascend_recipes.torchvision_schemas import define_missing_schemas


@cache
def oracle_model(checkpoint: Path, dtype: torch.dtype) -> Any:
    define_missing_schemas()
    from transformers import Qwen3_5ForConditionalGeneration

    model = Qwen3_5ForConditionalGeneration.from_pretrained(
        checkpoint, dtype=dtype, attn_implementation="eager"
    )
    return model.eval()


@torch.no_grad()
def oracle_logits(
    checkpoint: Path, dtype: torch.dtype, prompt: list[int], tokens: list[int]
) -> torch.Tensor:
    """Logits before each generated token, float32 `[tokens, vocabulary]`, in one pass."""
    model = oracle_model(checkpoint, dtype)
    logits = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits
    return logits[0, len(prompt) - 1 : -1].float()


def dense(rows: list[dict[int, float]], vocabulary: int) -> torch.Tensor:
    """Rows of `{token: value}` as a tensor `[rows, vocabulary]`; every token must be there."""
    table = torch.full((len(rows), vocabulary), float("nan"))
    for index, row in enumerate(rows):
        for token, value in row.items():
            table[index, token] = value
    assert not table.isnan().any(), "vLLM returned logits of a part of the vocabulary"
    return table


def prompt_of(length: int, seed: int) -> list[int]:
    """Random bytes; ids above them are special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (length,), generator=generator).tolist()


def read_tensors(checkpoint: Path, prefix: str) -> dict[str, torch.Tensor]:
    """Tensors below a prefix, which their names lose."""
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    tensors: dict[str, torch.Tensor] = {}
    for name, file in index["weight_map"].items():
        if name.startswith(prefix):
            with safe_open(checkpoint / file, "pt") as handle:
                tensors[name.removeprefix(prefix)] = handle.get_tensor(name)
    return tensors
