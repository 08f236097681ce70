"""Emulated writes of single rows into the caches of compressed attention."""

# Shapes: T tokens, D row width, B blocks, P rows of a block

import torch
from torch import Tensor

from ascend_recipes.emulation.packed_rows import GROUP, ROPE, pack_rows, row_bytes
from ascend_recipes.emulation.refusal import (
    SMALL,
    check,
    check_range,
    check_same_dtype,
    check_shape,
    relaxes,
)

SCALE_BYTES = 4


def scatter_nd_update(var: Tensor, indices: Tensor, update: Tensor) -> None:
    """`_C_ascend::npu_scatter_nd_update_v2`: `var[indices[t]] = update[t]`, any strides.

    Rows whose first index is -1 are skipped: vllm-ascend pads its slots with (-1, block size - 1).
    """
    name = "npu_scatter_nd_update_v2"
    check_same_dtype(name, var, update=update)
    depth = indices.shape[-1] if indices.dim() >= 2 else 0
    check(
        0 < depth <= var.dim(),
        name,
        "indices",
        f"has shape {list(indices.shape)}",
        f"at least 2 dimensions, the last of 1 to {var.dim()}",
    )
    shape = (*indices.shape[:-1], *var.shape[depth:])
    check_shape(name, "update", update, shape, "leading dimensions of indices, rest of var")
    index_TI = indices.flatten(0, -2).long()
    written_T = index_TI[:, 0] != -1
    index_TI = index_TI[written_T]
    for axis in range(depth):
        meaning = f"indices of dimension {axis}, or -1 in the first"
        check_range(name, "indices", index_TI[:, axis], 0, var.shape[axis], meaning)
    _check_distinct(name, "indices", index_TI)
    var[tuple(index_TI.unbind(-1))] = update.flatten(0, indices.dim() - 2)[written_T]


def scatter_nd_update_meta(var: Tensor, indices: Tensor, update: Tensor) -> None:
    """`npu_scatter_nd_update_v2` has no output."""


def kv_compress_epilog(
    kv_compress_cache: Tensor,
    x: Tensor,
    slot_mapping: Tensor,
    quant_group_size: int,
    quant_mode: int,
    round_scale_flag: bool,
    layout: int,
) -> None:
    """`_C_ascend::kv_compress_epilog` (A5): quantizes rows [T, D] and writes them to flat slots.

    The cache holds one row in each element of its first dimension, at that dimension's stride.
    """
    name = "kv_compress_epilog"
    check_shape(name, "x", x, (None, None), "[tokens, head dim]")
    check(x.numel() > 0, name, "x", "is empty", "a tensor with elements")
    head = x.shape[1]
    check(
        head == 512 or (relaxes(SMALL) and head > ROPE and (head - ROPE) % GROUP == 0),
        name,
        "x",
        f"has head dim {head}",
        "512",
    )
    check(
        kv_compress_cache.dtype == torch.float8_e4m3fn,
        name,
        "kv_compress_cache",
        f"is {kv_compress_cache.dtype}",
        "float8_e4m3fn (float8_e5m2 is not emulated)",
    )
    width = row_bytes(head)
    check_shape(name, "kv_compress_cache", kv_compress_cache, (None, 1, width), "[rows, 1, width]")
    check(
        kv_compress_cache.stride(0) >= width and kv_compress_cache.stride(2) == 1,
        name,
        "kv_compress_cache",
        f"has strides {list(kv_compress_cache.stride())}",
        f"rows at least {width} bytes apart",
    )
    for argument, value, wanted in (
        ("quant_group_size", quant_group_size, GROUP),
        ("quant_mode", quant_mode, 2),
        ("round_scale_flag", round_scale_flag, True),
        ("layout", layout, 1),
    ):
        check(value == wanted, name, argument, f"is {value}", f"{wanted} (others not emulated)")
    check_shape(name, "slot_mapping", slot_mapping, (x.shape[0],), "[tokens]")
    rows = kv_compress_cache.shape[0]
    check_range(name, "slot_mapping", slot_mapping, -1, rows, "rows of the cache, or -1")
    written_T = slot_mapping >= 0
    slot_T = slot_mapping[written_T].long()
    _check_distinct(name, "slot_mapping", slot_T[:, None])
    kv_compress_cache.view(torch.uint8)[slot_T, 0] = pack_rows(x[written_T])


def kv_compress_epilog_meta(
    kv_compress_cache: Tensor,
    x: Tensor,
    slot_mapping: Tensor,
    quant_group_size: int,
    quant_mode: int,
    round_scale_flag: bool,
    layout: int,
) -> None:
    """`kv_compress_epilog` has no output."""


def indexer_compress_epilog(
    indexer_compress_cache: Tensor, x: Tensor, slot_mapping: Tensor, layout: int = 2
) -> None:
    """`_C_ascend::indexer_compress_epilog_v2` (A5): fp8 keys and float32 scales in one page.

    A page of P rows of D + 4 bytes holds P · D bytes of keys and then P float32 scales.
    """
    name = "indexer_compress_epilog_v2"
    check(layout == 2, name, "layout", f"is {layout}", "2")
    cache = indexer_compress_cache
    head = x.shape[-1]
    check(head == 128 or relaxes(SMALL), name, "x", f"has head dim {head}", "128")
    shape = (None, None, 1, head + SCALE_BYTES)
    check_shape(name, "indexer_compress_cache", cache, shape, "[blocks, rows, 1, head dim + 4]")
    blocks, rows = cache.shape[:2]
    check(
        cache[:1].is_contiguous()
        and (blocks == 1 or cache.stride(0) >= rows * (head + SCALE_BYTES)),
        name,
        "indexer_compress_cache",
        f"has strides {list(cache.stride())}",
        "contiguous pages",
    )
    x_TD = x.reshape(-1, head)
    check_shape(name, "slot_mapping", slot_mapping, (x_TD.shape[0],), "[tokens]")
    check_range(name, "slot_mapping", slot_mapping, -1, blocks * rows, "rows of the cache, or -1")
    written_T = slot_mapping >= 0
    slot_T = slot_mapping[written_T].long()
    _check_distinct(name, "slot_mapping", slot_T[:, None])
    keys_TD, scale_T = quantize_fp8(x_TD[written_T].float())
    stride, offset = cache.stride(0), cache.storage_offset()
    key_BPD = cache.as_strided((blocks, rows, head), (stride, head, 1), offset)
    scale_BPX = cache.as_strided(
        (blocks, rows, SCALE_BYTES), (stride, SCALE_BYTES, 1), offset + rows * head
    )
    page_T, row_T = slot_T // rows, slot_T % rows
    key_BPD[page_T, row_T] = keys_TD.view(torch.uint8)
    scale_BPX[page_T, row_T] = scale_T[:, None].view(torch.uint8)


def indexer_compress_epilog_meta(
    indexer_compress_cache: Tensor, x: Tensor, slot_mapping: Tensor, layout: int = 2
) -> None:
    """`indexer_compress_epilog_v2` has no output."""


def quantize_fp8(x_TD: Tensor) -> tuple[Tensor, Tensor]:
    """fp8_e4m3 rows and their float32 scales, the largest element of a row at 448."""
    scale_T = x_TD.abs().amax(-1) * (1 / 448.0)
    divided_TD = torch.where(scale_T[:, None] > 0, x_TD / scale_T[:, None], 0.0)
    return divided_TD.clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale_T


def _check_distinct(name: str, argument: str, index_TI: Tensor) -> None:
    distinct = torch.unique(index_TI, dim=0).shape[0] == index_TI.shape[0]
    check(distinct, name, argument, "names a row twice", "distinct rows")
