"""References of attention and cache writes: request by request, head by head."""

# Shapes: T tokens, N query heads, K kv heads, D head dim, E value dim, R requests, M blocks of a
#         request, Q queries and L keys of a request.
#         With layout BSND `query_TND` is [R, S, N, D], dense keys and values are [R, L, K, D].

from collections.abc import Iterator

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
    layout: str = "TND",
    alignment: str = "lower_right",
    log_sum_exp: Tensor | None = None,
) -> Tensor:
    """Gather each request's keys token by token, then attend."""
    assert key_cache.shape[1:3] == (block_size, num_kv_heads)
    keys, values = [], []
    for request, length in enumerate(kv_lengths):
        table = block_table_RM[request].tolist()
        rows = [(table[i // block_size], i % block_size) for i in range(length)]
        keys.append(torch.stack([key_cache[row] for row in rows]))
        values.append(torch.stack([value_cache[row] for row in rows]))
    queries = _requests(query_TND, query_lengths_cumulative, layout)
    visible = [
        _visible(len(q), len(k), causal, window, alignment) for q, k in _pairs(queries, keys)
    ]
    return _attend_all(query_TND, queries, keys, values, visible, scale, layout, log_sum_exp)


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
    layout: str = "TND",
    alignment: str = "lower_right",
    log_sum_exp: Tensor | None = None,
) -> Tensor:
    """Attend request by request."""
    assert key_TKD.shape[-2] == num_kv_heads
    queries = _requests(query_TND, query_lengths_cumulative, layout)
    keys = _requests(key_TKD, kv_lengths_cumulative, layout)
    values = _requests(value_TKD, kv_lengths_cumulative, layout)
    visible = [
        _visible(len(q), len(k), causal, window, alignment) for q, k in _pairs(queries, keys)
    ]
    return _attend_all(query_TND, queries, keys, values, visible, scale, layout, log_sum_exp)


def _pairs(queries: list[Tensor], keys: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(queries, keys, strict=True)


def _requests(tensor: Tensor, ends: list[int], layout: str) -> list[Tensor]:
    """Rows of each request: one after the other in TND, padded on the right in BSND."""
    starts = [0, *ends[:-1]]
    if layout == "TND":
        return [tensor[start:stop] for start, stop in zip(starts, ends, strict=True)]
    assert layout == "BSND"
    lengths = [stop - start for start, stop in zip(starts, ends, strict=True)]
    return [rows[:length] for rows, length in zip(tensor, lengths, strict=True)]


def _visible(queries: int, keys: int, causal: bool, window: int | None, alignment: str) -> Tensor:
    """Which keys [Q, L] a query sees; its own is counted from the end, or from the start."""
    if alignment == "upper_left":
        assert causal
        assert window is None
        return torch.ones(queries, keys, dtype=torch.bool).tril()
    assert alignment == "lower_right"
    position_Q = torch.arange(queries) + keys - queries
    distance_QL = position_Q[:, None] - torch.arange(keys)
    visible_QL = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        visible_QL &= distance_QL >= 0
    if window is not None:
        visible_QL &= distance_QL < window
    return visible_QL


def _attend_all(
    query_TND: Tensor,
    queries: list[Tensor],
    keys: list[Tensor],
    values: list[Tensor],
    visible: list[Tensor],
    scale: float,
    layout: str,
    log_sum_exp: Tensor | None,
) -> Tensor:
    """Attend and put each request's rows where its queries stood, zeros into the padding."""
    out = query_TND.new_zeros(*query_TND.shape[:-1], values[0].shape[-1])
    stop = 0
    for request, (query, key) in enumerate(_pairs(queries, keys)):
        attended, lse_QN = _attend(query, key, values[request], visible[request], scale)
        start, stop = stop, stop + len(query)
        if layout == "TND":
            out[start:stop] = attended
        else:
            out[request, : len(query)] = attended
        if log_sum_exp is not None and layout == "TND":
            log_sum_exp[start:stop, :, 0] = lse_QN
        elif log_sum_exp is not None:
            log_sum_exp[request, :, : len(query), 0] = lse_QN.T
    return out


def _attend(
    query_QND: Tensor, key_LKD: Tensor, value_LKD: Tensor, visible_QL: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention [Q, N, E] in the query's dtype and log-sum-exp [Q, N] in float32."""
    queries, heads, _ = query_QND.shape
    group = heads // key_LKD.shape[1]
    out = torch.empty(queries, heads, value_LKD.shape[-1])
    lse_QN = torch.empty(queries, heads)
    for head in range(heads):
        source = head // group
        scores_QL = query_QND[:, head].float() @ key_LKD[:, source].float().T * scale
        scores_QL = scores_QL.masked_fill(~visible_QL, -torch.inf)
        out[:, head] = scores_QL.softmax(dim=-1) @ value_LKD[:, source].float()
        lse_QN[:, head] = scores_QL.logsumexp(dim=-1)
    return out.to(query_QND.dtype), lse_QN
