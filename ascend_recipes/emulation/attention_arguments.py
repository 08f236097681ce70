"""Checks and reads the arguments of fused infer attention."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ascend_recipes.emulation.attention_lengths import NAME, Batch
from ascend_recipes.emulation.limits import check_limit
from ascend_recipes.emulation.refusal import (
    OperatorRefusedError,
    check,
    check_contiguous,
    check_same_dtype,
    check_shape,
)

SYMBOL = f"npu::{NAME}"
LAYOUTS = ("TND", "BSND")
MASK_SIZE = 2048
UNLIMITED = 2147483647

_checked_masks: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Masks that were found triangular, with the version of their memory."""


@dataclass(frozen=True, kw_only=True)
class Sparsity:
    """Which keys a query sees, relative to the key that it stands on."""

    before: int
    after: int
    masked: bool
    upper_left: bool = False
    """The first query stands on the first key; else the last query on the last key."""


def check_layout(layout: str) -> None:
    """Refuse layouts that are not emulated."""
    check(layout in LAYOUTS, NAME, "input_layout", f"is '{layout}'", f"{', '.join(LAYOUTS)}")


def check_tensors(
    query: Tensor, key: Tensor, value: Tensor, heads: int, kv_heads: int, layout: str
) -> None:
    """Refuse dtypes, layouts and head counts that the operator does not take."""
    check_same_dtype(NAME, query, key=key, value=value)
    check_contiguous(NAME, query=query, key=key, value=value)
    check(
        key.shape == value.shape,
        NAME,
        "value",
        f"has shape {list(value.shape)}",
        f"{list(key.shape)}, the shape of key",
    )
    if layout == "BSND":
        shape = (None, None, heads, None)
        check_shape(NAME, "query", query, shape, "[batch, queries, num_heads, head dim]")
    else:
        check_shape(NAME, "query", query, (None, heads, None), "[tokens, num_heads, head dim]")
    check(
        heads % kv_heads == 0 and heads // kv_heads <= 64,
        NAME,
        "num_key_value_heads",
        f"is {kv_heads} for {heads} query heads",
        "a divisor of num_heads at most 64 times smaller",
    )
    check_limit(SYMBOL, "heads", "num_heads", heads)
    width = query.shape[-1]
    check_limit(SYMBOL, "head_dim", "query", width, "has head dim")
    check(width % 16 == 0, NAME, "query", f"has head dim {width}", "a multiple of 16")
    if layout == "BSND":
        check(
            query.shape[1] == 1 or heads * width < 65535,
            NAME,
            "query",
            f"has tokens of {heads * width}",
            "fewer than 65535 elements of a token in layout BSND",
        )


def check_lengths(query: Tensor, key: Tensor, batch: Batch, layout: str, paged: bool) -> None:
    """Refuse batches, sequences and caches that are too large for the operator."""
    check_limit(SYMBOL, "batch", "query", len(batch.query_lengths), "has a batch of")
    name = "keys_of_one_query" if batch.query_axis == 1 else "sequence"
    longest = max(batch.key_lengths, default=0)
    check_limit(SYMBOL, name, "actual_seq_lengths_kv", longest, "holds")
    if layout == "TND":
        check_limit(SYMBOL, "tokens", "query", query.shape[0], "has tokens:")
    else:
        check_limit(SYMBOL, "sequence", "query", query.shape[1], "has queries:")
    if paged and batch.query_axis == 1:
        check_limit(SYMBOL, "cache_elements", "key", key.numel(), "has elements:")


def check_padded_keys(query: Tensor, key: Tensor, kv_heads: int) -> None:
    """Refuse dense keys that are no [B, L, K, D] beside queries [B, S, N, D]."""
    check_shape(
        NAME,
        "key",
        key,
        (query.shape[0], None, kv_heads, query.shape[-1]),
        "[batch, keys, kv heads, head dim]",
    )


def check_paging(
    key: Tensor,
    block_table: Tensor,
    batch: Batch,
    kv_heads: int,
    width: int,
    block_size: int,
    layout: str,
) -> None:
    """Refuse caches, tables and block sizes that do not fit together."""
    check_shape(NAME, "block_table", block_table, (len(batch.key_lengths), None), "[requests, any]")
    step = 128 if batch.query_axis > 1 else 16
    check(
        0 < block_size <= 512 and block_size % step == 0,
        NAME,
        "block_size",
        f"is {block_size}",
        f"a multiple of {step} up to 512",
    )
    _check_cache(key, kv_heads, width, block_size, layout)
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


def _check_cache(key: Tensor, kv_heads: int, width: int, block_size: int, layout: str) -> None:
    """Layout BSND takes caches of whole rows only, layout TND also caches by head."""
    if key.dim() == 3 or layout == "BSND":
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


def read_sparsity(
    mode: int,
    mask: Tensor | None,
    pre_tokens: int,
    next_tokens: int,
    batch: Batch,
    layout: str,
) -> Sparsity:
    """Turn sparse mode, mask and token bounds into what each query sees."""
    modes = "0, 3, 4" if layout == "TND" else "0, 2, 3, 4"
    check(
        str(mode) in modes.split(", "),
        NAME,
        "sparse_mode",
        f"is {mode}",
        f"{modes} in layout {layout} (others not emulated)",
    )
    if mode == 0:
        check(mask is None, NAME, "atten_mask", "is set", "None in sparse_mode 0")
        return Sparsity(before=UNLIMITED, after=UNLIMITED, masked=False)
    _check_mask(mask)
    if mode == 2:
        # The documentation: with one query the mode has no effect, so every key would be seen.
        check(
            batch.query_axis > 1 or max(batch.key_lengths, default=0) <= 1,
            NAME,
            "sparse_mode",
            "is 2 with one query",
            "more than one query (the mode has no effect with one)",
        )
        return Sparsity(before=UNLIMITED, after=0, masked=True, upper_left=True)
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
    fewest = min(batch.query_lengths, default=0)
    check(pre_tokens >= -fewest, NAME, "pre_tokens", f"is {pre_tokens}", f"{-fewest} or more")
    fewest = min(batch.key_lengths, default=0)
    check(next_tokens >= -fewest, NAME, "next_tokens", f"is {next_tokens}", f"{-fewest} or more")
    return Sparsity(before=pre_tokens, after=next_tokens, masked=True)


def _check_mask(mask: Tensor | None) -> None:
    """The compressed mask is the strictly upper triangle of a 2048 square, 1 where masked."""
    if mask is None:
        raise OperatorRefusedError(NAME, "atten_mask", "is None", "required in sparse modes 2 to 4")
    check_contiguous(NAME, atten_mask=mask)
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
