"""Bindings of writes into latent and indexer caches to NPU operators.

Every function takes slots in both forms: flat (block * P + row, -1 skipped) or as (block, row)
pairs (block -1 skipped), and converts to what its operator wants.
"""

# Shapes: T tokens, N heads, D row width, B blocks, P rows of a block

import torch
from torch import Tensor

PACKED_DTYPES = (torch.uint8, torch.float8_e4m3fn)
PACKED_GROUP = 64
_ROTATED = 64
_E8M0_BIAS = 127
PACKED_MODE = 2
PACKED_LAYOUT = 1
INDEXER_LAYOUT = 2
SCALE_DTYPES = {
    torch.int8: torch.float16,
    torch.float8_e4m3fn: torch.float32,
    torch.float32: torch.float32,
}
"""Type of the scales beside each type of indexer keys."""


def indexer_views(page_BPX: Tensor, key_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys [B, P, D] and scales [B, P, 1] inside pages of bytes [B, P, D + scale] (any stride).

    A page holds the keys of its P rows and then their scales.
    """
    blocks, rows, width = page_BPX.shape
    scale_dtype = SCALE_DTYPES[key_dtype]
    keys, scales = key_dtype.itemsize, scale_dtype.itemsize
    head = (width - scales) // keys
    key_page = page_BPX.as_strided(
        (blocks, rows * head * keys), (page_BPX.stride(0), 1), page_BPX.storage_offset()
    )
    scale_page = page_BPX.as_strided(
        (blocks, rows * scales),
        (page_BPX.stride(0), 1),
        page_BPX.storage_offset() + rows * head * keys,
    )
    return (
        key_page.view(key_dtype).unflatten(1, (rows, head)),
        scale_page.view(scale_dtype).unflatten(1, (rows, 1)),
    )


def write_latent_rows_scatter(rows_TD: Tensor, cache_BPW: Tensor, slots: Tensor) -> None:
    """Write rows to a cache of their own type, on `_C_ascend::npu_scatter_nd_update_v2`.

    Args:
        rows_TD: Rows.
        cache_BPW: Pages of rows, any distance apart.
        slots: Flat [T] or (block, row) [T, 2], int32 or int64.
    """
    torch.ops._C_ascend.npu_scatter_nd_update_v2(
        cache_BPW, _pairs(slots, cache_BPW.shape[1]), rows_TD
    )


def write_latent_rows_epilog(rows_TD: Tensor, cache_BPW: Tensor, slots: Tensor) -> None:
    """Quantize rows and write them, on `_C_ascend::kv_compress_epilog`.

    Args:
        rows_TD: Rows, bfloat16.
        cache_BPW: Pages of packed rows (640 bytes for a head of 512) as uint8 or float8_e4m3fn,
            a multiple of the row apart; other types are written as they are (relaxed plans).
        slots: Flat [T] or (block, row) [T, 2], int32 or int64.

    Raises:
        ValueError: the distance of two pages is no multiple of a row: the operator knows one
            stride, that of rows.
    """
    if cache_BPW.dtype not in PACKED_DTYPES:
        _write_plain(rows_TD, cache_BPW, slots)
        return
    blocks, page, width = cache_BPW.shape
    if cache_BPW.stride(0) % width:
        raise ValueError(
            f"write_latent_rows: pages {cache_BPW.stride(0)} bytes apart; kv_compress_epilog wants "
            f"a multiple of the row, {width}"
        )
    pitch = cache_BPW.stride(0) // width
    flat = _flat(slots, page)
    if pitch != page:
        flat = torch.where(flat < 0, flat, flat // page * pitch + flat % page)
    rows = cache_BPW.view(torch.float8_e4m3fn).as_strided(
        ((blocks - 1) * pitch + page, 1, width), (width, width, 1), cache_BPW.storage_offset()
    )
    torch.ops._C_ascend.kv_compress_epilog(
        kv_compress_cache=rows,
        x=rows_TD,
        slot_mapping=flat,
        quant_group_size=PACKED_GROUP,
        quant_mode=PACKED_MODE,
        round_scale_flag=True,
        layout=PACKED_LAYOUT,
    )


def quantize_indexer_query_npu(
    query_TND: Tensor, *, cache_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Queries in the type of the indexer's keys, with a scale a head, on `npu::npu_dynamic_quant`.

    Args:
        query_TND: Rotated queries.
        cache_dtype: int8 (scales float16), float8_e4m3fn (scales float32), or float32, which
            keeps the query (relaxed plans).
    """
    if cache_dtype == torch.float32:
        return query_TND.float(), query_TND.new_ones(query_TND.shape[:-1], dtype=torch.float32)
    query8_TND, scale_TN = torch.ops.npu.npu_dynamic_quant(query_TND, dst_type=cache_dtype)
    return query8_TND, scale_TN.to(SCALE_DTYPES[cache_dtype])


def write_indexer_keys_scatter(
    keys_TD: Tensor, key_cache_BPD: Tensor, scale_cache_BP1: Tensor, slots: Tensor
) -> None:
    """Quantize keys to int8, write keys and scales on `_C_ascend::npu_scatter_nd_update_v2`.

    Args:
        keys_TD: Compressed and rotated keys.
        key_cache_BPD: int8 keys; float32 keeps them as they are (relaxed plans).
        scale_cache_BP1: Scales, of the type that goes with the keys.
        slots: Flat [T] or (block, row) [T, 2], int32 or int64.
    """
    pairs = _pairs(slots, key_cache_BPD.shape[1])
    if key_cache_BPD.dtype == torch.float32:
        stored_TD, scale_T = keys_TD.float(), keys_TD.new_ones(keys_TD.shape[0])
    else:
        stored_TD, scale_T = torch.ops.npu.npu_dynamic_quant(keys_TD, dst_type=torch.int8)
    scale_T1 = scale_T[:, None].to(scale_cache_BP1.dtype)
    torch.ops._C_ascend.npu_scatter_nd_update_v2(key_cache_BPD, pairs, stored_TD)
    torch.ops._C_ascend.npu_scatter_nd_update_v2(scale_cache_BP1, pairs, scale_T1)


def write_indexer_keys_epilog(
    keys_TD: Tensor, key_cache_BPD: Tensor, scale_cache_BP1: Tensor, slots: Tensor
) -> None:
    """Quantize keys to fp8 and write them, on `_C_ascend::indexer_compress_epilog_v2`.

    Keys and scales must be the views that `indexer_views` makes of one page: the operator writes
    both.
    """
    if key_cache_BPD.dtype == torch.float32:
        _write_plain(keys_TD.float(), key_cache_BPD, slots)
        _write_plain(keys_TD.new_ones(keys_TD.shape[0], 1).float(), scale_cache_BP1, slots)
        return
    blocks, rows, head = key_cache_BPD.shape
    width = head + scale_cache_BP1.element_size()
    bytes_BPD = key_cache_BPD.view(torch.uint8)
    page = bytes_BPD.as_strided(
        (blocks, rows, 1, width),
        (bytes_BPD.stride(0), width, width, 1),
        bytes_BPD.storage_offset(),
    )
    torch.ops._C_ascend.indexer_compress_epilog_v2(
        indexer_compress_cache=page,
        x=keys_TD,
        slot_mapping=_flat(slots, rows).to(torch.int32),
        layout=INDEXER_LAYOUT,
    )


def _pairs(slots: Tensor, rows: int) -> Tensor:
    if slots.dim() == 2:
        return slots
    return torch.stack((slots // rows, slots % rows), dim=-1)


def _flat(slots: Tensor, rows: int) -> Tensor:
    if slots.dim() == 1:
        return slots
    return torch.where(slots[:, 0] < 0, -1, slots[:, 0] * rows + slots[:, 1])


def unpack_latent_rows(rows_TW: Tensor, head: int) -> Tensor:
    """Packed rows of A5 as numbers.

    Args:
        rows_TW: bytes: 64 rotated numbers in bfloat16, the others in float8, a power of two for
            each 64 of those, padding.
        head: D, numbers of a row.

    Returns:
        `[T, D]` float32, the rotated numbers last.
    """
    bytes_TW = rows_TW.view(torch.uint8)
    ends = torch.tensor([2 * _ROTATED, head - _ROTATED, (head - _ROTATED) // PACKED_GROUP]).cumsum(
        0
    )
    rotated, values, exponents, _ = bytes_TW.tensor_split(ends.tolist(), dim=1)
    scale_TG = torch.exp2(exponents.float() - _E8M0_BIAS)
    plain = values.contiguous().view(torch.float8_e4m3fn).float()
    plain = plain * scale_TG.repeat_interleave(PACKED_GROUP, dim=1)
    return torch.cat((plain, rotated.contiguous().view(torch.bfloat16).float()), dim=1)


def _write_plain(rows_TD: Tensor, cache_BPW: Tensor, slots: Tensor) -> None:
    """Float caches of relaxed plans on A5, which has no operator that writes rows as they are."""
    pairs = _pairs(slots, cache_BPW.shape[1]).long()
    written = pairs[:, 0] >= 0
    cache_BPW[pairs[written, 0], pairs[written, 1]] = rows_TD[written]
