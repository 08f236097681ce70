"""Where tokens and keys of a batch stand: cumulative lengths, pages, causal limits."""

# Shapes: T tokens, R requests, V columns of a block table, B blocks, P rows of a block

from dataclasses import dataclass

import torch
from torch import Tensor

from ascend_recipes.emulation.refusal import check, check_range, check_shape

TOGETHER = 16
"""Longest query for which requests share one computation."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Tokens of a batch, request by request."""

    starts_R: Tensor
    """First token of each request in the packed tokens."""
    lengths_R: Tensor
    """Tokens of each request."""
    request_T: Tensor
    """Request of each packed token; padding after the last request is not included."""
    offset_T: Tensor
    """Place of each token in its request."""


def read_batch(operator: str, argument: str, bounds_R1: Tensor, tokens: int) -> Batch:
    """Batch from cumulative lengths that begin with 0; tokens after the last one are padding."""
    check_shape(operator, argument, bounds_R1, (None,), "[requests + 1]")
    check(bounds_R1.numel() >= 2, operator, argument, "has no request", "[requests + 1]")
    bounds_R1 = bounds_R1.long()
    lengths_R = bounds_R1.diff()
    rising = int(bounds_R1[0]) == 0 and bool((lengths_R >= 0).all())
    check(
        rising, operator, argument, "does not rise from 0", "cumulative lengths that begin with 0"
    )
    check_range(operator, argument, bounds_R1, 0, tokens + 1, "ends within the packed tokens")
    request_T = torch.repeat_interleave(torch.arange(lengths_R.numel()), lengths_R)
    offset_T = torch.arange(request_T.numel()) - bounds_R1[request_T]
    return Batch(
        starts_R=bounds_R1[:-1], lengths_R=lengths_R, request_T=request_T, offset_T=offset_T
    )


def check_integers(operator: str, argument: str, tensor: Tensor, size: int, meaning: str) -> None:
    """Refuse anything but one int32 for each request."""
    check_shape(operator, argument, tensor, (size,), meaning)


def check_table(operator: str, argument: str, table_RV: Tensor, requests: int, needed: int) -> None:
    """Refuse a block table that has another number of requests or too few columns."""
    check_shape(operator, argument, table_RV, (requests, None), "[requests, blocks]")
    check(
        table_RV.shape[1] >= max(needed, 1),
        operator,
        argument,
        f"has {table_RV.shape[1]} columns",
        f"at least {max(needed, 1)}, the blocks of the longest request",
    )


def check_pages(operator: str, argument: str, cache: Tensor) -> None:
    """Refuse empty caches, and pages that are not contiguous; they may be any distance apart."""
    check(cache.numel() > 0, operator, argument, f"has shape {list(cache.shape)}", "pages of rows")
    check(
        cache[:1].is_contiguous(),
        operator,
        argument,
        f"has strides {list(cache.stride())}",
        "contiguous on every dimension but the first",
    )


def gather_rows(cache_BPX: Tensor, table_RV: Tensor, rows: int) -> Tensor:
    """First `rows` rows of each request [R, rows, …], copied out of their pages.

    Table entries beyond a request's length may hold anything; what is read there must be hidden
    by the caller.
    """
    pages = -(-rows // cache_BPX.shape[1])
    table_RV = table_RV[:, :pages].long().clamp(0, cache_BPX.shape[0] - 1)
    return cache_BPX[table_RV].flatten(1, 2)[:, :rows]


def group_requests(batch: Batch) -> list[Tensor]:
    """Requests that are computed together: short ones of equal length, long ones alone.

    All decodes of a batch form one group; requests without tokens are left out.
    """
    lengths = batch.lengths_R
    together = [
        (lengths == length).nonzero().flatten()
        for length in lengths[(lengths > 0) & (lengths <= TOGETHER)].unique().tolist()
    ]
    return together + list((lengths > TOGETHER).nonzero())
