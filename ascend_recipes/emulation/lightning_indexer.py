"""Emulated quantized lightning indexer: scores of compressed blocks and the best of them."""

# Shapes: T tokens, N heads, D head dim, B blocks, P rows of a block, R requests, Q queries of a
#         request, L compressed keys, K wanted blocks, V columns of a block table

import torch
from torch import Tensor

from ascend_recipes.emulation.refusal import (
    FLOAT_CACHE,
    SMALL,
    OperatorRefusedError,
    check,
    check_contiguous,
    check_dtype,
    check_range,
    check_same_dtype,
    check_shape,
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
    UNLIMITED,
    check_indexer_modes,
    check_indexer_numbers,
    check_split,
    indexer_numbers,
)

NAME = "npu_vllm_quant_lightning_indexer"
BUDGET = 1 << 23
"""Scores of heads that are held at once."""
STEP = 1 / 1024
"""Factor with which A2 and A3 bring an int32 product into float16."""


def quant_lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_dequant_scale: Tensor,
    key_dequant_scale: Tensor,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    metadata: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    cmp_ratio: int = 1,
    return_value: bool = False,
) -> tuple[Tensor, Tensor]:
    """`_C_ascend::npu_vllm_quant_lightning_indexer` for layouts TND and PA_BSND.

    Blocks are listed by falling score, the lower block first among equals (the vendor does not
    say), and -1 fills what is left. With int8 the relu of each int32 product is divided by 1024
    and rounded to float16, as is the product of weight and query scale.

    Returns:
        Blocks [T, 1, sparse_count] as int32, and an empty tensor.
    """
    check_shape(NAME, "query", query, (None, None, None), "[tokens, heads, head dim]")
    check_shape(NAME, "key", key, (None, None, None, query.shape[2]), "[blocks, rows, 1, head dim]")
    check_indexer_numbers(
        NAME, query.shape[1], key.shape[2], query.shape[2], sparse_count, cmp_ratio
    )
    check_indexer_modes(
        NAME,
        query_quant_mode=query_quant_mode,
        key_quant_mode=key_quant_mode,
        layout_query=layout_query,
        layout_key=layout_key,
        sparse_mode=sparse_mode,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
    )
    check(not return_value, NAME, "return_value", "is True", "False")
    _check_operands(query, key, weights, query_dequant_scale, key_dequant_scale)
    if actual_seq_lengths_query is None or actual_seq_lengths_key is None or block_table is None:
        raise OperatorRefusedError(
            NAME, "block_table", "or a length is None", "both lengths and the table (PA_BSND)"
        )
    requests = actual_seq_lengths_query.shape[0]
    bounds = torch.nn.functional.pad(actual_seq_lengths_query, (1, 0))
    batch = read_batch(NAME, "actual_seq_lengths_query", bounds, query.shape[0])
    check_integers(NAME, "actual_seq_lengths_key", actual_seq_lengths_key, requests, "[requests]")
    check_range(NAME, "actual_seq_lengths_key", actual_seq_lengths_key, 0, 1 << 31, "lengths")
    keys_R = actual_seq_lengths_key.long()
    needed = -(-(int(keys_R.max()) // cmp_ratio) // key.shape[1])
    check_table(NAME, "block_table", block_table, requests, needed)
    numbers = indexer_numbers(query.shape[1], query.shape[2], sparse_count, cmp_ratio)
    check_split(NAME, metadata, numbers, (actual_seq_lengths_query, actual_seq_lengths_key))

    out = torch.full((query.shape[0], 1, sparse_count), -1, dtype=torch.int32)
    weight_TN = weights * query_dequant_scale
    fits = bool(weight_TN[: batch.request_T.numel()].isfinite().all())
    wanted = f"products with query_dequant_scale that {weights.dtype} can hold"
    check(fits, NAME, "weights", "overflows", wanted)
    for group in group_requests(batch):
        _select(
            query, weight_TN, key, key_dequant_scale, block_table, batch, keys_R, group,
            sparse_mode == 3, cmp_ratio, out,
        )  # fmt: skip
    return out, torch.empty(0)


def quant_lightning_indexer_meta(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_dequant_scale: Tensor,
    key_dequant_scale: Tensor,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    metadata: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    *_: object,
    **__: object,
) -> tuple[Tensor, Tensor]:
    """Shapes of `npu_vllm_quant_lightning_indexer`."""
    shape = (query.shape[0], key.shape[2], sparse_count)
    return query.new_empty(shape, dtype=torch.int32), query.new_empty(0, dtype=torch.float32)


def _select(
    query: Tensor,
    weight_TN: Tensor,
    key: Tensor,
    key_scale: Tensor,
    table_RV: Tensor,
    batch: Batch,
    keys_R: Tensor,
    group: Tensor,
    causal: bool,
    ratio: int,
    out: Tensor,
) -> None:
    """Best blocks of requests that have the same number of queries."""
    queries = int(batch.lengths_R[group[0]])
    longest = int(keys_R[group].max()) // ratio
    if longest == 0:
        return
    key_RLD = gather_rows(key[:, :, 0], table_RV[group], longest).float()
    scale_RL = gather_rows(key_scale[..., 0], table_RV[group], longest).float()
    kept = min(out.shape[2], longest)
    tile = max(1, BUDGET // (group.numel() * query.shape[1] * longest))
    for first in range(0, queries, tile):
        offset_Q = torch.arange(first, min(first + tile, queries))
        row_RQ = batch.starts_R[group][:, None] + offset_Q
        query_RMD = query[row_RQ].flatten(1, 2).float()
        product_RMQ = (query_RMD @ key_RLD.transpose(1, 2)).relu_()
        if query.dtype == torch.int8:
            product_RMQ = (product_RMQ * STEP).half().float()
        product_RQNL = product_RMQ.unflatten(1, (offset_Q.numel(), -1))
        score_RQL = (weight_TN[row_RQ].float()[:, :, None] @ product_RQNL)[:, :, 0]
        score_RQL = score_RQL * scale_RL[:, None]
        ahead_RQ = (keys_R[group] - queries)[:, None] + offset_Q if causal else None
        seen = keys_R[group][:, None] if ahead_RQ is None else ahead_RQ + 1
        hidden_RQL = torch.arange(longest) >= (seen // ratio)[..., None]
        ordered = score_RQL.masked_fill(hidden_RQL, -torch.inf).sort(
            dim=-1, descending=True, stable=True
        )
        none = ordered.values[..., :kept] == -torch.inf
        out[row_RQ, 0, :kept] = ordered.indices[..., :kept].masked_fill(none, -1).int()


def _check_operands(
    query: Tensor, key: Tensor, weights: Tensor, query_scale: Tensor, key_scale: Tensor
) -> None:
    # int8 with float16 on A2 and A3, float8_e4m3fn with float32 on A5.
    companions = {torch.int8: torch.float16, torch.float8_e4m3fn: torch.float32}
    if relaxes(FLOAT_CACHE):
        companions[torch.float32] = torch.float32
    check(query.dtype in companions, NAME, "query", f"is {query.dtype}", "int8, float8_e4m3fn")
    check_same_dtype(NAME, query, key=key)
    wanted = (companions[query.dtype],)
    for argument, tensor in (
        ("weights", weights),
        ("query_dequant_scale", query_scale),
        ("key_dequant_scale", key_scale),
    ):
        check_dtype(NAME, argument, tensor, wanted)
    check_contiguous(NAME, query=query, weights=weights, query_dequant_scale=query_scale)
    check(query.numel() > 0 and key.numel() > 0, NAME, "query", "or key is empty", "elements")
    check_shape(NAME, "weights", weights, query.shape[:2], "[tokens, heads]")
    check_shape(NAME, "query_dequant_scale", query_scale, query.shape[:2], "[tokens, heads]")
    rows = key.shape[1]
    check_shape(NAME, "key_dequant_scale", key_scale, (*key.shape[:2], 1), "[blocks, rows, 1]")
    check_pages(NAME, "key", key)
    check_pages(NAME, "key_dequant_scale", key_scale)
    fits = rows <= 1024 and (rows % 16 == 0 or relaxes(SMALL))
    check(fits, NAME, "key", f"has blocks of {rows} rows", "multiples of 16 up to 1024")
