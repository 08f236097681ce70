"""Pages of hybrid caches: attention layers and recurrent states share one pool of equal pages."""

from collections.abc import Mapping
from dataclasses import dataclass

from ascend_recipes.schema.base import Json

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1}


@dataclass(frozen=True)
class HybridPages:
    """Bytes and tokens of one page, per rank."""

    token_bytes: int
    """Keys and values of one token in one full-attention layer."""
    state_bytes: int
    """Convolution window and recurrent state of one sequence in one layer."""
    block_tokens: int
    """Tokens per block after unification."""


def hybrid_pages(
    config: Mapping[str, Json],
    *,
    tp: int,
    kernel_block: int,
    model_dtype: str,
    state_dtype: str,
    num_draft_tokens: int,
) -> HybridPages:
    """Unify the page of an attention layer with the page of a gated-delta-net layer.

    vLLM enlarges the attention block, in multiples of the kernel's block, until its page holds a
    state page (vllm/platforms/interface.py, `_align_hybrid_block_size`). The window keeps one row
    per draft token more than the convolution needs (mamba_utils.py, gated_delta_net_state_shape).
    """
    kv_heads = max(1, _size(config, "num_key_value_heads") // tp)
    token_bytes = 2 * kv_heads * _size(config, "head_dim") * DTYPE_BYTES[model_dtype]
    state_bytes = _window_bytes(config, tp, model_dtype, num_draft_tokens)
    state_bytes += _recurrent_bytes(config, tp, state_dtype)
    blocks = -(-state_bytes // (kernel_block * token_bytes))
    return HybridPages(token_bytes, state_bytes, kernel_block * blocks)


def _window_bytes(
    config: Mapping[str, Json], tp: int, model_dtype: str, num_draft_tokens: int
) -> int:
    keys = 2 * _size(config, "linear_num_key_heads") * _size(config, "linear_key_head_dim")
    values = _size(config, "linear_num_value_heads") * _size(config, "linear_value_head_dim")
    rows = _size(config, "linear_conv_kernel_dim") - 1 + num_draft_tokens
    return rows * (keys + values) // tp * DTYPE_BYTES[model_dtype]


def _recurrent_bytes(config: Mapping[str, Json], tp: int, state_dtype: str) -> int:
    heads = _size(config, "linear_num_value_heads") // tp
    head = _size(config, "linear_value_head_dim") * _size(config, "linear_key_head_dim")
    return heads * head * DTYPE_BYTES[state_dtype]


def _size(config: Mapping[str, Json], field: str) -> int:
    value = config[field]
    assert isinstance(value, int), f"{field} is {value!r}"
    return value
