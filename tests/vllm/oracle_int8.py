"""Quantized layers one by one, from the tensors of a ModelSlim checkpoint: int8, or int4 in pairs.

Legend: T tokens, H hidden, I intermediate, K experts of a token.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.vllm.oracle_deepseek_v4 import distance_to_half, fake_quantized, integers
from tests.vllm.oracle_draft import read_tensors

LIMIT = 10.0
"""Clamp of the gated activation, as published."""

SAFE = 5e-5
"""Rows with an activation this near to a half are not compared."""

EXPERT = re.compile(r"\.experts\.\d+\.w[123]$")
SHARED = re.compile(r"\.shared_experts\.w[13]$")


def swapped(first: str, second: str) -> dict[str, str]:
    """Two layers whose scales change places."""
    return {f"{first}.weight_scale": f"{second}.weight_scale"} | {
        f"{second}.weight_scale": f"{first}.weight_scale"
    }


class Int8Layers:
    """Products of integers and scales in float32."""

    def __init__(self, checkpoint: Path, renamed: Mapping[str, str] | None = None) -> None:
        tensors = read_tensors(checkpoint, "")
        moved = renamed or {}
        self.weights = {
            name.removesuffix(".weight"): integers(name, tensors)
            * tensors[moved.get(scale := f"{name}_scale", scale)]
            for name, tensor in tensors.items()
            if tensor.dtype == torch.int8
        }
        self.names = {self.layer_of(name) for name in self.weights}

    @staticmethod
    def layer_of(name: str) -> str:
        """Module that holds a layer of the checkpoint."""
        if EXPERT.search(name):
            return EXPERT.sub(".experts", name)
        return SHARED.sub(".shared_experts.gate_up_proj", name)

    def apply(self, name: str, inputs: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """Result, and which rows have no activation near a half."""
        tensors = [torch.from_numpy(item) for item in inputs]
        if name.endswith(".experts"):
            return self._experts(name, *tensors)
        module = name.removesuffix(".gate_up_proj")
        weight = (
            torch.cat([self.weights[f"{module}.{part}"] for part in ("w1", "w3")])
            if module != name
            else self.weights[name]
        )
        return linear(tensors[0], weight)

    def _experts(
        self, name: str, x_TH: Tensor, weights_TK: Tensor, ids_TK: Tensor
    ) -> tuple[Tensor, Tensor]:
        out_TH, usable_T = torch.zeros_like(x_TH), torch.ones(len(x_TH), dtype=torch.bool)
        for expert in ids_TK.unique().tolist():
            token, slot = (ids_TK == expert).nonzero(as_tuple=True)
            w1, w2, w3 = (self.weights[f"{name}.{expert}.w{part}"] for part in (1, 2, 3))
            gate, near = linear(x_TH[token], w1)
            up, _ = linear(x_TH[token], w3)
            active = nn.functional.silu(gate.clamp(max=LIMIT)) * up.clamp(-LIMIT, LIMIT)
            part, far = linear(active, w2)
            out_TH.index_add_(0, token, part * weights_TK[token, slot, None])
            usable_T[token] &= near & far
        return out_TH, usable_T


def linear(x_TH: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    scale_T1 = x_TH.abs().amax(-1, keepdim=True) / 127
    near_T = distance_to_half(x_TH / scale_T1).amin(-1) > SAFE
    return fake_quantized(x_TH) @ weight.T, near_T
