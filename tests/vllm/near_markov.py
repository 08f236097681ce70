"""A tiny checkpoint whose drafter is often right: the next token mostly follows from the last.

Random weights accept no draft. Here the embedding of a token outweighs what layers add, the
output layer prefers a fixed successor of it, and the drafter's projection hands the embedding
through; attention and experts still turn every few tokens.
"""

import json
import math
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

NUM_TOKENS = 256
"""Bytes; ids above them are special and keep their weights."""

EMBEDDING_GAIN = 3.0
"""At 3 three of four tokens follow from the last, at 6 all of them by a wide margin."""

SUCCESSOR_GAIN = 4.0
SUCCESSOR_BIAS = 12.0
"""By how much the block drafter's chain prefers the successor."""
STREAM_GAIN = 0.1
"""Share of the target's streams in what the drafter starts from."""


def write_near_markov(source: Path, target: Path, gain: float = EMBEDDING_GAIN) -> Path:
    """Copy a checkpoint, embedding, output layer and drafter's projections replaced.

    The projections only where they are stored in float, or in float8 under powers of two.
    """
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("tiny.json"))
    weight_map = json.loads((source / "model.safetensors.index.json").read_text())["weight_map"]
    for file in sorted(set(weight_map.values())):
        tensors = load_file(target / file)
        changed = {name: _changed(name, tensor, gain) for name, tensor in tensors.items()}
        save_file(changed, target / file, metadata={"format": "pt"})
    return target


def _changed(name: str, tensor: Tensor, gain: float) -> Tensor:
    hidden = tensor.shape[-1]
    if not tensor.is_floating_point():
        return tensor
    if name == "embed.weight":
        return directions(hidden, tensor) * gain
    if name == "head.weight":
        successors = torch.zeros_like(tensor)
        order = torch.randperm(NUM_TOKENS, generator=torch.Generator().manual_seed(1))
        successors[order] = directions(hidden, tensor)[:NUM_TOKENS]
        return tensor + successors * SUCCESSOR_GAIN / math.sqrt(hidden)
    if name.endswith(".markov_w1.weight"):
        return directions(hidden, tensor)
    if name.endswith(".markov_w2.weight"):
        successors = torch.zeros_like(tensor)
        order = torch.randperm(NUM_TOKENS, generator=torch.Generator().manual_seed(1))
        successors[order] = directions(hidden, tensor)[:NUM_TOKENS]
        return tensor + successors * SUCCESSOR_BIAS / hidden
    if name.endswith(".e_proj.weight"):
        return torch.eye(hidden).to(tensor.dtype)
    if name.endswith(".e_proj.scale"):
        return torch.ones(tensor.shape).to(tensor.dtype)
    # In float8 the gain belongs to the scales, which the nearest power of two is good enough for.
    if name.endswith(".h_proj.scale" if tensor.itemsize == 1 else ".h_proj.weight"):
        return (tensor.float() * STREAM_GAIN).to(tensor.dtype)
    return tensor


def directions(hidden: int, like: Tensor) -> Tensor:
    """One random vector of unit variance a token."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(like.shape[0], hidden, generator=generator).to(like.dtype)
