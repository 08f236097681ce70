"""Writes float checkpoints in ModelSlim's W8A8 form, for tiny models.

Legend: N outputs, K inputs of a linear layer.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_LIMIT = 127


def int8_tensors(
    tensors: "Iterator[tuple[str, torch.Tensor]]", is_quantized: Callable[[str], bool]
) -> "Iterator[tuple[str, torch.Tensor]]":
    """Replace the weights of quantized layers by int8 weights, scales and zero offsets.

    Args:
        tensors: float tensors by their published names.
        is_quantized: whether the layer of a weight is quantized.
    """
    import torch

    for name, tensor in tensors:
        if not (name.endswith(".weight") and is_quantized(name)):
            yield name, tensor
            continue
        layer = name.removesuffix(".weight")
        wide_NK = tensor.float()
        scale_N1 = wide_NK.abs().amax(dim=1, keepdim=True) / _LIMIT
        weight_NK = (wide_NK / scale_N1).round().clamp(-_LIMIT, _LIMIT)
        yield name, weight_NK.to(torch.int8)
        yield f"{layer}.weight_scale", scale_N1
        yield f"{layer}.weight_offset", torch.zeros_like(scale_N1)


def int8_description(names: list[str], is_quantized: Callable[[str], bool]) -> dict[str, str]:
    """Content of the description file for float tensors of these names."""
    description = {"model_quant_type": "W8A8_DYNAMIC"}
    for name in names:
        if name.endswith(".weight") and is_quantized(name):
            layer = name.removesuffix(".weight")
            for leaf in ("weight", "weight_scale", "weight_offset"):
                description[f"{layer}.{leaf}"] = "W8A8_DYNAMIC"
        else:
            description[name] = "FLOAT"
    return description
