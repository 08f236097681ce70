"""Bindings of the compressor of compressed attention to NPU operators."""

# Shapes: T tokens, H hidden, D head dim, E = coff * D with coff 2 at ratio 4 and 1 at ratio 128,
#         R requests, C compressed rows, r ratio, V columns of a block table, B blocks,
#         P rows of a block, W = 2 * E, X positions of a rope table, K rotated part

import torch
from torch import Tensor

FLAT = 1
BLOCK_OFFSET = 2
INTERLEAVE = 2
CONTINUOUS = 1
OVERLAPPED_RATIO = 4
"""At this ratio a row also takes the tokens of the block before, from a second projection."""


def compressed_rows(tokens: int, requests: int, ratio: int) -> int:
    """Rows C that `compressor` returns: the most that `tokens` of `requests` can complete."""
    return min(tokens, tokens // ratio + requests)


def compressor_metadata_custom(
    cosine_XK: Tensor,
    sine_XK: Tensor,
    query_start_R1: Tensor,
    start_R: Tensor,
    block_table_RV: Tensor,
    *,
    block_size: int,
    ratio: int,
    num_rows: int,
    flat: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rope rows and cache slots of the rows of `compressor`, on `_C_ascend::compressor_metadata`.

    Args:
        cosine_XK: Cosines of every raw position, with the rope of compressed layers.
        sine_XK: Sines.
        query_start_R1: First token of each request and the end, int32.
        start_R: Position of the first token of each request, int32.
        block_table_RV: Blocks of the compressed cache, int32.
        block_size: Rows of such a block.
        ratio: Tokens of a row.
        num_rows: C, `compressed_rows`.
        flat: Slots as block * block_size + row instead of (block, row).

    Returns:
        Cosines and sines [C, K] and int32 slots [C] or [C, 2]; rows without a block have
        cosine 1, sine 0 and a negative slot.
    """
    cosine, sine, slots = torch.ops._C_ascend.compressor_metadata(
        cosine_XK,
        sine_XK,
        query_start_R1,
        start_R,
        block_table_RV,
        block_size,
        FLAT if flat else BLOCK_OFFSET,
        ratio,
        num_rows,
        start_R.shape[0],
    )
    return cosine.flatten(1), sine.flatten(1), slots


def compressor_custom(
    x_TH: Tensor,
    wkv_EH: Tensor,
    wgate_EH: Tensor,
    ape_rE: Tensor,
    norm_weight_D: Tensor,
    state_BPW: Tensor,
    cosine_CK: Tensor,
    sine_CK: Tensor,
    *,
    block_table_RV: Tensor,
    query_start_R1: Tensor,
    start_R: Tensor,
    ratio: int,
    epsilon: float,
) -> Tensor:
    """One row for every `ratio` tokens, on `_C_ascend::compressor`; states are kept in pages.

    Args:
        x_TH: Tokens of all requests, one after the other.
        wkv_EH: Key projection, in the type of `x_TH`.
        wgate_EH: Score projection, alike.
        ape_rE: Bias of the scores by position in the block, float32.
        norm_weight_D: Weight of the final norm.
        state_BPW: Keys and biased scores of tokens, float32, written in place: the row of
            position p is p mod P of block p // P of the table.
        cosine_CK: Cosines of the rows, from `compressor_metadata`, float32.
        sine_CK: Sines.
        block_table_RV: State blocks, int32; 0 marks a block that is neither written nor read.
        query_start_R1: First token of each request and the end, int32.
        start_R: Position of the first token of each request, int32.
        ratio: 4 or 128.
        epsilon: Of the final norm.

    Returns:
        Rows [C, D] in request order; those after the last completed block are undefined.
    """
    rows_CD: Tensor = torch.ops._C_ascend.compressor(
        x_TH,
        wkv_EH,
        wgate_EH,
        state_BPW,
        ape_rE,
        norm_weight_D,
        sine_CK,
        cosine_CK,
        state_block_table=block_table_RV,
        cu_seqlens=query_start_R1,
        seqused=None,
        start_pos=start_R,
        rope_head_dim=cosine_CK.shape[-1],
        cmp_ratio=ratio,
        coff=2 if ratio == OVERLAPPED_RATIO else 1,
        norm_eps=epsilon,
        rotary_mode=INTERLEAVE,
        cache_mode=CONTINUOUS,
    )
    return rows_CD
