"""Plain indexer and shared-KV sparse attention, token by token."""

# Shapes: T tokens, N heads, D head dim, R requests, B blocks, P rows of a block, L keys,
#         V columns of a block table, K selected blocks

from collections.abc import Iterator

import torch
from torch import Tensor

PACKED_DTYPES = (torch.uint8, torch.float8_e4m3fn)
ROPE = 64
GROUP = 64


def lightning_indexer_metadata(
    *,
    query_start_R1: Tensor,
    kv_lengths_R: Tensor,
    num_heads: int,
    head_dim: int,
    top_k: int,
    ratio: int,
) -> Tensor:
    """Nothing to split here."""
    return torch.zeros(1024, dtype=torch.int32)


def lightning_indexer(
    query_TND: Tensor,
    weights_TN: Tensor,
    query_scale_TN: Tensor,
    key_cache_BPD: Tensor,
    scale_cache_BP1: Tensor,
    *,
    query_start_R1: Tensor,
    kv_lengths_R: Tensor,
    block_table_RV: Tensor,
    metadata: Tensor,
    top_k: int,
    ratio: int = 4,
) -> Tensor:
    """The `top_k` highest scores: weighted sum over heads of relu(scaled query · scaled key)."""
    indices_TK = torch.full((query_TND.shape[0], top_k), -1, dtype=torch.int32)
    for token, request, position in _tokens(query_start_R1, kv_lengths_R):
        visible = (position + 1) // ratio
        key_LD = cached_rows(key_cache_BPD, block_table_RV[request], visible).float()
        scale_L1 = cached_rows(scale_cache_BP1, block_table_RV[request], visible).float()
        query_ND = query_TND[token].float() * query_scale_TN[token].float()[:, None]
        product_NL = query_ND @ (key_LD * scale_L1).T
        score_L = weights_TN[token].to(scale_cache_BP1.dtype).float() @ product_NL.relu()
        best = score_L.argsort(descending=True, stable=True)[:top_k]
        indices_TK[token, : best.numel()] = best.int()
    return indices_TK


def sparse_attention_metadata(
    *,
    query_start_R1: Tensor,
    kv_lengths_R: Tensor,
    num_heads: int,
    head_dim: int,
    window: int,
    ratio: int,
    top_k: int,
) -> Tensor:
    """Nothing to split here."""
    return torch.zeros(1024, dtype=torch.int32)


def sparse_attention_shared_kv(
    query_TND: Tensor,
    window_cache_BPW: Tensor,
    *,
    window_table_RV: Tensor,
    query_start_R1: Tensor,
    kv_lengths_R: Tensor,
    sinks_N: Tensor,
    metadata: Tensor,
    scale: float,
    window: int,
    compressed_cache_BPW: Tensor | None = None,
    compressed_table_RV: Tensor | None = None,
    ratio: int = 1,
    indices_TK: Tensor | None = None,
) -> Tensor:
    """Softmax over window keys, compressed keys and a sink that has no value."""
    out_TND = torch.zeros_like(query_TND)
    head = query_TND.shape[-1]
    for token, request, position in _tokens(query_start_R1, kv_lengths_R):
        first = max(0, position - window + 1)
        key_LD = cached_rows(window_cache_BPW, window_table_RV[request], position + 1, head)[first:]
        if compressed_cache_BPW is not None and compressed_table_RV is not None:
            visible = (position + 1) // ratio
            table_V = compressed_table_RV[request]
            block_LD = cached_rows(compressed_cache_BPW, table_V, visible, head)
            if indices_TK is not None:
                chosen = indices_TK[token]
                block_LD = block_LD[chosen[(chosen >= 0) & (chosen < visible)].long()]
            key_LD = torch.cat((key_LD, block_LD))
        score_NL = query_TND[token].float() @ key_LD.T * scale
        weight_NL = torch.cat((score_NL, sinks_N[:, None].float()), dim=1).softmax(dim=1)[:, :-1]
        out_TND[token] = (weight_NL @ key_LD).to(query_TND.dtype)
    return out_TND


def _tokens(query_start_R1: Tensor, kv_lengths_R: Tensor) -> Iterator[tuple[int, int, int]]:
    """Token, request and position of every query; the last query is the last key."""
    bounds, lengths = query_start_R1.tolist(), kv_lengths_R.tolist()
    for request, length in enumerate(lengths):
        begin, end = bounds[request], bounds[request + 1]
        for token in range(begin, end):
            yield token, request, length - (end - token)


def cached_rows(cache_BPW: Tensor, table_V: Tensor, count: int, head: int = 0) -> Tensor:
    """The first `count` rows of a request; packed rows are unpacked to `head` elements."""
    size = cache_BPW.shape[1]
    pages = [cache_BPW[block] for block in table_V[: -(-count // size)].tolist()]
    width = cache_BPW.shape[2]
    rows = torch.cat(pages)[:count] if pages else cache_BPW.new_empty(0, width)
    if not head:
        return rows
    return _unpack(rows, head) if cache_BPW.dtype in PACKED_DTYPES else rows.float()


def _unpack(rows: Tensor, head: int) -> Tensor:
    """64 bfloat16 rope | fp8_e4m3 values | one exponent for each 64 values."""
    values = head - ROPE
    rows = rows.view(torch.uint8)
    rope = rows[:, : 2 * ROPE].contiguous().view(torch.bfloat16).float()
    stored = rows[:, 2 * ROPE : 2 * ROPE + values].contiguous().view(torch.float8_e4m3fn).float()
    exponents = rows[:, 2 * ROPE + values : 2 * ROPE + values + values // GROUP].float()
    factor = (2.0 ** (exponents - 127)).repeat_interleave(GROUP, dim=1)
    return torch.cat((stored * factor, rope), dim=1)
