"""Rotary tables of the two kinds of layers.

Layers with compressed context rotate by `compress_rope_theta` with YaRN, everything in them:
queries, window keys, compressed keys, indexer. Pure window layers and the drafter rotate by
`rope_theta` without YaRN (official inference/model.py; vllm-ascend scales those too).

Legend: X positions, T tokens, R rotated part (each frequency twice in a row), F = R / 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from vllm.model_executor.layers.rotary_embedding.common import (
    yarn_find_correction_range,
    yarn_linear_ramp_mask,
)


@dataclass(frozen=True)
class RotaryRows:
    """Cosines and sines `[T, R]` in float32, of the tokens of a step or of all positions."""

    cosine: torch.Tensor
    sine: torch.Tensor

    def at(self, positions_T: torch.Tensor) -> "RotaryRows":
        """Rows of some positions."""
        return RotaryRows(self.cosine[positions_T], self.sine[positions_T])


@dataclass(frozen=True)
class _Yarn:
    factor: float
    original: int
    beta_fast: float
    beta_slow: float


def rotary_table(config: Any, *, ratio: int, positions: int, device: torch.device) -> RotaryRows:
    """Rows of every position for layers of a compression ratio; shared by equal layers.

    Args:
        config: vLLM's configuration of the model.
        ratio: 4 or 128; less for pure window layers.
        positions: X, the longest context.
        device: where the table lies.
    """
    width = config.qk_rope_head_dim
    if ratio <= 1:
        return _table(width, float(config.rope_theta), None, positions, device)
    rope = _compressed_parameters(config.rope_parameters)
    yarn = None
    if rope.get("rope_type", "default") != "default":
        yarn = _Yarn(
            factor=float(rope["factor"]),
            original=int(rope["original_max_position_embeddings"]),
            beta_fast=float(rope["beta_fast"]),
            beta_slow=float(rope["beta_slow"]),
        )
    return _table(width, float(config.compress_rope_theta), yarn, positions, device)


def _compressed_parameters(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Newer configurations nest a dictionary for each kind of layer."""
    nested = parameters.get("compress")
    return nested if isinstance(nested, Mapping) else parameters


@cache
def _table(
    width: int, theta: float, yarn: _Yarn | None, positions: int, device: torch.device
) -> RotaryRows:
    # Ordinary tensors even when first needed in inference mode: they outlive the step.
    with torch.inference_mode(mode=False):
        exponents_F = torch.arange(0, width, 2, dtype=torch.float32) / width
        frequencies_F = 1.0 / theta**exponents_F
        if yarn is not None:
            frequencies_F = _stretched(frequencies_F, width, theta, yarn)
        angles_XF = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies_F
        angles_XR = angles_XF.repeat_interleave(2, dim=-1)
        return RotaryRows(angles_XR.cos().to(device), angles_XR.sin().to(device))


def _stretched(frequencies_F: torch.Tensor, width: int, theta: float, yarn: _Yarn) -> torch.Tensor:
    """YaRN: low frequencies divided by the factor, high ones kept, a ramp between."""
    low, high = yarn_find_correction_range(
        yarn.beta_fast, yarn.beta_slow, width, theta, yarn.original
    )
    kept_F = 1 - yarn_linear_ramp_mask(low, high, width // 2, torch.float32)
    return frequencies_F / yarn.factor * (1 - kept_F) + frequencies_F * kept_F
