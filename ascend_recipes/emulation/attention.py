"""Emulated fused infer attention: packed or padded, dense or paged, grouped heads, modes 0 to 4."""

# Shapes: T tokens (padded: rows of the batch, padding included), N query heads, K kv heads,
#         G query heads of a kv head, D head dim, E value dim, B blocks, P block size, M rows of a
#         product or blocks of a request, R requests of a group, Q queries, L keys

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ascend_recipes.emulation.attention_arguments import (
    check_heads,
    check_layout,
    check_lengths,
    check_paging,
    check_query,
    check_tensors,
)
from ascend_recipes.emulation.attention_layouts import (
    PACKED,
    as_keys,
    as_log_sum_exp,
    as_output,
    as_rows,
)
from ascend_recipes.emulation.attention_lengths import (
    NAME,
    Batch,
    read_packed_lengths,
    read_padded_lengths,
)
from ascend_recipes.emulation.attention_masks import UNLIMITED, Sparsity, read_sparsity
from ascend_recipes.emulation.refusal import check, check_unset
from ascend_recipes.emulation.undefined import poison

QUERY_TILE = 256
"""Queries whose scores are held at once, to bound memory in long prefills."""

ROWS_CORRECTED = 2
"""Bit of `inner_precise` that corrects rows without keys."""

TOGETHER = 16
"""Longest query for which requests share one computation; longer ones would waste padding."""


def fused_infer_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    block_table: Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    softmax_lse_flag: bool = False,
    antiquant_mode: int = 0,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    **unsupported: Any,
) -> tuple[Tensor, Tensor]:
    """`npu::npu_fused_infer_attention_score` for layouts TND, BSND, BSH, BNSD and BNSD_BSND.

    Returns:
        Attention in the layout of the query (BSND for BNSD_BSND), undefined behind a request's
        queries and where the caller's own mask hides every key and rows are not corrected; and,
        with `softmax_lse_flag`, the log-sum-exp [T, N, 1] or [B, N, S, 1] in float32, else a zero.
    """
    check_unset(NAME, **unsupported)
    _check_modes(antiquant_mode, key_antiquant_mode, value_antiquant_mode)
    check_layout(input_layout)
    kv_heads = num_key_value_heads or num_heads
    check_tensors(query, key, value)
    check_heads(num_heads, kv_heads)
    query = as_rows(query, num_heads, input_layout)
    check_query(query, num_heads, input_layout)
    padded, paged = input_layout != PACKED, block_table is not None
    if padded and not paged:
        key, value = (as_keys(part, query, kv_heads, input_layout) for part in (key, value))
    read = read_padded_lengths if padded else read_packed_lengths
    batch = read(query, key, actual_seq_lengths, actual_seq_lengths_kv, block_table)
    check_lengths(query, key, batch, input_layout, paged)
    _check_precision(inner_precise, batch)
    columns = None
    if block_table is not None:
        width = query.shape[-1]
        check_paging(key, block_table, batch, kv_heads, width, block_size, input_layout)
        columns = block_table.shape[1] * block_size
    bounds = (pre_tokens, next_tokens)
    sparsity = read_sparsity(sparse_mode, atten_mask, *bounds, batch, input_layout, columns)
    value_dim = _value_dim(value, kv_heads, block_table)
    if padded and not paged:
        key, value = key.flatten(0, 1), value.flatten(0, 1)
    rows_TND = query.flatten(0, 1) if padded else query
    out_TNE, lse_TN = _outputs(rows_TND, value_dim, batch)
    for requests in _group(batch):
        key_KRLD, value_KRLE = _collect(key, value, batch, requests, block_table, kv_heads)
        _attend(rows_TND, key_KRLD, value_KRLE, batch, requests, sparsity, scale, out_TNE, lse_TN)
    if sparsity.hidden is not None and inner_precise < ROWS_CORRECTED:
        _forget(out_TNE, lse_TN)
    out = as_output(out_TNE.view(*query.shape[:-1], value_dim), input_layout)
    if not softmax_lse_flag:
        return out, torch.zeros(1)
    return out, as_log_sum_exp(lse_TN.view(query.shape[:-1])[..., None], input_layout)


def _forget(out_TNE: Tensor, lse_TN: Tensor) -> None:
    """Rows whose every key is hidden are promised only with the correction of rows."""
    hidden_TN = lse_TN == -torch.inf
    out_TNE[hidden_TN] = poison(out_TNE.dtype)
    lse_TN[hidden_TN] = poison(lse_TN.dtype)


def _check_precision(inner_precise: int, batch: Batch) -> None:
    """Bit 0 chooses speed, bit 1 corrects rows without keys; here both are exact."""
    modes = (0, 1) if batch.query_axis == 1 else (0, 1, 2, 3)
    allowed = f"0 to {modes[-1]}"
    check(inner_precise in modes, NAME, "inner_precise", f"is {inner_precise}", allowed)


def _check_modes(antiquant: int, key_antiquant: int, value_antiquant: int) -> None:
    for argument, mode in (
        ("antiquant_mode", antiquant),
        ("key_antiquant_mode", key_antiquant),
        ("value_antiquant_mode", value_antiquant),
    ):
        check(mode == 0, NAME, argument, f"is {mode}", "0 (quantized caches are not emulated)")


def _outputs(rows_TND: Tensor, value_dim: int, batch: Batch) -> tuple[Tensor, Tensor]:
    """Zeros where a request has queries, as promised where it has no keys; NaN in the padding."""
    out_TNE = rows_TND.new_zeros(*rows_TND.shape[:2], value_dim)
    lse_TN = torch.full(rows_TND.shape[:2], torch.inf)
    stops = [*batch.query_starts[1:], rows_TND.shape[0]]
    for start, length, stop in zip(batch.query_starts, batch.query_lengths, stops, strict=True):
        if start + length < stop:
            out_TNE[start + length : stop] = poison(out_TNE.dtype)
            lse_TN[start + length : stop] = poison(lse_TN.dtype)
    return out_TNE, lse_TN


def fused_infer_attention_score_meta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    block_table: Tensor | None = None,
    num_heads: int = 1,
    num_key_value_heads: int = 0,
    input_layout: str = "BSH",
    softmax_lse_flag: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Shapes of `npu_fused_infer_attention_score`."""
    check_layout(input_layout)
    kv_heads = num_key_value_heads or num_heads
    rows = as_rows(query, num_heads, input_layout)
    padded = input_layout != PACKED and block_table is None
    dense = as_keys(value, rows, kv_heads, input_layout) if padded else value
    out = rows.new_empty(*rows.shape[:-1], _value_dim(dense, kv_heads, block_table))
    out = as_output(out, input_layout)
    if not softmax_lse_flag:
        return out, query.new_empty((1,), dtype=torch.float32)
    lse = query.new_empty((*rows.shape[:-1], 1), dtype=torch.float32)
    return out, as_log_sum_exp(lse, input_layout)


def _value_dim(value: Tensor, kv_heads: int, block_table: Tensor | None) -> int:
    if block_table is not None and value.dim() == 3:
        return value.shape[-1] // kv_heads
    return value.shape[-1]


def _group(batch: Batch) -> list[list[int]]:
    """Short requests with equal query lengths are computed together: all decodes in one group."""
    groups: dict[int, list[int]] = defaultdict(list)
    for request, (queries, keys) in enumerate(
        zip(batch.query_lengths, batch.key_lengths, strict=True)
    ):
        # Without keys the documentation promises zeros, which the output already holds.
        if queries and keys:
            groups[queries].append(request)
    together = [requests for queries, requests in groups.items() if queries <= TOGETHER]
    alone = [
        [request]
        for queries, requests in groups.items()
        if queries > TOGETHER
        for request in requests
    ]
    return together + alone


def _collect(
    key: Tensor,
    value: Tensor,
    batch: Batch,
    requests: list[int],
    block_table: Tensor | None,
    kv_heads: int,
) -> tuple[Tensor, Tensor]:
    """Keys and values of the requests, [K, R, L, D], padded to the longest."""
    longest = max(batch.key_lengths[request] for request in requests)
    if block_table is None:
        assert batch.key_starts is not None
        starts_R = torch.tensor([batch.key_starts[request] for request in requests])
        # Rows behind a request's length are another's or padding; the mask hides them.
        rows_RL = (starts_R[:, None] + torch.arange(longest)).clamp_(max=key.shape[0] - 1)
        return key.transpose(0, 1)[:, rows_RL], value.transpose(0, 1)[:, rows_RL]
    paged_heads = key.dim() == 4
    block_size = key.shape[2] if paged_heads else key.shape[1]
    table_RM = block_table[requests, : -(-longest // block_size)].long()
    # Beyond a request's length the table may hold anything; the mask hides what is read there.
    table_RM = table_RM.clamp(0, key.shape[0] - 1)

    def collect(cache: Tensor) -> Tensor:
        # Whole pages first: they are dense, and picking heads of pages is many times slower.
        pages = cache.index_select(0, table_RM.flatten())
        if paged_heads:
            pages = pages.transpose(1, 2).flatten(2)
        rows_RLKD = pages.view(len(requests), -1, kv_heads, pages.shape[-1] // kv_heads)
        return rows_RLKD[:, :longest].permute(2, 0, 1, 3)

    return collect(key), collect(value)


def _attend(
    query: Tensor,
    key_KRLD: Tensor,
    value_KRLE: Tensor,
    batch: Batch,
    requests: list[int],
    sparsity: Sparsity,
    scale: float,
    out_TNE: Tensor,
    lse_TN: Tensor,
) -> None:
    """Softmax attention of requests with the same number of queries, in float32."""
    queries = batch.query_lengths[requests[0]]
    starts_R = torch.tensor([batch.query_starts[request] for request in requests])
    lengths_R = torch.tensor([batch.key_lengths[request] for request in requests])
    # Unused rows of a page may hold NaN, and 0 * NaN would spread. What was collected is a copy.
    shortest = min(batch.key_lengths[request] for request in requests)
    kv_heads, _, longest, _ = key_KRLD.shape
    unused_RL = torch.arange(shortest, longest) >= lengths_R[:, None]
    value_KRLE[:, :, shortest:].masked_fill_(unused_RL[..., None], 0.0)
    key_KRDL, value_KRLE = key_KRLD.float().transpose(2, 3), value_KRLE.float()
    for first in range(0, queries, QUERY_TILE):
        offsets_Q = torch.arange(first, min(first + QUERY_TILE, queries))
        rows_RQ = starts_R[:, None] + offsets_Q
        hidden_RQL = _hidden(offsets_Q, queries, lengths_R, longest, sparsity)
        if sparsity.hidden is not None:
            hidden_RQL = hidden_RQL | _chosen(sparsity.hidden, requests, offsets_Q, longest)
        query_RQKGD = (query[rows_RQ].float() * scale).unflatten(2, (kv_heads, -1))
        # The heads that share keys are rows of one product, so that keys are not copied for each.
        rows_KRMD = query_RQKGD.permute(2, 0, 3, 1, 4).flatten(2, 3)
        scores_KRGQL = (rows_KRMD @ key_KRDL).unflatten(2, (-1, len(offsets_Q)))
        scores_KRGQL.masked_fill_(hidden_RQL[:, None], -torch.inf)
        lse_KRGQ = scores_KRGQL.logsumexp(dim=-1)
        weights = (scores_KRGQL - lse_KRGQ[..., None]).exp_().nan_to_num_(0.0)
        result_KRGQE = (weights.flatten(2, 3) @ value_KRLE).unflatten(2, (-1, len(offsets_Q)))
        result_RQNE = result_KRGQE.permute(1, 3, 0, 2, 4).flatten(2, 3)
        out_TNE[rows_RQ] = result_RQNE.to(query.dtype)
        lse_TN[rows_RQ] = lse_KRGQ.permute(1, 3, 0, 2).flatten(2, 3)


def _hidden(
    offsets_Q: Tensor, queries: int, lengths_R: Tensor, longest: int, sparsity: Sparsity
) -> Tensor:
    """True where a query must not see a key.

    Modes 3 and 4 align the last query to the last key, mode 2 the first query to the first key.
    """
    keys_L = torch.arange(longest)
    hidden_RQL = (keys_L >= lengths_R[:, None, None]).expand(-1, len(offsets_Q), -1)
    if not sparsity.masked:
        return hidden_RQL
    shift_R1 = torch.zeros_like(lengths_R)[:, None]
    if not sparsity.upper_left:
        shift_R1 = lengths_R[:, None] - queries
    position_RQ1 = (offsets_Q + shift_R1)[:, :, None]
    ahead_RQL = keys_L - position_RQ1
    return hidden_RQL | (ahead_RQL > sparsity.after) | (-ahead_RQL > sparsity.before)


def _chosen(hidden: Tensor, requests: list[int], offsets_Q: Tensor, longest: int) -> Tensor:
    """What the caller's mask hides of the keys of these requests, [R or 1, Q, L]."""
    of_requests = hidden if hidden.shape[0] == 1 else hidden[requests]
    return of_requests[:, offsets_Q, :longest]
