"""Compressed attention: two requests whose caches hold a few blocks, on int8 and on fp8 pages."""

from typing import Any

import torch

from ascend_recipes.ops import compressed_attention, latent_cache
from ascend_recipes.ops.compressor import compressed_rows
from tests.vendor.cases.drawing import Case, CaseTable, Sizes

E4M3 = torch.float8_e4m3fn
PACKED_ROW = 640
"""Bytes of a row of 512 latent values in 8 bits."""
REQUESTS = 2
BLOCKS = 5


def _int(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def lengths(sizes: Sizes) -> dict[str, torch.Tensor]:
    """Two tokens of the first request, the others of the second."""
    bounds = _int(0, 2, int(sizes["tokens"]))
    return {"query_start_R1": bounds, "kv_lengths_R": _int(300, 530)}


def compressor(sizes: Sizes) -> list[Case]:
    tokens, dim = int(sizes["tokens"]), int(sizes["head_dim"])
    values = {
        "block_table_RV": _int([1, 2], [3, 4]),
        "query_start_R1": lengths(sizes)["query_start_R1"],
        "start_R": _int(0, 5),
        "epsilon": 1e-6,
    }
    fp32 = dict.fromkeys(("norm_weight_D", "cosine_CK", "sine_CK"), "float32")
    found = []
    for ratio, coff in ((4, 2), (128, 1)):
        rows = compressed_rows(tokens, REQUESTS, ratio)
        dims = {"R": REQUESTS, "B": BLOCKS, "E": coff * dim, "r": ratio, "C": rows}
        found += [Case({**values, "ratio": ratio}, dims, dtypes) for dtypes in ({}, fp32)]
    return found


def compressor_metadata(sizes: Sizes) -> list[Case]:
    tokens, ratio = int(sizes["tokens"]), 4
    values = {
        "query_start_R1": lengths(sizes)["query_start_R1"],
        "start_R": _int(0, 5),
        "block_table_RV": _int([1], [2]),
        "block_size": int(sizes["block"]),
        "ratio": ratio,
        "num_rows": compressed_rows(tokens, REQUESTS, ratio),
    }
    dims = {"X": 64, "K": 64, "R": REQUESTS}
    return [Case({**values, "flat": flat}, dims, {}) for flat in (True, False)]


def metadata(sizes: Sizes, heads: int) -> list[Case]:
    common = {**lengths(sizes), "num_heads": heads, "head_dim": 512, "window": 128}
    kinds = ((1, 0), (4, 512), (128, 0))
    return [Case({**common, "ratio": ratio, "top_k": top_k}) for ratio, top_k in kinds]


def indexer_metadata(sizes: Sizes) -> dict[str, Any]:
    return {**lengths(sizes), "top_k": 512, "ratio": 4, "num_heads": 64, "head_dim": 128}


def lightning_indexer(sizes: Sizes) -> list[Case]:
    given = indexer_metadata(sizes)
    made = compressed_attention.lightning_indexer_metadata_custom(**given)
    del given["num_heads"], given["head_dim"]
    values = {**given, "metadata": made, "block_table_RV": _int([0, 1], [2, 3])}
    names = ("weights_TN", "query_scale_TN", "scale_cache_BP1")
    int8 = dict.fromkeys(names, "float16")
    fp8 = dict.fromkeys(names, "float32")
    fp8 |= dict.fromkeys(("query_TND", "key_cache_BPD"), "float8_e4m3fn")
    dims = {"R": REQUESTS, "B": BLOCKS}
    return [Case(values, dims, dtypes) for dtypes in (int8, fp8)]


def sparse_attention(sizes: Sizes, *, packed: bool) -> list[Case]:
    tokens, block = int(sizes["tokens"]), int(sizes["block"])
    heads = 64 if packed else int(sizes["num_attention_heads"] // sizes["tp"])
    width = PACKED_ROW if packed else 512
    dtype = E4M3 if packed else torch.bfloat16
    cache = torch.zeros(BLOCKS, block, width).to(dtype)
    table = torch.arange(REQUESTS * BLOCKS, dtype=torch.int32).view(REQUESTS, -1) % BLOCKS
    indices = torch.full((tokens, 512), -1, dtype=torch.int32)
    compressed = {"compressed_cache_BPW": cache, "compressed_table_RV": table}
    make = compressed_attention.sparse_attention_metadata_custom
    if packed:
        make = compressed_attention.sparse_attention_metadata_kv_quant
    found = []
    for case, extra in zip(
        metadata(sizes, heads),
        ({}, {**compressed, "ratio": 4, "indices_TK": indices}, {**compressed, "ratio": 128}),
        strict=True,
    ):
        values = {
            **lengths(sizes),
            "metadata": make(**case.values),
            "scale": 512**-0.5,
            "window": 128,
        }
        values |= {"window_cache_BPW": cache, "window_table_RV": table, **extra}
        found.append(Case(values, {"N": heads}))
    return found


def indexer_keys(sizes: Sizes, dtype: torch.dtype) -> list[Case]:
    block, dim = int(sizes["block"]), int(sizes["index_head_dim"])
    row = dim * dtype.itemsize + latent_cache.SCALE_DTYPES[dtype].itemsize
    page = torch.zeros(BLOCKS, block, row, dtype=torch.uint8)
    keys, scales = latent_cache.indexer_views(page, dtype)
    common = {"key_cache_BPD": keys, "scale_cache_BP1": scales}
    slots = torch.tensor([7, -1, 300])
    pairs = torch.stack((slots // block, slots % block), dim=-1)
    return [Case({**common, "slots": form}, {"T": 3}) for form in (slots.int(), slots, pairs)]


def latent_rows(sizes: Sizes, *, packed: bool) -> list[Case]:
    block = int(sizes["block"])
    slots = torch.arange(int(sizes["tokens"]))
    pairs = torch.stack((slots // block, slots % block), dim=-1)
    dims = {"D": 512, "B": BLOCKS, "W": PACKED_ROW if packed else 512}
    kinds = {"cache_BPW": "float8_e4m3fn" if packed else "bfloat16"}
    return [Case({"slots": form}, dims, kinds) for form in (slots.int(), slots, pairs)]


HYPER = {"norm_epsilon": 1e-6, "epsilon": 1e-6}


def mx_projection(sizes: Sizes) -> list[Case]:
    """Scales of one; two groups of 64 inputs, since the operator only turns and multiplies."""
    tokens, dims = int(sizes["tokens"]), {"G": 2, "X": 64, "L": 16}
    ones = {
        "token_scale": torch.full((tokens, 2, 1, 2), 127, dtype=torch.uint8),
        "weight_scale": torch.full((2, 1, 16, 2), 127, dtype=torch.uint8),
    }
    return [Case({**ones, "output_dtype": kind}, dims) for kind in (torch.bfloat16, torch.float16)]


CASES: CaseTable = {
    "grouped_mx_projection": mx_projection,
    "hyper_connection_pre": lambda _: [Case({**HYPER, "iterations": 20})],
    "compressor": compressor,
    "compressor_metadata": compressor_metadata,
    "quantize_indexer_query": lambda _: [Case({"cache_dtype": d}) for d in (torch.int8, E4M3)],
    "lightning_indexer_metadata": lambda sizes: [Case(indexer_metadata(sizes))],
    "lightning_indexer": lightning_indexer,
    "sparse_attention_metadata": lambda sizes: metadata(sizes, 8),
    "sparse_attention_metadata@cann_custom.npu_kv_quant_sparse_attn_sharedkv_metadata": (
        lambda sizes: metadata(sizes, 64)
    ),
    "sparse_attention_shared_kv": lambda sizes: sparse_attention(sizes, packed=False),
    "sparse_attention_shared_kv@cann_custom.npu_kv_quant_sparse_attn_sharedkv": (
        lambda sizes: sparse_attention(sizes, packed=True)
    ),
    "write_indexer_keys": lambda sizes: indexer_keys(sizes, torch.int8),
    "write_indexer_keys@cann_custom.indexer_compress_epilog_v2": (
        lambda sizes: indexer_keys(sizes, E4M3)
    ),
    "write_latent_rows": lambda sizes: latent_rows(sizes, packed=False),
    "write_latent_rows@cann_custom.kv_compress_epilog": (
        lambda sizes: latent_rows(sizes, packed=True)
    ),
}
