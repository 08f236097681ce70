"""References of attention and cache writes: request by request, head by head."""

# Shapes: T tokens, N query heads, K kv heads, D head dim, R requests, M blocks of a request

import torch
from torch import Tensor


def write_kv_cache(
    key_TKD: Tensor, value_TKD: Tensor, key_cache: Tensor, value_cache: Tensor, slots_T: Tensor
) -> None:
    """Copy token by token; slot s is row s % P of block s // P, a negative slot is skipped."""
    block_size = key_cache.shape[1]
    for token, slot in enumerate(slots_T.tolist()):
        if slot >= 0:
            key_cache[slot // block_size, slot % block_size] = key_TKD[token]
            value_cache[slot // block_size, slot % block_size] = value_TKD[token]


def paged_attention(
    query_TND: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    block_table_RM: Tensor,
    query_lengths_cumulative: list[int],
    kv_lengths: list[int],
    block_size: int,
    num_kv_heads: int,
    scale: float,
    mask: Tensor | None,
    causal: bool = True,
    window: int | None = None,
) -> Tensor:
    """Gather each request's keys token by token, then attend."""
    assert key_cache.shape[1:3] == (block_size, num_kv_heads)
    starts = [0, *query_lengths_cumulative[:-1]]
    parts = []
    for request, (start, stop) in enumerate(zip(starts, query_lengths_cumulative, strict=True)):
        table = block_table_RM[request].tolist()
        rows = [(table[i // block_size], i % block_size) for i in range(kv_lengths[request])]
        key = torch.stack([key_cache[row] for row in rows])
        value = torch.stack([value_cache[row] for row in rows])
        parts.append(_attend(query_TND[start:stop], key, value, scale, causal, window))
    return torch.cat(parts)


def dense_attention(
    query_TND: Tensor,
    key_TKD: Tensor,
    value_TKD: Tensor,
    *,
    query_lengths_cumulative: list[int],
    kv_lengths_cumulative: list[int],
    num_kv_heads: int,
    scale: float,
    mask: Tensor | None,
    causal: bool = True,
    window: int | None = None,
) -> Tensor:
    """Attend request by request."""
    assert key_TKD.shape[1] == num_kv_heads
    parts = []
    start = key_start = 0
    for stop, key_stop in zip(query_lengths_cumulative, kv_lengths_cumulative, strict=True):
        key, value = key_TKD[key_start:key_stop], value_TKD[key_start:key_stop]
        parts.append(_attend(query_TND[start:stop], key, value, scale, causal, window))
        start, key_start = stop, key_stop
    return torch.cat(parts)


def _attend(
    query_QND: Tensor,
    key_LKD: Tensor,
    value_LKD: Tensor,
    scale: float,
    causal: bool,
    window: int | None,
) -> Tensor:
    queries, heads, _ = query_QND.shape
    keys, kv_heads, _ = key_LKD.shape
    position_Q = torch.arange(queries) + keys - queries
    distance_QL = position_Q[:, None] - torch.arange(keys)
    visible_QL = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        visible_QL &= distance_QL >= 0
    if window is not None:
        visible_QL &= distance_QL < window
    out = torch.empty(queries, heads, value_LKD.shape[-1])
    for head in range(heads):
        source = head // (heads // kv_heads)
        scores_QL = query_QND[:, head].float() @ key_LKD[:, source].float().T * scale
        weights_QL = scores_QL.masked_fill(~visible_QL, -torch.inf).softmax(dim=-1)
        out[:, head] = weights_QL @ value_LKD[:, source].float()
    return out.to(query_QND.dtype)
