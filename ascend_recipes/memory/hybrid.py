"""Pages of hybrid caches: attention layers and recurrent states share one pool of equal pages."""

from collections.abc import Mapping
from dataclasses import dataclass

from ascend_recipes.memory.pages import ITEM_BYTES, size_of
from ascend_recipes.schema.base import Json


@dataclass(frozen=True)
class HybridPages:
    """Bytes and tokens of one page, per rank."""

    token_bytes: int
    """Keys and values of one token in one full-attention layer."""
    key_bytes: int
    """The keys' (or the latent's) part of them."""
    window_bytes: int
    """Convolution window of one sequence in one layer."""
    recurrent_bytes: int
    """Recurrent state of one sequence in one layer."""
    block_tokens: int
    """Tokens per block after unification."""

    @property
    def state_bytes(self) -> int:
        """Convolution window and recurrent state of one sequence in one layer."""
        return self.window_bytes + self.recurrent_bytes

    def overlaid_block(self, kernel_block: int) -> int:
        """Tokens per block under vllm-ascend on A2, A3 and A5.

        The state lies over the keys alone, the convolution window before them
        (vllm_ascend/patch/platform/patch_mamba_config.py:30-150 at 182b75ea).
        """
        return kernel_block * -(-self.recurrent_bytes // (kernel_block * self.key_bytes))


@dataclass(frozen=True)
class _StateShape:
    channels: int
    """Channels of the convolution window."""
    window_rows: int
    heads: int
    """Heads of the recurrent state."""
    head_elements: int


def hybrid_pages(
    config: Mapping[str, Json],
    *,
    tp: int,
    kernel_block: int,
    model_dtype: str,
    state_dtype: str,
    num_draft_tokens: int,
) -> HybridPages:
    """Unify the page of an attention layer with the page of a recurrent layer.

    vLLM enlarges the attention block, in multiples of the kernel's block, until its page holds a
    state page (vllm/platforms/interface.py, `_align_hybrid_block_size`). The window keeps one row
    per draft token more than the convolution needs (mamba_utils.py, gated_delta_net_state_shape).
    """
    shape = _state_shape(config)
    keys, rest = _token_elements(config, tp)
    token_bytes = (keys + rest) * ITEM_BYTES[model_dtype]
    rows = shape.window_rows + num_draft_tokens
    window = rows * shape.channels // tp * ITEM_BYTES[model_dtype]
    recurrent = shape.heads // tp * shape.head_elements * ITEM_BYTES[state_dtype]
    blocks = -(-(window + recurrent) // (kernel_block * token_bytes))
    return HybridPages(
        token_bytes=token_bytes,
        key_bytes=keys * ITEM_BYTES[model_dtype],
        window_bytes=window,
        recurrent_bytes=recurrent,
        block_tokens=kernel_block * blocks,
    )


def _token_elements(config: Mapping[str, Json], tp: int) -> tuple[int, int]:
    """Cached elements of a token in an attention layer: keys and values, or latent and rotary part.

    A latent is the same on every rank; heads are split, at least one a rank.
    """
    if "kv_lora_rank" in config:
        return size_of(config, "kv_lora_rank"), size_of(config, "qk_rope_head_dim")
    keys = max(1, size_of(config, "num_key_value_heads") // tp) * size_of(config, "head_dim")
    return keys, keys


def _state_shape(config: Mapping[str, Json]) -> _StateShape:
    """Sizes over all ranks, from flat fields or from the nested ones of delta attention."""
    nested = config.get("linear_attn_config")
    if isinstance(nested, dict):
        heads, width = size_of(nested, "num_heads"), size_of(nested, "head_dim")
        rows = size_of(nested, "short_conv_kernel_size") - 1
        return _StateShape(3 * heads * width, rows, heads, width * width)
    key, value = size_of(config, "linear_key_head_dim"), size_of(config, "linear_value_head_dim")
    heads = size_of(config, "linear_num_value_heads")
    channels = 2 * size_of(config, "linear_num_key_heads") * key + heads * value
    return _StateShape(channels, size_of(config, "linear_conv_kernel_dim") - 1, heads, value * key)
