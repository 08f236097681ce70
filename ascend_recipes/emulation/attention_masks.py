"""Reads sparse mode, mask and token bounds of fused infer attention."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ascend_recipes.emulation.attention_layouts import PACKED
from ascend_recipes.emulation.attention_lengths import NAME, Batch
from ascend_recipes.emulation.refusal import OperatorRefusedError, check, check_contiguous

MASK_SIZE = 2048
UNLIMITED = 2147483647

_checked_masks: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Masks that were found triangular, with the version of their memory."""


@dataclass(frozen=True, kw_only=True)
class Sparsity:
    """Which keys a query sees, relative to the key that it stands on."""

    before: int = UNLIMITED
    after: int = UNLIMITED
    masked: bool = False
    """The bounds hold; else every key is seen that `hidden` does not hide."""
    upper_left: bool = False
    """The first query stands on the first key; else the last query on the last key."""
    hidden: Tensor | None = None
    """The caller's own mask, [requests or 1, queries, keys] and perhaps padded; true is hidden."""


def read_sparsity(
    mode: int,
    mask: Tensor | None,
    pre_tokens: int,
    next_tokens: int,
    batch: Batch,
    layout: str,
    columns: int | None = None,
) -> Sparsity:
    """Turn sparse mode, mask and token bounds into what each query sees.

    `columns` is how many keys the block table can name; none without one.
    """
    modes = (0, 3, 4) if layout == PACKED else (0, 1, 2, 3, 4)
    allowed = f"{', '.join(map(str, modes))} in layout {layout} (others not emulated)"
    check(mode in modes, NAME, "sparse_mode", f"is {mode}", allowed)
    if mode in (0, 1):
        if layout == PACKED:
            check(mask is None, NAME, "atten_mask", "is set", "None in sparse_mode 0 of layout TND")
        if mask is None:
            check(mode == 0, NAME, "atten_mask", "is None", "required in sparse_mode 1")
            return Sparsity()
        if mode == 0:
            _check_unbounded(pre_tokens, next_tokens, batch)
        return Sparsity(hidden=_read_mask(mask, batch, columns))
    _check_triangle(mask)
    if mode == 2:
        # The documentation: with one query the mode has no effect, so every key would be seen.
        check(
            batch.query_axis > 1 or max(batch.key_lengths, default=0) <= 1,
            NAME,
            "sparse_mode",
            "is 2 with one query",
            "more than one query (the mode has no effect with one)",
        )
        return Sparsity(after=0, masked=True, upper_left=True)
    _check_enough_keys(batch)
    return Sparsity(after=0, masked=True) if mode == 3 else _band(pre_tokens, next_tokens, batch)


def _check_unbounded(pre_tokens: int, next_tokens: int, batch: Batch) -> None:
    """Bounds beside a mask of the caller: which corner they count from is not documented."""
    if batch.query_axis == 1:
        return
    longest = max([*batch.query_lengths, *batch.key_lengths], default=0)
    for argument, bound in (("pre_tokens", pre_tokens), ("next_tokens", next_tokens)):
        allowed = f"at least {longest} with a mask in sparse_mode 0 (less is not emulated)"
        check(bound >= longest, NAME, argument, f"is {bound}", allowed)


def _read_mask(mask: Tensor, batch: Batch, columns: int | None) -> Tensor:
    """A mask [queries, keys], or [requests, keys] for one query, with leading dimensions or not.

    Queries and keys may be rounded up to 16 or 32; over pages there are at least as many keys as
    the table can name.
    """
    check_contiguous(NAME, atten_mask=mask)
    requests, queries = len(batch.query_lengths), batch.query_axis
    keys = batch.key_axis if columns is None else columns
    if mask.dim() == 2:
        full, leading = (mask[:, None], {requests}) if queries == 1 else (mask[None], {1})
    elif mask.dim() == 4 and mask.shape[1] == 1:
        full, leading = mask[:, 0], {1, requests}
    else:
        full, leading = mask, {1}
    fits = (
        full.dim() == 3
        and full.shape[0] in leading
        and full.shape[1] in _rounded(queries)
        and (full.shape[2] in _rounded(keys) if columns is None else full.shape[2] >= keys)
    )
    wanted = (
        f"[{requests}, 1, {queries}, {keys}], [1, 1, {queries}, {keys}], [1, {queries}, {keys}] or "
        f"[{requests if queries == 1 else queries}, {keys}] in sparse modes 0 and 1"
    )
    check(fits, NAME, "atten_mask", f"has shape {list(mask.shape)}", wanted)
    return full.bool()


def _rounded(size: int) -> tuple[int, ...]:
    return size, -(-size // 16) * 16, -(-size // 32) * 32


def _check_enough_keys(batch: Batch) -> None:
    pairs = zip(batch.key_lengths, batch.query_lengths, strict=True)
    check(
        all(keys >= queries for keys, queries in pairs),
        NAME,
        "actual_seq_lengths_kv",
        f"is {batch.key_lengths} for queries {batch.query_lengths}",
        "at least as many keys as queries in each request",
    )


def _band(pre_tokens: int, next_tokens: int, batch: Batch) -> Sparsity:
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


def _check_triangle(mask: Tensor | None) -> None:
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
