"""Checks the arguments of fused infer attention."""

import torch
from torch import Tensor

from ascend_recipes.emulation.attention_layouts import LAYOUTS, PACKED, whole_tokens
from ascend_recipes.emulation.attention_lengths import NAME, Batch
from ascend_recipes.emulation.limits import check_limit
from ascend_recipes.emulation.refusal import (
    check,
    check_contiguous,
    check_same_dtype,
    check_shape,
)

SYMBOL = f"npu::{NAME}"


def check_layout(layout: str) -> None:
    """Refuse layouts that are not emulated."""
    check(layout in LAYOUTS, NAME, "input_layout", f"is '{layout}'", f"{', '.join(LAYOUTS)}")


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse tensors that do not fit together, whatever the layout."""
    check_same_dtype(NAME, query, key=key, value=value)
    check_contiguous(NAME, query=query, key=key, value=value)
    check(
        key.shape == value.shape,
        NAME,
        "value",
        f"has shape {list(value.shape)}",
        f"{list(key.shape)}, the shape of key",
    )


def check_heads(heads: int, kv_heads: int) -> None:
    """Refuse numbers of heads that the operator does not take."""
    check(
        heads > 0 and kv_heads > 0 and heads % kv_heads == 0 and heads // kv_heads <= 64,
        NAME,
        "num_key_value_heads",
        f"is {kv_heads} for {heads} query heads",
        "a divisor of num_heads at most 64 times smaller",
    )
    check_limit(SYMBOL, "heads", "num_heads", heads)


def check_query(query: Tensor, heads: int, layout: str) -> None:
    """Refuse head dims that the operator does not take; `query` is [tokens, N, D] or BSND."""
    width = query.shape[-1]
    check_limit(SYMBOL, "head_dim", "query", width, "has head dim")
    check(width % 16 == 0, NAME, "query", f"has head dim {width}", "a multiple of 16")
    if whole_tokens(layout):
        check(
            query.shape[1] == 1 or heads * width < 65535,
            NAME,
            "query",
            f"has tokens of {heads * width}",
            f"fewer than 65535 elements of a token in layout {layout}",
        )


def check_lengths(query: Tensor, key: Tensor, batch: Batch, layout: str, paged: bool) -> None:
    """Refuse batches, sequences and caches that are too large for the operator."""
    check_limit(SYMBOL, "batch", "query", len(batch.query_lengths), "has a batch of")
    name = "keys_of_one_query" if batch.query_axis == 1 else "sequence"
    longest = max(batch.key_lengths, default=0)
    check_limit(SYMBOL, name, "actual_seq_lengths_kv", longest, "holds")
    if layout == PACKED:
        check_limit(SYMBOL, "tokens", "query", query.shape[0], "has tokens:")
    else:
        check_limit(SYMBOL, "sequence", "query", query.shape[1], "has queries:")
    if paged and batch.query_axis == 1:
        check_limit(SYMBOL, "cache_elements", "key", key.numel(), "has elements:")


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
    """Layouts with whole tokens take caches of whole rows only, the others also caches by head."""
    if key.dim() == 3 or whole_tokens(layout):
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
