"""Layers of a ModelSlim checkpoint, W8A8 or W4A8: one by one, and put into transformers' model.

Legend: T tokens, H hidden, K experts of a token.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.vllm.following import followed
from tests.vllm.integers import far_from_halves, int8_rows, integers
from tests.vllm.oracle import read_tensors
from tests.vllm.oracle_experts import IntegerExperts
from tests.vllm.quantized_order import MODELSLIM, ROUTED, quantized_modules

EXPERT = re.compile(r"\.experts\.\d+\.w[123]$")
SHARED = re.compile(r"\.shared_experts\.w[13]$")
SPLIT_INPUTS = ("self_attn.o_b_proj", "mlp.shared_experts.down_proj")
"""Layers of which every rank has a part of the inputs; of others a part of the outputs, or all."""


def swapped(first: str, second: str) -> dict[str, str]:
    """Two layers whose scales change places."""
    return {f"{first}.weight_scale": f"{second}.weight_scale"} | {
        f"{second}.weight_scale": f"{first}.weight_scale"
    }


class Int8Layers:
    """Every quantized layer by the name of the module that holds it."""

    def __init__(self, checkpoint: Path, renamed: Mapping[str, str] | None = None) -> None:
        tensors = read_tensors(checkpoint, "")
        tensors |= {name: tensors[other] for name, other in (renamed or {}).items()}
        quantized = [name for name, tensor in tensors.items() if tensor.dtype == torch.int8]
        self.names = {self.layer_of(name.removesuffix(".weight")) for name in quantized}
        self.experts = {
            name: IntegerExperts(below(f"{name}.", tensors))
            for name in self.names
            if name.endswith(".experts")
        }
        self.weights = {
            name.removesuffix(".weight"): integers(name, tensors) * tensors[f"{name}_scale"]
            for name in quantized
            if ".experts." not in name
        }

    @staticmethod
    def layer_of(name: str) -> str:
        """Module that holds a layer of the checkpoint."""
        if EXPERT.search(name):
            return EXPERT.sub(".experts", name)
        return SHARED.sub(".shared_experts.gate_up_proj", name)

    def apply(self, name: str, inputs: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """Result, and which of its numbers are rounded in one way only."""
        tensors = [torch.from_numpy(item) for item in inputs]
        if name in self.experts:
            return self.experts[name].apply(*tensors)
        module = name.removesuffix(".gate_up_proj")
        weight = (
            torch.cat([self.weights[f"{module}.{part}"] for part in ("w1", "w3")])
            if module != name
            else self.weights[name]
        )
        return fake_quantized(tensors[0]) @ weight.T, far_from_halves(tensors[0])


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def fake_quantized(x: Tensor) -> Tensor:
    rows, scale = int8_rows(x)
    return rows * scale.unsqueeze(-1)


def quantize_layer(
    layer: nn.Module, number: int, checkpoint: Path, *, ranks: int = 1, by_expert: bool = True
) -> None:
    """Round what goes into the quantized layers of a decoder layer of transformers.

    Where the inputs of a layer are split, every rank scales its part of a row.

    Args:
        layer: the decoder layer.
        number: which it is.
        checkpoint: integers and scales of its experts.
        ranks: over how many the model is split.
        by_expert: whether experts lie on one rank each; else each rank has a part of each.
    """
    for name, (module, call) in quantized_modules(layer, MODELSLIM).items():
        parts = ranks if name in SPLIT_INPUTS else 1
        module.register_forward_pre_hook(rounding_hook(f"{number}.dynamic_quant.{call}", parts))
    tensors = read_tensors(checkpoint, f"layers.{number}.ffn.experts.")
    count = 1 if by_expert else ranks
    experts = [
        IntegerExperts(
            {name: part_of_rank(name, item, rank, count) for name, item in tensors.items()}
        )
        for rank in range(count)
    ]
    key = f"{number}.moe_init_routing.0"

    def routed(x_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        rows = followed(key, x_TH)
        return torch.stack([part.apply(rows, weights_TK, ids_TK)[0] for part in experts]).sum(0)

    layer.get_submodule(ROUTED).forward = routed


def part_of_rank(name: str, tensor: Tensor, rank: int, ranks: int) -> Tensor:
    """Outputs of gate and up, inputs of down; the bias of scales is stored in parts of inputs."""
    axis = 1 if ".w2." in name else 0
    whole = axis and tensor.shape[axis] == 1
    return tensor if whole else tensor.chunk(ranks, axis)[rank]


def rounding_hook(key: str, parts: int) -> Any:
    def rounded(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        rows = followed(key, inputs[0]).unflatten(-1, (parts, -1))
        return (fake_quantized(rows).flatten(-2),)

    return rounded


def dequantized(checkpoint: Path, scratch: Path) -> Path:
    """The checkpoint with int8 weights multiplied out, in float32."""
    target = scratch / checkpoint.name
    target.mkdir(parents=True, exist_ok=True)
    tensors = read_tensors(checkpoint, "")
    floats = {}
    for name, tensor in tensors.items():
        if name.endswith(("weight_scale", "weight_offset", "scale_bias")):
            continue
        if tensor.dtype == torch.int8:
            tensor = integers(name, tensors) * tensors[f"{name}_scale"]
        floats[name] = tensor
    save_file(floats, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text((checkpoint / "config.json").read_text())
    return target
