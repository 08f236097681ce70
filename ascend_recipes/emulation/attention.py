"""Emulated fused infer attention: TND, dense or paged, grouped heads, sparse modes 0, 3, 4."""

# Shapes: T tokens, N query heads, K kv heads, G query heads of a kv head, D head dim, E value dim,
#         B blocks, P block size, M blocks of a request, R requests of a group, Q queries, L keys

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ascend_recipes.emulation.refusal import (
    OperatorRefusedError,
    check,
    check_contiguous,
    check_dtype,
    check_same_dtype,
    check_shape,
    check_unset,
)

NAME = "npu_fused_infer_attention_score"
DTYPES = (torch.float16, torch.bfloat16)
MASK_DTYPES = (torch.bool, torch.int8, torch.uint8)
MASK_SIZE = 2048
UNLIMITED = 2147483647
QUERY_TILE = 256
"""Queries whose scores are held at once, to bound memory in long prefills."""

TOGETHER = 16
"""Longest query for which requests share one computation; longer ones would waste padding."""

_checked_masks: WeakIdKeyDictionary = WeakIdKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Lengths of each request and where its keys are."""

    query_starts: list[int]
    query_lengths: list[int]
    key_lengths: list[int]
    key_starts: list[int] | None
    """First row in dense keys; None when paged."""


@dataclass(frozen=True, kw_only=True)
class Sparsity:
    """Which keys a query sees, relative to the last query on the last key."""

    before: int
    after: int
    masked: bool


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
    """`npu::npu_fused_infer_attention_score` for layout TND.

    Returns:
        Attention [T, N, E] and, with `softmax_lse_flag`, the log-sum-exp [T, N, 1] in float32,
        else a single zero.
    """
    check_unset(NAME, **unsupported)
    for argument, mode in (
        ("antiquant_mode", antiquant_mode),
        ("key_antiquant_mode", key_antiquant_mode),
        ("value_antiquant_mode", value_antiquant_mode),
    ):
        check(mode == 0, NAME, argument, f"is {mode}", "0 (quantized caches are not emulated)")
    check(input_layout == "TND", NAME, "input_layout", f"is '{input_layout}'", "TND")
    check(inner_precise in (0, 1, 2, 3), NAME, "inner_precise", f"is {inner_precise}", "0 to 3")
    kv_heads = num_key_value_heads or num_heads
    _check_tensors(query, key, value, num_heads, kv_heads)
    batch = _read_lengths(query, key, actual_seq_lengths, actual_seq_lengths_kv, block_table)
    if block_table is not None:
        _check_paging(key, block_table, batch, kv_heads, query.shape[-1], block_size)
    sparsity = _read_sparsity(sparse_mode, atten_mask, pre_tokens, next_tokens, batch)
    out_TNE = query.new_zeros(*query.shape[:2], _value_dim(value, kv_heads, block_table))
    lse_TN = torch.full(query.shape[:2], torch.inf, dtype=torch.float32)
    for requests in _group(batch):
        key_RLKD, value_RLKE = _collect(key, value, batch, requests, block_table, kv_heads)
        _attend(query, key_RLKD, value_RLKE, batch, requests, sparsity, scale, out_TNE, lse_TN)
    lse = lse_TN[..., None] if softmax_lse_flag else torch.zeros(1)
    return out_TNE, lse


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
    check(input_layout == "TND", NAME, "input_layout", f"is '{input_layout}'", "TND")
    kv_heads = num_key_value_heads or num_heads
    out = query.new_empty(*query.shape[:2], _value_dim(value, kv_heads, block_table))
    lse_shape = (*query.shape[:2], 1) if softmax_lse_flag else (1,)
    return out, query.new_empty(lse_shape, dtype=torch.float32)


def _value_dim(value: Tensor, kv_heads: int, block_table: Tensor | None) -> int:
    if block_table is not None and value.dim() == 3:
        return value.shape[-1] // kv_heads
    return value.shape[-1]


def _check_tensors(query: Tensor, key: Tensor, value: Tensor, heads: int, kv_heads: int) -> None:
    check_dtype(NAME, "query", query, DTYPES)
    check_same_dtype(NAME, query, key=key, value=value)
    check_contiguous(NAME, query=query, key=key, value=value)
    check(
        key.shape == value.shape,
        NAME,
        "value",
        f"has shape {list(value.shape)}",
        f"{list(key.shape)}, the shape of key",
    )
    check_shape(NAME, "query", query, (None, heads, None), "[tokens, num_heads, head dim]")
    check(
        heads % kv_heads == 0 and heads // kv_heads <= 64,
        NAME,
        "num_key_value_heads",
        f"is {kv_heads} for {heads} query heads",
        "a divisor of num_heads at most 64 times smaller",
    )
    check(heads <= 256, NAME, "num_heads", f"is {heads}", "at most 256")
    width = query.shape[-1]
    check(
        width <= 512 and width % 16 == 0,
        NAME,
        "query",
        f"has head dim {width}",
        "a multiple of 16 up to 512",
    )


def _read_lengths(
    query: Tensor,
    key: Tensor,
    lengths: Sequence[int] | None,
    lengths_kv: Sequence[int] | None,
    block_table: Tensor | None,
) -> Batch:
    """Turn the vendor's length lists into starts and lengths.

    Query lengths are cumulative. Key lengths are cumulative when dense and plain when paged.
    """
    ends = _check_cumulative("actual_seq_lengths", lengths)
    check(
        bool(ends) and ends[-1] == query.shape[0],
        NAME,
        "actual_seq_lengths",
        f"ends at {ends[-1] if ends else None}",
        f"{query.shape[0]}, the number of query tokens (lengths are cumulative)",
    )
    starts = [0, *ends[:-1]]
    query_lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    if block_table is not None:
        key_lengths = list(lengths_kv or ())
        check(
            len(key_lengths) == len(ends) and min(key_lengths) >= 0,
            NAME,
            "actual_seq_lengths_kv",
            f"is {lengths_kv}",
            f"{len(ends)} lengths, one a request (not cumulative when paged)",
        )
        return Batch(
            query_starts=starts,
            query_lengths=query_lengths,
            key_lengths=key_lengths,
            key_starts=None,
        )
    key_ends = _check_cumulative("actual_seq_lengths_kv", lengths_kv)
    check(
        len(key_ends) == len(ends) and key_ends[-1] == key.shape[0],
        NAME,
        "actual_seq_lengths_kv",
        f"is {key_ends}",
        f"{len(ends)} cumulative lengths that end at {key.shape[0]}",
    )
    key_starts = [0, *key_ends[:-1]]
    key_lengths = [end - start for start, end in zip(key_starts, key_ends, strict=True)]
    return Batch(
        query_starts=starts,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
        key_starts=key_starts,
    )


def _check_cumulative(argument: str, lengths: Sequence[int] | None) -> list[int]:
    if lengths is None:
        raise OperatorRefusedError(NAME, argument, "is None", "required with layout TND")
    ends = [int(length) for length in lengths]
    rising = all(first <= second for first, second in zip([0, *ends], ends, strict=False))
    check(rising, NAME, argument, f"is {ends}", "cumulative lengths, never falling")
    return ends


def _check_paging(
    key: Tensor, block_table: Tensor, batch: Batch, kv_heads: int, width: int, block_size: int
) -> None:
    check(block_table.dtype == torch.int32, NAME, "block_table", f"is {block_table.dtype}", "int32")
    check_shape(NAME, "block_table", block_table, (len(batch.key_lengths), None), "[requests, any]")
    longest_query = max(batch.query_lengths, default=0)
    step = 128 if longest_query > 1 else 16
    check(
        0 < block_size <= 512 and block_size % step == 0,
        NAME,
        "block_size",
        f"is {block_size}",
        f"a multiple of {step} up to 512",
    )
    if key.dim() == 3:
        check_shape(
            NAME,
            "key",
            key,
            (None, block_size, kv_heads * width),
            "[blocks, block size, kv heads * head dim]",
        )
        check(
            kv_heads * width <= 65535,
            NAME,
            "key",
            f"has rows of {kv_heads * width}",
            "at most 65535 elements in this cache layout",
        )
    else:
        check_shape(
            NAME,
            "key",
            key,
            (None, kv_heads, block_size, width),
            "[blocks, kv heads, block size, head dim]",
        )
    needed = [-(-length // block_size) for length in batch.key_lengths]
    check(
        max(needed, default=0) <= block_table.shape[1],
        NAME,
        "block_table",
        f"has {block_table.shape[1]} columns",
        f"at least {max(needed, default=0)}, the blocks of the longest request",
    )
    columns_M = torch.arange(block_table.shape[1])
    used_RM = columns_M < torch.tensor(needed)[:, None]
    numbers = block_table[used_RM]
    check(
        numbers.numel() == 0 or bool(((numbers >= 0) & (numbers < key.shape[0])).all()),
        NAME,
        "block_table",
        "names a block that does not exist",
        f"0 to {key.shape[0] - 1}",
    )


def _read_sparsity(
    mode: int, mask: Tensor | None, pre_tokens: int, next_tokens: int, batch: Batch
) -> Sparsity:
    check(mode in (0, 3, 4), NAME, "sparse_mode", f"is {mode}", "0, 3, 4 (others not emulated)")
    if mode == 0:
        check(mask is None, NAME, "atten_mask", "is set", "None in sparse_mode 0")
        return Sparsity(before=UNLIMITED, after=UNLIMITED, masked=False)
    _check_mask(mask)
    short = any(
        keys < queries for keys, queries in zip(batch.key_lengths, batch.query_lengths, strict=True)
    )
    check(
        not short,
        NAME,
        "actual_seq_lengths_kv",
        f"is {batch.key_lengths} for queries {batch.query_lengths}",
        "at least as many keys as queries in each request",
    )
    if mode == 3:
        return Sparsity(before=UNLIMITED, after=0, masked=True)
    check(
        pre_tokens + next_tokens >= 0,
        NAME,
        "pre_tokens",
        f"is {pre_tokens} with next_tokens {next_tokens}",
        "a band that is not empty",
    )
    return Sparsity(before=pre_tokens, after=next_tokens, masked=True)


def _check_mask(mask: Tensor | None) -> None:
    """The compressed mask is the strictly upper triangle of a 2048 square, 1 where masked."""
    if mask is None:
        raise OperatorRefusedError(NAME, "atten_mask", "is None", "required in sparse modes 2 to 4")
    check(mask.dtype in MASK_DTYPES, NAME, "atten_mask", f"is {mask.dtype}", "bool, int8, uint8")
    shape = list(mask.shape)
    square = shape[-2:] == [MASK_SIZE, MASK_SIZE] and all(size == 1 for size in shape[:-2])
    check(
        square and mask.dim() <= 4,
        NAME,
        "atten_mask",
        f"has shape {shape}",
        "[2048, 2048] in sparse modes 2 to 4",
    )
    if _checked_masks.get(mask) == mask._version:
        return
    upper = torch.ones(MASK_SIZE, MASK_SIZE, dtype=torch.bool).triu(1)
    check(
        torch.equal(mask.reshape(MASK_SIZE, MASK_SIZE).bool(), upper),
        NAME,
        "atten_mask",
        "is not triangular",
        "1 above the diagonal and 0 elsewhere",
    )
    _checked_masks[mask] = mask._version


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
    """Keys and values of the requests, [R, L, K, D], padded to the longest."""
    longest = max(batch.key_lengths[request] for request in requests)
    if block_table is None:
        assert batch.key_starts is not None
        starts_R = torch.tensor([batch.key_starts[request] for request in requests])
        rows_RL = (starts_R[:, None] + torch.arange(longest)).clamp_(max=key.shape[0] - 1)
        return key[rows_RL], value[rows_RL]
    paged_heads = key.dim() == 4
    block_size = key.shape[2] if paged_heads else key.shape[1]
    table_RM = block_table[requests, : -(-longest // block_size)].long()
    # Beyond a request's length the table may hold anything; the mask hides what is read there.
    table_RM = table_RM.clamp(0, key.shape[0] - 1)

    def collect(cache: Tensor) -> Tensor:
        pages = cache[table_RM].transpose(2, 3) if paged_heads else cache[table_RM]
        width = pages.shape[-1] if paged_heads else pages.shape[-1] // kv_heads
        return pages.reshape(len(requests), -1, kv_heads, width)[:, :longest]

    return collect(key), collect(value)


def _attend(
    query: Tensor,
    key_RLKD: Tensor,
    value_RLKE: Tensor,
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
    key_RKDL = key_RLKD.float().permute(0, 2, 3, 1)
    value_RKLE = value_RLKE.float().transpose(1, 2)
    # Unused rows of a page may hold NaN, and 0 * NaN would spread.
    unused_RL = torch.arange(key_RLKD.shape[1]) >= lengths_R[:, None]
    value_RKLE = value_RKLE.masked_fill(unused_RL[:, None, :, None], 0.0)
    for first in range(0, queries, QUERY_TILE):
        offsets_Q = torch.arange(first, min(first + QUERY_TILE, queries))
        rows_RQ = starts_R[:, None] + offsets_Q
        query_RKGQD = _split_heads(query[rows_RQ].float() * scale, key_RKDL.shape[1])
        scores = query_RKGQD @ key_RKDL[:, :, None]
        hidden_RQL = _hidden(offsets_Q, queries, lengths_R, key_RLKD.shape[1], sparsity)
        scores = scores.masked_fill(hidden_RQL[:, None, None], -torch.inf)
        lse_RKGQ = scores.logsumexp(dim=-1)
        weights = (scores - lse_RKGQ[..., None]).exp().nan_to_num(0.0)
        result_RKGQE = weights @ value_RKLE[:, :, None]
        heads = (len(requests), len(offsets_Q), query.shape[1])
        out_TNE[rows_RQ] = result_RKGQE.permute(0, 3, 1, 2, 4).reshape(*heads, -1).to(query.dtype)
        lse_TN[rows_RQ] = lse_RKGQ.permute(0, 3, 1, 2).reshape(heads)


def _split_heads(query_RQND: Tensor, kv_heads: int) -> Tensor:
    requests, queries, heads, width = query_RQND.shape
    split = query_RQND.reshape(requests, queries, kv_heads, heads // kv_heads, width)
    return split.permute(0, 2, 3, 1, 4)


def _hidden(
    offsets_Q: Tensor, queries: int, lengths_R: Tensor, longest: int, sparsity: Sparsity
) -> Tensor:
    """True where a query must not see a key; modes 3 and 4 align the last query to the last key."""
    keys_L = torch.arange(longest)
    hidden_RQL = (keys_L >= lengths_R[:, None, None]).expand(-1, len(offsets_Q), -1)
    if not sparsity.masked:
        return hidden_RQL
    position_RQ1 = (offsets_Q + (lengths_R[:, None] - queries))[:, :, None]
    ahead_RQL = keys_L - position_RQ1
    return hidden_RQL | (ahead_RQL > sparsity.after) | (-ahead_RQL > sparsity.before)
