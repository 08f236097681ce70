"""Which class holds the routed experts of a checkpoint, by its weight format."""

from vllm.model_executor.layers.quantization import QuantizationConfig

from ascend_recipes.moe.experts import Int4Experts, Int8Experts, RoutedExperts
from ascend_recipes.moe.microscaled import MicroscaledExperts
from ascend_recipes.quantization.microscaled import BlockFloatConfig
from ascend_recipes.quantization.modelslim import ModelSlimConfig
from ascend_recipes.schema.modelslim import FLOAT, INT4_DYNAMIC, INT8_DYNAMIC

_MODELSLIM: dict[str, type[RoutedExperts]] = {
    FLOAT: RoutedExperts,
    INT8_DYNAMIC: Int8Experts,
    INT4_DYNAMIC: Int4Experts,
}


def routed_experts(
    quant_config: QuantizationConfig | None,
    *,
    name: str,
    num_experts: int,
    hidden_size: int,
    intermediate_size: int,
    limit: float,
) -> RoutedExperts:
    """Experts in the format of the checkpoint.

    Args:
        quant_config: format of the checkpoint; none for float weights.
        name: name of the experts in the checkpoint, without a number.
        num_experts: experts of the model.
        hidden_size: H.
        intermediate_size: I over all ranks.
        limit: largest value of gate and up.
    """
    return _class(quant_config, name)(
        num_experts=num_experts,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        limit=limit,
    )


def _class(quant_config: QuantizationConfig | None, name: str) -> type[RoutedExperts]:
    if isinstance(quant_config, BlockFloatConfig):
        return MicroscaledExperts
    if isinstance(quant_config, ModelSlimConfig):
        return _MODELSLIM[quant_config.scheme(f"{name}.0.w1")]
    return RoutedExperts
