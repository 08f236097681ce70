"""Binding of the attention of a block of drafts: PyTorch over all requests at once.

Legend: T queries, R requests, K drafts of a request, N heads, D head dimension, B blocks, P rows
of a page, W width of a row, V blocks of a request, L keys that a block may see.
"""

import torch
from torch import Tensor

from ascend_recipes.ops.latent_cache import PACKED_DTYPES, unpack_latent_rows

__all__ = ["draft_block_attention_torch"]


def draft_block_attention_torch(
    query_TND: Tensor,
    window_cache_BPW: Tensor,
    *,
    window_table_RV: Tensor,
    kv_lengths_R: Tensor,
    sinks_N: Tensor,
    scale: float,
    window: int,
) -> Tensor:
    """Attend over the window before each block and over the whole block.

    Args:
        query_TND: queries, K of each request.
        window_cache_BPW: paged keys, which are values too; the block's are written already.
        window_table_RV: pages of each request.
        kv_lengths_R: tokens of each request with its block.
        sinks_N: a further score of each head, without a value.
        scale: factor of the products.
        window: tokens before the block that are seen.

    Returns:
        `[T, N, D]` in the type of the queries.
    """
    requests, head = kv_lengths_R.shape[0], query_TND.shape[-1]
    query_RKND = query_TND.view(requests, -1, *query_TND.shape[1:]).float()
    count = window + query_RKND.shape[1]
    # Counted from the end, so that every request has its block in the same columns.
    place_RL = kv_lengths_R[:, None].long() - count + torch.arange(count, device=query_TND.device)
    hidden_RL = place_RL < 0
    place_RL = place_RL.clamp(min=0)
    rows = window_cache_BPW.shape[1]
    block_RL = window_table_RV.long().gather(1, place_RL // rows)
    key_RLW = window_cache_BPW[block_RL, place_RL % rows]
    packed = window_cache_BPW.dtype in PACKED_DTYPES
    key_RLD = unpack_latent_rows(key_RLW.flatten(0, 1), head) if packed else key_RLW.float()
    # What is not seen may be anything, and zero times infinity is no zero.
    key_RLD = key_RLD.view(requests, count, head).masked_fill(hidden_RL[:, :, None], 0)
    score_RKNL = torch.einsum("rknd,rld->rknl", query_RKND, key_RLD) * scale
    score_RKNL = score_RKNL.masked_fill(hidden_RL[:, None, None], float("-inf"))
    sink_RKN1 = sinks_N.float().expand(*query_RKND.shape[:3])[..., None]
    weight_RKNL = torch.cat((score_RKNL, sink_RKN1), dim=-1).softmax(dim=-1)[..., :-1]
    out_RKND = torch.einsum("rknl,rld->rknd", weight_RKNL, key_RLD)
    return out_RKND.flatten(0, 1).to(query_TND.dtype)
