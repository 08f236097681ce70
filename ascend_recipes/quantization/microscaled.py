"""float8 weights in blocks of 128 x 128, multiplied as microscaled ones.

A5 multiplies float8 whose 32 neighbours along the inner size share a power of two. A block that
shares one power of two is a special case of it: its scale is repeated. Nothing is rounded again.
vllm-ascend does the same (quantization/methods/fp8.py:44-105 at 182b75ea), but after ranks have
taken their parts; here scales are repeated first, so that a rank's part may end inside a block.

Legend: T tokens, K inner size, N columns, G groups, X inputs of a group, L outputs of a group.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.model_executor.utils import set_weight_attrs

from ascend_recipes.ops import operations

BLOCK = 128
"""Rows and columns of a weight that share a scale in the checkpoint."""

SHARED = 32
"""Numbers that share a scale in the operators, which take scales in pairs."""

KIND = "float8_e4m3fn"


class BlockFloatConfig(QuantizationConfig):
    """Every linear layer in blocks of float8; routed experts in 4-bit floats."""

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """Types of activations; float32 is for emulation."""
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        """None: the number is NVIDIA's."""
        return -1

    @classmethod
    def get_config_filenames(cls) -> list[str]:
        """None: config.json says everything."""
        return []

    def get_quant_method(self, layer: nn.Module, prefix: str) -> LinearMethodBase | None:  # type: ignore[override]
        """Method of a linear layer; other layers are not quantized."""
        return BlockFloatLinear() if isinstance(layer, LinearBase) else None


class BlockFloatLinear(LinearMethodBase):
    """Product with a block-wise float8 weight, activations microscaled row by row."""

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Allocate weight `[N, K]` and the exponents of its scales, `[N, K / 32]`."""
        sizes = (sum(output_partition_sizes), input_size_per_partition)
        assert sizes[1] % (2 * SHARED) == 0, f"{sizes[1]} inputs are no whole pairs of {SHARED}"
        axes = {"input_dim": 1, "output_dim": 0, **extra_weight_attrs}
        weight = nn.Parameter(torch.empty(sizes, dtype=torch.float8_e4m3fn), False)
        set_weight_attrs(weight, axes)
        layer.register_parameter("weight", weight)
        exponents = torch.empty(sizes[0], sizes[1] // SHARED, dtype=torch.uint8)
        scale = nn.Parameter(exponents, requires_grad=False)
        loader = _spreading(extra_weight_attrs["weight_loader"])
        set_weight_attrs(scale, {**axes, "weight_loader": loader})
        layer.register_parameter("scale", scale)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Turn the weight to `[K, N]` and the scales to bytes `[K / 64, N, 2]`."""
        layer.weight = nn.Parameter(layer.weight.data.t(), requires_grad=False)
        pairs = layer.scale.data.unflatten(1, (-1, 2)).transpose(0, 1)
        layer.weight_scale = nn.Parameter(pairs.contiguous(), requires_grad=False)
        del layer.scale

    def apply(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Multiply `[T, K]` to `[T, N]`."""
        quantized_TK, token_scale = operations.mx_quant(x, kind=KIND)
        output: torch.Tensor = operations.mx_matmul(
            quantized_TK,
            layer.weight,
            token_scale,
            layer.weight_scale,
            kind=KIND,
            bias_N=bias,
            output_dtype=x.dtype,
        )
        return output


class GroupedBlockFloatLinear(BlockFloatLinear):
    """A weight for each group of inputs; the checkpoint stacks them as rows."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Turn the weight to `[G, X, L]` and the scales to bytes `[G, X / 64, L, 2]`."""
        weight_GLX = layer.weight.data.unflatten(0, (self.groups, -1))
        scale_GLX = layer.scale.data.unflatten(0, (self.groups, -1))
        weight_GXL = weight_GLX.transpose(1, 2).contiguous()
        pairs = scale_GLX.unflatten(2, (-1, 2)).transpose(1, 2).contiguous()
        layer.weight = nn.Parameter(weight_GXL, requires_grad=False)
        layer.weight_scale = nn.Parameter(pairs, requires_grad=False)
        del layer.scale

    def apply(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Multiply `[T, G, X]` to `[T, G, L]`."""
        assert bias is None, "the operator has no bias"
        tokens, groups, inner = x.shape
        quantized, token_scale = operations.mx_quant(x.reshape(-1, inner), kind=KIND)
        output: torch.Tensor = operations.grouped_mx_projection(
            quantized.view(tokens, groups, inner),
            layer.weight,
            token_scale.view(tokens, groups, -1, 2),
            layer.weight_scale,
            output_dtype=x.dtype,
        )
        return output


def _spreading(load: Callable[..., None]) -> Callable[..., None]:
    """Load scales `[N / 128, K / 128]` as bytes `[N, K / 32]`, of which a rank takes its part."""

    def spread_and_load(parameter: nn.Parameter, scale: torch.Tensor, *shard: int) -> None:
        exponents = scale.view(torch.uint8).repeat_interleave(BLOCK, dim=0)
        load(parameter, exponents.repeat_interleave(BLOCK // SHARED, dim=1), *shard)

    return spread_and_load
