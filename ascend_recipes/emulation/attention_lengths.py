"""Reads the length lists of fused infer attention: packed requests (TND) and padded ones."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ascend_recipes.emulation.refusal import OperatorRefusedError, check

NAME = "npu_fused_infer_attention_score"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Lengths of each request and the rows where its queries and keys begin."""

    query_starts: list[int]
    query_lengths: list[int]
    key_lengths: list[int]
    key_starts: list[int] | None
    """First row in dense keys; None when paged."""
    query_axis: int
    """The documentation's Q_S: queries of the longest request, with its padding if padded."""
    key_axis: int
    """The same of the keys, the documentation's KV_S."""


def read_packed_lengths(
    query: Tensor,
    key: Tensor,
    lengths: Sequence[int] | None,
    lengths_kv: Sequence[int] | None,
    block_table: Tensor | None,
) -> Batch:
    """Turn the vendor's length lists of layout TND into starts and lengths.

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
    starts, query_lengths = _starts_and_lengths(ends)
    key_starts: list[int] | None = None
    if block_table is not None:
        key_lengths = list(lengths_kv or ())
        check(
            len(key_lengths) == len(ends) and min(key_lengths) >= 0,
            NAME,
            "actual_seq_lengths_kv",
            f"is {lengths_kv}",
            f"{len(ends)} lengths, one a request (not cumulative when paged)",
        )
    else:
        key_ends = _check_cumulative("actual_seq_lengths_kv", lengths_kv)
        check(
            len(key_ends) == len(ends) and key_ends[-1] == key.shape[0],
            NAME,
            "actual_seq_lengths_kv",
            f"is {key_ends}",
            f"{len(ends)} cumulative lengths that end at {key.shape[0]}",
        )
        key_starts, key_lengths = _starts_and_lengths(key_ends)
    return Batch(
        query_starts=starts,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
        key_starts=key_starts,
        query_axis=max(query_lengths, default=0),
        key_axis=max(key_lengths, default=0),
    )


def read_padded_lengths(
    query: Tensor,
    key: Tensor,
    lengths: Sequence[int] | None,
    lengths_kv: Sequence[int] | None,
    block_table: Tensor | None,
) -> Batch:
    """Turn the vendor's length lists of padded layouts into starts and lengths; none is cumulative.

    `query` is [B, S, N, D], and so is `key` unless it is paged.

    With one query a request the documentation ignores `actual_seq_lengths`.
    """
    requests, queries = query.shape[:2]
    used = None if queries == 1 else lengths
    key_starts: list[int] | None = None
    if block_table is None:
        longest = key.shape[1]
        key_starts = [request * longest for request in range(requests)]
    else:
        check(
            lengths_kv is not None,
            NAME,
            "actual_seq_lengths_kv",
            "is None",
            "required with a block_table",
        )
        # How many keys a table row can name is checked with the paging.
        longest = None
    key_lengths = _read_plain("actual_seq_lengths_kv", lengths_kv, requests, longest)
    return Batch(
        query_starts=[request * queries for request in range(requests)],
        query_lengths=_read_plain("actual_seq_lengths", used, requests, queries),
        key_lengths=key_lengths,
        key_starts=key_starts,
        query_axis=queries,
        key_axis=max(key_lengths, default=0) if longest is None else longest,
    )


def _read_plain(
    argument: str, lengths: Sequence[int] | None, requests: int, longest: int | None
) -> list[int]:
    """One length a request: none is all of the axis, a single one holds for every request."""
    if lengths is None:
        assert longest is not None
        return [longest] * requests
    plain = [int(length) for length in lengths]
    check(
        len(plain) == 1 or len(plain) >= requests,
        NAME,
        argument,
        f"has {len(plain)} lengths",
        f"1, or {requests} and more: one a request (not cumulative in padded layouts)",
    )
    plain = plain * requests if len(plain) == 1 else plain[:requests]
    fits = all(length >= 0 and (longest is None or length <= longest) for length in plain)
    check(
        fits,
        NAME,
        argument,
        f"is {plain}",
        f"0 to {longest if longest is not None else 'any'} (not cumulative in padded layouts)",
    )
    return plain


def _starts_and_lengths(ends: list[int]) -> tuple[list[int], list[int]]:
    starts = [0, *ends[:-1]]
    return starts, [end - start for start, end in zip(starts, ends, strict=True)]


def _check_cumulative(argument: str, lengths: Sequence[int] | None) -> list[int]:
    if lengths is None:
        raise OperatorRefusedError(NAME, argument, "is None", "required with layout TND")
    ends = [int(length) for length in lengths]
    rising = all(first <= second for first, second in zip([0, *ends], ends, strict=False))
    check(rising, NAME, argument, f"is {ends}", "cumulative lengths, never falling")
    return ends
