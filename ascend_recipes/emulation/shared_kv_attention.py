"""Emulated attention over a window and compressed blocks that serve as keys and values."""

# Shapes: T tokens, N heads, D head dim, B blocks, P rows of a block, R requests, Q queries of a
#         request, W window keys that a tile of queries touches, L compressed keys, K selected
#         ones, M = Q * N rows of a product, V columns of a block table

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ascend_recipes.emulation.packed_rows import row_bytes, unpack_rows
from ascend_recipes.emulation.refusal import (
    FLOAT_CACHE,
    SMALL,
    OperatorRefusedError,
    check,
    check_contiguous,
    check_same_dtype,
    check_shape,
    check_unset,
    relaxes,
)
from ascend_recipes.emulation.requests import (
    Batch,
    check_integers,
    check_pages,
    check_table,
    gather_rows,
    group_requests,
    read_batch,
)
from ascend_recipes.emulation.split_metadata import (
    attention_numbers,
    check_attention_modes,
    check_ratio,
    check_selected,
    check_split,
)

NAME = "npu_sparse_attn_sharedkv"
QUANT_NAME = "npu_kv_quant_sparse_attn_sharedkv"
BUDGET = 1 << 24
"""Elements of gathered keys and of scores that are held at once."""
LONGEST = 128
"""Most queries of a request that share window keys: more would mostly see hidden ones."""

Decode = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Keys:
    """What the queries attend to."""

    window: Tensor
    window_table: Tensor
    before: int
    compressed: Tensor | None
    compressed_table: Tensor | None
    ratio: int
    selected: Tensor | None
    decode: Decode
    """Cached rows as float32 heads."""


def sparse_attention(
    q: Tensor,
    *,
    ori_kv: Tensor | None = None,
    cmp_kv: Tensor | None = None,
    ori_sparse_indices: Tensor | None = None,
    cmp_sparse_indices: Tensor | None = None,
    ori_block_table: Tensor | None = None,
    cmp_block_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_ori_kv: Tensor | None = None,
    cu_seqlens_cmp_kv: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_kv: Tensor | None = None,
    sinks: Tensor | None = None,
    metadata: Tensor | None = None,
    softmax_scale: float = 0.0,
    cmp_ratio: int = 0,
    ori_mask_mode: int = 4,
    cmp_mask_mode: int = 3,
    ori_win_left: int = 128,
    ori_win_right: int = 0,
    layout_q: str = "BSND",
    layout_kv: str = "PA_ND",
    return_softmax_lse: bool = False,
) -> tuple[Tensor, Tensor]:
    """`_C_ascend::npu_sparse_attn_sharedkv` (A2, A3) for layouts TND and PA_ND.

    `cu_seqlens_ori_kv` and `cu_seqlens_cmp_kv` have no effect with pages. Rows of `q` after the
    last request are not written (NaN here).
    """
    check_same_dtype(NAME, q, ori_kv=ori_kv, cmp_kv=cmp_kv)
    _check_query(NAME, q, lambda heads: heads % 4 == 0, "a multiple of 4 heads")
    check_unset(NAME, ori_sparse_indices=ori_sparse_indices, seqused_q=seqused_q)
    return _attend_pages(
        NAME,
        q,
        (ori_kv, ori_block_table),
        (cmp_kv, cmp_block_table, cmp_sparse_indices),
        (cu_seqlens_q, seqused_kv, sinks, metadata),
        softmax_scale,
        cmp_ratio,
        {
            "layout_q": layout_q,
            "layout_kv": layout_kv,
            "ori_mask_mode": ori_mask_mode,
            "cmp_mask_mode": cmp_mask_mode,
            "ori_win_left": ori_win_left,
            "ori_win_right": ori_win_right,
        },
        return_softmax_lse,
        (q.shape[-1], Tensor.float),
    )


def sparse_attention_meta(q: Tensor, **_: object) -> tuple[Tensor, Tensor]:
    """Shapes of `npu_sparse_attn_sharedkv`."""
    return q.new_empty(q.shape), q.new_empty(0, dtype=torch.float32)


def kv_quant_sparse_attention(
    q: Tensor,
    kv_quant_mode: int,
    ori_kv: Tensor | None = None,
    cmp_kv: Tensor | None = None,
    ori_sparse_indices: Tensor | None = None,
    cmp_sparse_indices: Tensor | None = None,
    ori_block_table: Tensor | None = None,
    cmp_block_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_ori_kv: Tensor | None = None,
    cu_seqlens_cmp_kv: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_kv: Tensor | None = None,
    sinks: Tensor | None = None,
    metadata: Tensor | None = None,
    tile_size: int = 0,
    rope_head_dim: int = 0,
    softmax_scale: float = 0.0,
    cmp_ratio: int = 0,
    ori_mask_mode: int = 4,
    cmp_mask_mode: int = 3,
    ori_win_left: int = 127,
    ori_win_right: int = 0,
    layout_q: str = "BSND",
    layout_kv: str = "PA_ND",
    return_softmax_lse: bool = False,
) -> tuple[Tensor, Tensor]:
    """`_C_ascend::npu_kv_quant_sparse_attn_sharedkv` (A5): caches of packed 640-byte rows."""
    small = relaxes(SMALL)
    _check_query(QUANT_NAME, q, lambda heads: small or heads in (64, 128), "64 or 128 heads")
    for argument, value, wanted in (
        ("kv_quant_mode", kv_quant_mode, 1),
        ("tile_size", tile_size, 64),
        ("rope_head_dim", rope_head_dim, 64),
    ):
        check(value == wanted, QUANT_NAME, argument, f"is {value}", str(wanted))
    check_unset(
        QUANT_NAME,
        ori_sparse_indices=ori_sparse_indices,
        cu_seqlens_ori_kv=cu_seqlens_ori_kv,
        cu_seqlens_cmp_kv=cu_seqlens_cmp_kv,
        seqused_q=seqused_q,
    )
    check(ori_kv is not None, QUANT_NAME, "ori_kv", "is None", "a cache of packed rows")
    assert ori_kv is not None
    head = q.shape[-1]
    unpacked = relaxes(FLOAT_CACHE) and ori_kv.dtype == torch.float32
    check_same_dtype(QUANT_NAME, ori_kv, cmp_kv=cmp_kv)
    return _attend_pages(
        QUANT_NAME,
        q,
        (ori_kv, ori_block_table),
        (cmp_kv, cmp_block_table, cmp_sparse_indices),
        (cu_seqlens_q, seqused_kv, sinks, metadata),
        softmax_scale,
        cmp_ratio,
        {
            "layout_q": layout_q,
            "layout_kv": layout_kv,
            "ori_mask_mode": ori_mask_mode,
            "cmp_mask_mode": cmp_mask_mode,
            "ori_win_left": ori_win_left,
            "ori_win_right": ori_win_right,
        },
        return_softmax_lse,
        (head, Tensor.float) if unpacked else (row_bytes(head), lambda x: unpack_rows(x, head)),
    )


def kv_quant_sparse_attention_meta(
    q: Tensor, kv_quant_mode: int, *_: object, **__: object
) -> tuple[Tensor, Tensor]:
    """Shapes of `npu_kv_quant_sparse_attn_sharedkv`."""
    return q.new_empty(q.shape), q.new_empty(0, dtype=torch.float32)


def _check_query(name: str, q: Tensor, heads_fit: Callable[[int], bool], wanted: str) -> None:
    check_shape(name, "q", q, (None, None, None), "[tokens, heads, head dim]")
    check_contiguous(name, q=q)
    check(q.numel() > 0, name, "q", "is empty", "a tensor with elements")
    fits = q.shape[2] == 512 or relaxes(SMALL)
    check(fits, name, "q", f"has head dim {q.shape[2]}", "512")
    check(heads_fit(q.shape[1]), name, "q", f"has {q.shape[1]} heads", wanted)


def _attend_pages(
    name: str,
    q: Tensor,
    window: tuple[Tensor | None, Tensor | None],
    compressed: tuple[Tensor | None, Tensor | None, Tensor | None],
    lengths: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    scale: float,
    ratio: int,
    modes: dict[str, int | str],
    return_softmax_lse: bool,
    layout: tuple[int, Decode],
) -> tuple[Tensor, Tensor]:
    """Check what both operators share, then attend group by group."""
    ori_kv, ori_table = window
    cmp_kv, cmp_table, selected = compressed
    bounds, seqused, sinks, metadata = lengths
    width, decode = layout
    check(not return_softmax_lse, name, "return_softmax_lse", "is True", "False")
    before = int(modes["ori_win_left"])
    check_attention_modes(name, **modes)
    check_ratio(name, ratio if cmp_kv is not None else ratio or 1, cmp_kv is not None)
    if ori_kv is None or ori_table is None or bounds is None or seqused is None:
        raise OperatorRefusedError(
            name, "ori_kv", "or its table or a length is None", "all four with pages"
        )
    batch = read_batch(name, "cu_seqlens_q", bounds, q.shape[0])
    requests = batch.lengths_R.numel()
    check_integers(name, "seqused_kv", seqused, requests, "[requests]")
    keys_R = seqused.long()
    enough = bool((keys_R >= batch.lengths_R).all())
    check(enough, name, "seqused_kv", "is below the queries", "keys, the current tokens included")
    _check_cache(name, "ori_kv", ori_kv, width)
    needed = -(-int(keys_R.max()) // ori_kv.shape[1])
    check_table(name, "ori_block_table", ori_table, requests, needed)
    _check_compressed(name, cmp_kv, cmp_table, selected, q, width, keys_R, ratio)
    check(sinks is not None, name, "sinks", "is None", "float32 [heads]")
    assert sinks is not None
    check_shape(name, "sinks", sinks, (q.shape[1],), "[heads]")
    top_k = 0 if selected is None else selected.shape[-1]
    numbers = attention_numbers(
        q.shape[1], q.shape[2], before, ratio if cmp_kv is not None else 1, top_k
    )
    check_split(name, metadata, numbers, (bounds, seqused))
    keys = Keys(
        window=ori_kv[:, :, 0],
        window_table=ori_table,
        before=before,
        compressed=None if cmp_kv is None else cmp_kv[:, :, 0],
        compressed_table=cmp_table,
        ratio=ratio,
        selected=None if selected is None else selected[:, 0],
        decode=decode,
    )
    out = torch.full_like(q, torch.nan)
    for group in group_requests(batch):
        _attend(q, keys, batch, keys_R, group, scale, sinks, out)
    return out, torch.empty(0)


def _check_cache(name: str, argument: str, cache: Tensor, width: int) -> None:
    check_shape(name, argument, cache, (None, None, 1, width), "[blocks, rows, 1, width]")
    check_pages(name, argument, cache)
    rows = cache.shape[1]
    fits = 0 < rows <= 1024 and (rows % 16 == 0 or relaxes(SMALL))
    check(fits, name, argument, f"has blocks of {rows} rows", "multiples of 16 up to 1024")


def _check_compressed(
    name: str,
    cache: Tensor | None,
    table: Tensor | None,
    selected: Tensor | None,
    q: Tensor,
    width: int,
    keys_R: Tensor,
    ratio: int,
) -> None:
    if cache is None:
        check_unset(name, cmp_sparse_indices=selected)
        return
    _check_cache(name, "cmp_kv", cache, width)
    check(table is not None, name, "cmp_block_table", "is None", "the blocks of cmp_kv")
    assert table is not None
    needed = -(-(int(keys_R.max()) // ratio) // cache.shape[1])
    check_table(name, "cmp_block_table", table, keys_R.numel(), needed)
    if selected is None:
        return
    check_contiguous(name, cmp_sparse_indices=selected)
    shape = (q.shape[0], 1, None)
    check_shape(name, "cmp_sparse_indices", selected, shape, "[tokens, 1, selected]")
    check(selected.numel() > 0, name, "cmp_sparse_indices", "is empty", "at least one column")
    check_selected(name, "cmp_sparse_indices", selected.shape[-1])
    valid = selected >= 0
    sorted_ = bool((valid[..., 1:] <= valid[..., :-1]).all())
    check(sorted_, name, "cmp_sparse_indices", "has -1 before a block", "blocks first, then -1")


def _attend(
    q: Tensor,
    keys: Keys,
    batch: Batch,
    keys_R: Tensor,
    group: Tensor,
    scale: float,
    sinks: Tensor,
    out: Tensor,
) -> None:
    """Attention of requests that have the same number of queries, in float32."""
    queries, heads = int(batch.lengths_R[group[0]]), q.shape[1]
    shared = _visible(keys, keys_R, group)
    columns = 0 if keys.selected is None else min(keys.selected.shape[1], shared)
    touched = keys.before + LONGEST + (shared if keys.selected is None else columns)
    cost = group.numel() * max(heads * (touched + 1), columns * q.shape[2])
    tile = max(1, min(LONGEST, BUDGET // cost))
    common = None
    if keys.selected is None and shared:
        assert keys.compressed is not None
        assert keys.compressed_table is not None
        rows = gather_rows(keys.compressed, keys.compressed_table[group], shared)
        common = keys.decode(rows)
    for first in range(0, queries, tile):
        offset_Q = torch.arange(first, min(first + tile, queries))
        row_RQ = batch.starts_R[group][:, None] + offset_Q
        position_RQ = (keys_R[group] - queries)[:, None] + offset_Q
        parts = [_window(keys, group, position_RQ)]
        if common is not None:
            hidden = torch.arange(shared) >= ((position_RQ + 1) // keys.ratio)[..., None]
            parts.append((common, hidden))
        elif columns:
            parts.append(_selected(keys, group, position_RQ, row_RQ, columns))
        query_RQND = q[row_RQ].float() * scale
        out[row_RQ] = _softmax_sum(query_RQND, parts, sinks).to(q.dtype)


def _visible(keys: Keys, keys_R: Tensor, group: Tensor) -> int:
    """Compressed keys of the longest request of the group."""
    return 0 if keys.compressed is None else int(keys_R[group].max()) // keys.ratio


def _window(keys: Keys, group: Tensor, position_RQ: Tensor) -> tuple[Tensor, Tensor]:
    """Window keys [R, W, D] that a tile of queries touches, and where each is hidden [R, Q, W]."""
    first_R1 = position_RQ[:, :1] - keys.before
    key_RW = first_R1 + torch.arange(position_RQ.shape[1] + keys.before)
    ahead_RQW = key_RW[:, None] - position_RQ[..., None]
    hidden_RQW = (ahead_RQW > 0) | (ahead_RQW < -keys.before) | (key_RW < 0)[:, None]
    size = keys.window.shape[1]
    place_RW = key_RW.clamp(min=0)
    table_RV = keys.window_table[group].long()
    page_RW = table_RV.gather(1, (place_RW // size).clamp(max=table_RV.shape[1] - 1))
    page_RW = page_RW.clamp(0, keys.window.shape[0] - 1)
    rows_RWX = keys.window[page_RW, place_RW % size]
    return keys.decode(rows_RWX), hidden_RQW


def _selected(
    keys: Keys, group: Tensor, position_RQ: Tensor, row_RQ: Tensor, columns: int
) -> tuple[Tensor, Tensor]:
    """Selected keys [R, Q, K, D] of each query, and which of them do not count [R, Q, K]."""
    assert keys.selected is not None
    assert keys.compressed is not None
    assert keys.compressed_table is not None
    chosen_RQK = keys.selected[row_RQ][..., :columns].long()
    limit_RQ1 = ((position_RQ + 1) // keys.ratio)[..., None]
    hidden_RQK = (chosen_RQK < 0) | (chosen_RQK >= limit_RQ1)
    place_RQK = chosen_RQK.masked_fill(hidden_RQK, 0)
    size = keys.compressed.shape[1]
    table_RV = keys.compressed_table[group].long()
    page_RX = table_RV.gather(1, (place_RQK // size).flatten(1))
    page_RQK = page_RX.view(place_RQK.shape).clamp(0, keys.compressed.shape[0] - 1)
    return keys.decode(keys.compressed[page_RQK, place_RQK % size]), hidden_RQK


def _softmax_sum(query_RQND: Tensor, parts: list[tuple[Tensor, Tensor]], sinks: Tensor) -> Tensor:
    """Weighted sum of the keys of all parts; the sinks take weight and give nothing."""
    scores, cleaned = [], []
    for key, hidden in parts:
        # What is hidden everywhere may be anything that memory held, and 0 * NaN would spread.
        unused = hidden if key.dim() == 4 else hidden.all(1)
        key = key.masked_fill(unused[..., None], 0.0)
        cleaned.append(key)
        score_RQNX = _dot(query_RQND, key)
        scores.append(score_RQNX.masked_fill(hidden[:, :, None], -torch.inf))
    score = torch.cat(scores, dim=-1)
    largest = torch.maximum(score.amax(-1, keepdim=True), sinks[:, None])
    weight = (score - largest).exp_()
    total = weight.sum(-1, keepdim=True) + (sinks[:, None] - largest).exp()
    weight = weight / total
    out = torch.zeros_like(query_RQND)
    begin = 0
    for key in cleaned:
        size = key.shape[-2]
        out += _mix(weight[..., begin : begin + size], key)
        begin += size
    return out


def _dot(query_RQND: Tensor, key: Tensor) -> Tensor:
    if key.dim() == 4:
        return query_RQND @ key.transpose(-1, -2)
    product_RMX = query_RQND.flatten(1, 2) @ key.transpose(1, 2)
    return product_RMX.unflatten(1, query_RQND.shape[1:3])


def _mix(weight_RQNX: Tensor, key: Tensor) -> Tensor:
    if key.dim() == 4:
        return weight_RQNX @ key
    return (weight_RQNX.flatten(1, 2) @ key).unflatten(1, weight_RQNX.shape[1:3])
