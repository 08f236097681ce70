"""Attention of a block of drafts, one query after another.

Legend: T queries, R requests, N heads, D head dimension, B blocks, P rows of a page, W width of a
row, V blocks of a request, L visible keys.
"""

import torch
from torch import Tensor

from ascend_recipes.ops.reference.compressed_attention import cached_rows


def draft_block_attention(
    query_TND: Tensor,
    window_cache_BPW: Tensor,
    *,
    window_table_RV: Tensor,
    kv_lengths_R: Tensor,
    sinks_N: Tensor,
    scale: float,
    window: int,
) -> Tensor:
    """Softmax over the window before the block, the whole block, and a sink without a value."""
    out_TND = torch.zeros_like(query_TND)
    requests, head = kv_lengths_R.shape[0], query_TND.shape[-1]
    block = query_TND.shape[0] // requests
    for request, length in enumerate(kv_lengths_R.tolist()):
        first = max(0, length - block - window)
        table_V = window_table_RV[request]
        key_LD = cached_rows(window_cache_BPW, table_V, length, head)[first:]
        for token in range(request * block, (request + 1) * block):
            score_NL = query_TND[token].float() @ key_LD.T * scale
            weight_NL = torch.cat((score_NL, sinks_N[:, None].float()), dim=1).softmax(dim=1)
            out_TND[token] = (weight_NL[:, :-1] @ key_LD).to(query_TND.dtype)
    return out_TND
