"""Bindings of the lightning indexer and of shared-KV sparse attention to NPU operators."""

# Shapes: T tokens, N heads, D head dim, R requests, B blocks, P rows of a block, W bytes or
#         elements of a row, V columns of a block table, K selected blocks

import torch
from torch import Tensor

from ascend_recipes.ops.compressor import compressed_rows
from ascend_recipes.ops.latent_cache import indexer_views

__all__ = [
    "compressed_rows",
    "indexer_views",
    "lightning_indexer_custom",
    "lightning_indexer_metadata_custom",
    "sparse_attention_metadata_custom",
    "sparse_attention_metadata_kv_quant",
    "sparse_attention_shared_kv_custom",
    "sparse_attention_shared_kv_kv_quant",
]

CAUSAL = 3
BAND = 4
UNLIMITED = 9223372036854775807
PACKED_CODE = 1
"""Number of the quantization mode of packed rows: values in fp8 with shared scales."""
PACKED_GROUP = 64
PACKED_ROPE = 64


def lightning_indexer_metadata_custom(
    *,
    query_start_R1: Tensor,
    kv_lengths_R: Tensor,
    num_heads: int,
    head_dim: int,
    top_k: int,
    ratio: int,
) -> Tensor:
    """Split of `lightning_indexer` over cores, for one step; int32 [1024].

    On `_C_ascend::npu_vllm_quant_lightning_indexer_metadata`.

    Args:
        query_start_R1: First token of each request and the end, int32.
        kv_lengths_R: Raw tokens of each request, the current ones included, int32.
        num_heads: Query heads.
        head_dim: D.
        top_k: Blocks to select.
        ratio: Tokens of a block.
    """
    metadata: Tensor = torch.ops._C_ascend.npu_vllm_quant_lightning_indexer_metadata(
        num_heads,
        1,
        head_dim,
        0,
        0,
        actual_seq_lengths_query=query_start_R1[1:],
        actual_seq_lengths_key=kv_lengths_R,
        batch_size=kv_lengths_R.shape[0],
        layout_query="TND",
        layout_key="PA_BSND",
        sparse_count=top_k,
        sparse_mode=CAUSAL,
        pre_tokens=UNLIMITED,
        next_tokens=UNLIMITED,
        cmp_ratio=ratio,
        device=str(query_start_R1.device),
    )
    return metadata


def lightning_indexer_custom(
    query_TND: Tensor,
    weights_TN: Tensor,
    query_scale_TN: Tensor,
    key_cache_BPD: Tensor,
    scale_cache_BP1: Tensor,
    *,
    query_start_R1: Tensor,
    kv_lengths_R: Tensor,
    block_table_RV: Tensor,
    metadata: Tensor,
    top_k: int,
    ratio: int = 4,
) -> Tensor:
    """Best compressed blocks of every token, on `_C_ascend::npu_vllm_quant_lightning_indexer`.

    Args:
        query_TND: Queries in the type of the keys, from `quantize_indexer_query`.
        weights_TN: Weight of each head, any float type, scale factors included.
        query_scale_TN: Scales of the queries.
        key_cache_BPD: Keys, int8 (A2, A3) or float8_e4m3fn (A5); pages any distance apart.
        scale_cache_BP1: Scales of the keys, float16 or float32.
        query_start_R1: First token of each request and the end, int32.
        kv_lengths_R: Raw tokens of each request, the current ones included, int32.
        block_table_RV: Blocks of the key cache, int32.
        metadata: From `lightning_indexer_metadata` for the same lengths.
        top_k: K.
        ratio: Tokens of a compressed block.

    Returns:
        Blocks [T, K] as int32 by falling score, -1 where fewer are visible.
    """
    indices_T1K, _ = torch.ops._C_ascend.npu_vllm_quant_lightning_indexer(
        query=query_TND.contiguous(),
        key=key_cache_BPD.unsqueeze(2),
        weights=weights_TN.to(scale_cache_BP1.dtype).contiguous(),
        query_dequant_scale=query_scale_TN.contiguous(),
        key_dequant_scale=scale_cache_BP1,
        query_quant_mode=0,
        key_quant_mode=0,
        actual_seq_lengths_query=query_start_R1[1:],
        actual_seq_lengths_key=kv_lengths_R,
        block_table=block_table_RV,
        metadata=metadata,
        layout_query="TND",
        layout_key="PA_BSND",
        sparse_count=top_k,
        sparse_mode=CAUSAL,
        pre_tokens=UNLIMITED,
        next_tokens=UNLIMITED,
        cmp_ratio=ratio,
        return_value=False,
    )
    indices_TK: Tensor = indices_T1K[:, 0]
    return indices_TK


def sparse_attention_metadata_custom(
    *,
    query_start_R1: Tensor,
    kv_lengths_R: Tensor,
    num_heads: int,
    head_dim: int,
    window: int,
    ratio: int,
    top_k: int,
) -> Tensor:
    """Split of `sparse_attention_shared_kv` over cores, for one step and ratio; int32 [1024].

    On `_C_ascend::npu_sparse_attn_sharedkv_metadata`.

    Args:
        query_start_R1: First token of each request and the end, int32.
        kv_lengths_R: Raw tokens of each request, the current ones included, int32.
        num_heads: Query heads of this rank.
        head_dim: D.
        window: Keys that a query sees in the window, its own included.
        ratio: 4 or 128; 1 without compressed keys.
        top_k: Selected blocks; 0 where every visible block counts.
    """
    metadata: Tensor = torch.ops._C_ascend.npu_sparse_attn_sharedkv_metadata(
        num_heads,
        1,
        head_dim,
        cu_seqlens_q=query_start_R1,
        seqused_kv=kv_lengths_R,
        batch_size=kv_lengths_R.shape[0],
        cmp_topk=top_k,
        cmp_ratio=ratio,
        ori_mask_mode=BAND,
        cmp_mask_mode=CAUSAL,
        ori_win_left=window - 1,
        ori_win_right=0,
        layout_q="TND",
        layout_kv="PA_ND",
        has_ori_kv=True,
        has_cmp_kv=ratio > 1,
        device=str(query_start_R1.device),
    )
    return metadata


def sparse_attention_metadata_kv_quant(
    *,
    query_start_R1: Tensor,
    kv_lengths_R: Tensor,
    num_heads: int,
    head_dim: int,
    window: int,
    ratio: int,
    top_k: int,
) -> Tensor:
    """As `sparse_attention_metadata_custom`, for packed caches.

    On `_C_ascend::npu_kv_quant_sparse_attn_sharedkv_metadata`.
    """
    metadata: Tensor = torch.ops._C_ascend.npu_kv_quant_sparse_attn_sharedkv_metadata(
        num_heads,
        1,
        head_dim,
        PACKED_CODE,
        cu_seqlens_q=query_start_R1,
        seqused_kv=kv_lengths_R,
        batch_size=kv_lengths_R.shape[0],
        cmp_topk=top_k,
        tile_size=PACKED_GROUP,
        rope_head_dim=PACKED_ROPE,
        cmp_ratio=ratio,
        ori_mask_mode=BAND,
        cmp_mask_mode=CAUSAL,
        ori_win_left=window - 1,
        ori_win_right=0,
        layout_q="TND",
        layout_kv="PA_ND",
        has_ori_kv=True,
        has_cmp_kv=ratio > 1,
        device=str(query_start_R1.device),
    )
    return metadata


def sparse_attention_shared_kv_custom(
    query_TND: Tensor,
    window_cache_BPW: Tensor,
    *,
    window_table_RV: Tensor,
    query_start_R1: Tensor,
    kv_lengths_R: Tensor,
    sinks_N: Tensor,
    metadata: Tensor,
    scale: float,
    window: int,
    compressed_cache_BPW: Tensor | None = None,
    compressed_table_RV: Tensor | None = None,
    ratio: int = 1,
    indices_TK: Tensor | None = None,
) -> Tensor:
    """Attention over a window and compressed blocks, on `_C_ascend::npu_sparse_attn_sharedkv`.

    One cached head serves as key and value of every query head.

    Args:
        query_TND: Queries of all requests, one after the other.
        window_cache_BPW: Cached tokens, in the type of the queries; pages any distance apart.
        window_table_RV: Their blocks, int32.
        query_start_R1: First token of each request and the end, int32.
        kv_lengths_R: Raw tokens of each request, the current ones included, int32.
        sinks_N: Score of a key without value, a head, float32.
        metadata: From `sparse_attention_metadata` for the same lengths and ratio.
        scale: Factor of the scores.
        window: Keys that a query sees in the window, its own included.
        compressed_cache_BPW: Compressed blocks, if the layer has them.
        compressed_table_RV: Their pages, int32.
        ratio: Tokens of a compressed block.
        indices_TK: Blocks that a token attends to, -1 after the last; none for all visible ones.
    """
    out_TND: Tensor
    out_TND, _ = torch.ops._C_ascend.npu_sparse_attn_sharedkv(
        query_TND.contiguous(),
        ori_kv=window_cache_BPW.unsqueeze(2),
        cmp_kv=None if compressed_cache_BPW is None else compressed_cache_BPW.unsqueeze(2),
        cmp_sparse_indices=None if indices_TK is None else indices_TK[:, None].contiguous(),
        ori_block_table=window_table_RV,
        cmp_block_table=compressed_table_RV,
        cu_seqlens_q=query_start_R1,
        seqused_kv=kv_lengths_R,
        sinks=sinks_N,
        metadata=metadata,
        softmax_scale=scale,
        cmp_ratio=ratio,
        ori_mask_mode=BAND,
        cmp_mask_mode=CAUSAL,
        ori_win_left=window - 1,
        ori_win_right=0,
        layout_q="TND",
        layout_kv="PA_ND",
        return_softmax_lse=False,
    )
    return out_TND


def sparse_attention_shared_kv_kv_quant(
    query_TND: Tensor,
    window_cache_BPW: Tensor,
    *,
    window_table_RV: Tensor,
    query_start_R1: Tensor,
    kv_lengths_R: Tensor,
    sinks_N: Tensor,
    metadata: Tensor,
    scale: float,
    window: int,
    compressed_cache_BPW: Tensor | None = None,
    compressed_table_RV: Tensor | None = None,
    ratio: int = 1,
    indices_TK: Tensor | None = None,
) -> Tensor:
    """As `sparse_attention_shared_kv_custom`, over packed rows of 640 bytes.

    On `_C_ascend::npu_kv_quant_sparse_attn_sharedkv`; caches as `write_latent_rows` packs them,
    uint8 or float8_e4m3fn.
    """
    out_TND: Tensor
    out_TND, _ = torch.ops._C_ascend.npu_kv_quant_sparse_attn_sharedkv(
        query_TND.contiguous(),
        PACKED_CODE,
        ori_kv=_packed(window_cache_BPW),
        cmp_kv=None if compressed_cache_BPW is None else _packed(compressed_cache_BPW),
        cmp_sparse_indices=None if indices_TK is None else indices_TK[:, None].contiguous(),
        ori_block_table=window_table_RV,
        cmp_block_table=compressed_table_RV,
        cu_seqlens_q=query_start_R1,
        seqused_kv=kv_lengths_R,
        sinks=sinks_N,
        metadata=metadata,
        tile_size=PACKED_GROUP,
        rope_head_dim=PACKED_ROPE,
        softmax_scale=scale,
        cmp_ratio=ratio,
        ori_mask_mode=BAND,
        cmp_mask_mode=CAUSAL,
        ori_win_left=window - 1,
        ori_win_right=0,
        layout_q="TND",
        layout_kv="PA_ND",
        return_softmax_lse=False,
    )
    return out_TND


def _packed(cache_BPW: Tensor) -> Tensor:
    if cache_BPW.dtype == torch.uint8:
        cache_BPW = cache_BPW.view(torch.float8_e4m3fn)
    return cache_BPW.unsqueeze(2)
