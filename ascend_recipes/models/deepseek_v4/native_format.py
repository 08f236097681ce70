"""How published checkpoints store each tensor; light at import.

Names, types and shapes: public tensor listings of DeepSeek-V4-Flash (69,187 tensors in 46 files)
and DeepSeek-V4-Pro (145,116 in 64); 4-bit numbers lie in pairs in int8, E8M0 scales beside them.
"""

from typing import Literal, TypeAlias

from ascend_recipes.schema.base import Json

METHOD = "deepseek_v4_fp8"
"""vLLM's name of the format (vllm/model_executor/models/config.py, DeepseekV4ForCausalLMConfig)."""

QUANTIZATION: dict[str, Json] = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
}
"""`quantization_config` of their config.json."""

Storage: TypeAlias = Literal["float8", "float4", "int64"]

_WEIGHT = ".weight"
_FLOAT8 = ("attn.wq_a", "attn.wq_b", "attn.wkv", "attn.wo_a", "attn.wo_b", "indexer.wq_b")
_DRAFTER_FLOAT8 = ("e_proj", "h_proj", "main_proj")


def storage(name: str) -> Storage | None:
    """How a tensor is stored; none as it is computed with.

    Args:
        name: published name of a tensor of the float checkpoint.
    """
    if name.endswith(".gate.tid2eid"):
        return "int64"
    layer = name.removesuffix(_WEIGHT)
    if layer == name:
        return None
    if ".ffn.experts." in layer:
        return "float4"
    if layer.endswith(_FLOAT8) or ".shared_experts." in layer:
        return "float8"
    return "float8" if layer.startswith("mtp.") and layer.endswith(_DRAFTER_FLOAT8) else None
