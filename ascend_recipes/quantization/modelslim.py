"""Reader of ModelSlim checkpoints: `quant_model_description.json` says how each tensor is stored.

Legend: T tokens, K inner size, N columns.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.model_executor.utils import set_weight_attrs

from ascend_recipes.errors import RecipeError
from ascend_recipes.findings import recipe_error
from ascend_recipes.ops import operations
from ascend_recipes.schema.modelslim import (
    DESCRIPTION_FILE,
    FLOAT,
    INT8_DYNAMIC,
    NATIVE_SCHEMES,
)


class ModelSlimConfig(QuantizationConfig):
    """Scheme of every weight, by its name in the checkpoint.

    Layers that are quantized must be built with their name in the checkpoint as prefix.
    """

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__()
        self.description = description

    @classmethod
    def get_name(cls) -> str:  # type: ignore[override]
        """Name that vLLM-Ascend gave the format."""
        return "ascend"

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
        """File beside the weights."""
        return [DESCRIPTION_FILE]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ModelSlimConfig":
        """Take the content of the description file."""
        return cls(config)

    def get_quant_method(self, layer: nn.Module, prefix: str) -> LinearMethodBase | None:  # type: ignore[override]
        """Method of a linear layer; other layers are not quantized."""
        if not isinstance(layer, LinearBase):
            return None
        scheme = self.scheme(prefix)
        if scheme == INT8_DYNAMIC:
            return Int8DynamicLinear()
        if scheme == FLOAT:
            return UnquantizedLinearMethod()
        raise _not_implemented(prefix, scheme, (FLOAT, INT8_DYNAMIC))

    def scheme(self, name: str) -> str:
        """Scheme of a layer, or of all parts of a merged one.

        Args:
            name: the layer's name in the checkpoint, merged layers under their module's name.

        Raises:
            RecipeError: no entry, parts that differ, or a scheme that is not implemented.
        """
        module, _, leaf = name.rpartition(".")
        parts = [f"{module}.{part}" for part in self.packed_modules_mapping.get(leaf, [leaf])]
        schemes = {part: self.description.get(f"{part}.weight") for part in parts}
        if missing := [part for part, scheme in schemes.items() if scheme is None]:
            raise recipe_error(
                "checkpoint.description_incomplete",
                at="checkpoint.path",
                file=DESCRIPTION_FILE,
                missing=missing,
            )
        found = set(schemes.values())
        if len(found) > 1:
            raise recipe_error(
                "checkpoint.description_mixed",
                at="checkpoint.path",
                file=DESCRIPTION_FILE,
                name=name,
                schemes=[f"{part}: {scheme}" for part, scheme in schemes.items()],
            )
        scheme = str(found.pop())
        if scheme not in NATIVE_SCHEMES:
            raise _not_implemented(name, scheme, NATIVE_SCHEMES)
        return scheme


class Int8DynamicLinear(LinearMethodBase):
    """int8 product of weights and of activations quantized token by token."""

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
        """Allocate weight, scale and offset as the checkpoint has them, `[out, in]`."""
        outputs = sum(output_partition_sizes)
        weight = _parameter(outputs, input_size_per_partition, torch.int8)
        set_weight_attrs(weight, {"input_dim": 1, "output_dim": 0, **extra_weight_attrs})
        layer.register_parameter("weight", weight)
        for name in ("weight_scale", "weight_offset"):
            parameter = _parameter(outputs, 1, torch.float32)
            set_weight_attrs(parameter, {"output_dim": 0, **extra_weight_attrs})
            layer.register_parameter(name, parameter)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Turn the weight to `[in, out]` and the scale to `[out]`, as the operator takes them."""
        check_symmetric(layer.weight_offset)
        layer.weight = nn.Parameter(layer.weight.data.t().contiguous(), requires_grad=False)
        layer.weight_scale = nn.Parameter(layer.weight_scale.data.flatten(), requires_grad=False)
        del layer.weight_offset

    def apply(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Multiply `[T, K]` to `[T, N]`."""
        quantized_TK, scale_T = operations.dynamic_quant(x)
        output: torch.Tensor = operations.quant_matmul(
            quantized_TK,
            layer.weight,
            layer.weight_scale,
            token_scale_T=scale_T,
            bias_N=bias,
            output_dtype=x.dtype,
        )
        return output


def _not_implemented(name: str, scheme: str, known: Sequence[str]) -> RecipeError:
    return recipe_error(
        "checkpoint.scheme_not_implemented",
        at="checkpoint.variant",
        name=name,
        scheme=scheme,
        known=known,
    )


def check_symmetric(offset: torch.Tensor) -> None:
    """Refuse zero points: the operators know none for weights.

    Raises:
        RecipeError: an offset that is not zero.
    """
    if bool(offset.count_nonzero()):
        raise recipe_error("checkpoint.weight_offset", at="checkpoint.path")


def _parameter(rows: int, columns: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(rows, columns, dtype=dtype), requires_grad=False)
