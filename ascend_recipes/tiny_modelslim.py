"""Writes float checkpoints in ModelSlim's W8A8 and W4A8 forms, for tiny models.

Layout of int4 weights: vllm-ascend vllm_ascend/quantization/methods/w4a8.py:39-100 at 182b75ea.

Legend: N outputs, K inputs of a linear layer.
"""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ascend_recipes.schema.modelslim import FLOAT, INT4_DYNAMIC, INT8_DYNAMIC

if TYPE_CHECKING:
    import torch

_LIMITS = {INT8_DYNAMIC: 127, INT4_DYNAMIC: 7}

_WEIGHT, _DOWN = ".weight", (".w2.weight", ".down_proj.weight")
_EXPERT = re.compile(r"\.experts\.\d+\.")
_DOWN_PARTS = 16


def modelslim_tensors(
    tensors: "Iterator[tuple[str, torch.Tensor]]", scheme_of: Callable[[str], str]
) -> "Iterator[tuple[str, torch.Tensor]]":
    """Replace the weights of quantized layers by integers, scales and zero offsets.

    Args:
        tensors: float tensors by their published names.
        scheme_of: scheme of a tensor, by its name.
    """
    import torch

    for name, tensor in tensors:
        scheme = scheme_of(name)
        if scheme == FLOAT:
            yield name, tensor
            continue
        wide_NK = tensor.float()
        limit = _LIMITS[scheme]
        scale_N1 = wide_NK.abs().amax(dim=1, keepdim=True) / limit
        weight_NK = (wide_NK / scale_N1).round().clamp(-limit, limit)
        if scheme == INT4_DYNAMIC:
            yield f"{name.removesuffix(_WEIGHT)}.scale_bias", _scale_bias(name, weight_NK, scale_N1)
            weight_NK = _paired(weight_NK)
        yield name, weight_NK.to(torch.int8)
        yield f"{name}_scale", scale_N1
        yield f"{name}_offset", torch.zeros_like(scale_N1)


def modelslim_description(
    names: list[str], scheme_of: Callable[[str], str], *, kind: str
) -> dict[str, str]:
    """Content of the description file for float tensors of these names.

    Args:
        names: tensors of the float checkpoint.
        scheme_of: scheme of a tensor, by its name.
        kind: scheme that the whole checkpoint is called by.
    """
    description = {"model_quant_type": kind}
    for name in names:
        scheme = scheme_of(name)
        description[name] = scheme
        if scheme != FLOAT:
            description[f"{name}_scale"] = description[f"{name}_offset"] = scheme
        if scheme == INT4_DYNAMIC:
            description[f"{name.removesuffix(_WEIGHT)}.scale_bias"] = scheme
    return description


def schemes(kind: str, is_quantized: Callable[[str], bool]) -> Callable[[str], str]:
    """Scheme by tensor name: W4A8 checkpoints keep 8 bits outside of the routed experts.

    Args:
        kind: scheme that the whole checkpoint is called by.
        is_quantized: whether the layer of a weight is quantized.
    """

    def scheme_of(name: str) -> str:
        if not (name.endswith(_WEIGHT) and is_quantized(name)):
            return FLOAT
        return kind if _EXPERT.search(name) else INT8_DYNAMIC

    return scheme_of


def _paired(weight_NK: "torch.Tensor") -> "torch.Tensor":
    """Two outputs in a byte, the first in its low half: `[N / 2, K]`."""
    import torch

    pairs = weight_NK.to(torch.int32).view(-1, 2, weight_NK.shape[1])
    return ((pairs[:, 1] << 4) | (pairs[:, 0] & 0xF)).to(torch.int8)


def _scale_bias(name: str, weight_NK: "torch.Tensor", scale_N1: "torch.Tensor") -> "torch.Tensor":
    """Eight times the dequantized sum over inputs; of the down projection over 16 parts of them."""
    parts = _DOWN_PARTS if name.endswith(_DOWN) else 1
    sums_NP = (weight_NK * scale_N1).view(weight_NK.shape[0], parts, -1).sum(-1)
    return (8 * sums_NP).contiguous()
