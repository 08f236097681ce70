"""Kernels of compressed attention and hyper-connections, by dispatcher name."""

from collections.abc import Callable
from typing import Any

from ascend_recipes.emulation import (
    cache_rows,
    compressor,
    hyper_connection,
    lightning_indexer,
    microscaled_projection,
    projection,
    rotation,
    shared_kv_attention,
    split_metadata,
)

Kernel = Callable[..., Any]

SPARSE_KERNELS: dict[str, tuple[Kernel, Kernel]] = {
    "npu::npu_mhc_pre": (hyper_connection.mhc_pre, hyper_connection.mhc_pre_meta),
    "npu::npu_mhc_sinkhorn": (hyper_connection.mhc_sinkhorn, hyper_connection.mhc_sinkhorn_meta),
    "npu::npu_mhc_post": (hyper_connection.mhc_post, hyper_connection.mhc_post_meta),
    "npu::npu_transpose_batchmatmul": (
        projection.transpose_batchmatmul,
        projection.transpose_batchmatmul_meta,
    ),
    "npu::npu_transpose_quant_batchmatmul": (
        microscaled_projection.transpose_quant_batchmatmul,
        microscaled_projection.transpose_quant_batchmatmul_meta,
    ),
    "_C_ascend::npu_hc_pre_v2": (hyper_connection.hc_pre_v2, hyper_connection.hc_pre_v2_meta),
    "_C_ascend::npu_hc_post": (hyper_connection.hc_post, hyper_connection.hc_post_meta),
    "_C_ascend::inplace_partial_rotary_mul": (
        rotation.inplace_partial_rotary_mul,
        rotation.inplace_partial_rotary_mul_meta,
    ),
    "_C_ascend::compressor": (compressor.compressor, compressor.compressor_meta),
    "_C_ascend::compressor_metadata": (
        compressor.compressor_metadata,
        compressor.compressor_metadata_meta,
    ),
    "_C_ascend::npu_scatter_nd_update_v2": (
        cache_rows.scatter_nd_update,
        cache_rows.scatter_nd_update_meta,
    ),
    "_C_ascend::kv_compress_epilog": (
        cache_rows.kv_compress_epilog,
        cache_rows.kv_compress_epilog_meta,
    ),
    "_C_ascend::indexer_compress_epilog_v2": (
        cache_rows.indexer_compress_epilog,
        cache_rows.indexer_compress_epilog_meta,
    ),
    "_C_ascend::npu_vllm_quant_lightning_indexer": (
        lightning_indexer.quant_lightning_indexer,
        lightning_indexer.quant_lightning_indexer_meta,
    ),
    "_C_ascend::npu_vllm_quant_lightning_indexer_metadata": (
        split_metadata.lightning_indexer_metadata,
        split_metadata.lightning_indexer_metadata_meta,
    ),
    "_C_ascend::npu_sparse_attn_sharedkv": (
        shared_kv_attention.sparse_attention,
        shared_kv_attention.sparse_attention_meta,
    ),
    "_C_ascend::npu_sparse_attn_sharedkv_metadata": (
        split_metadata.sparse_attention_metadata,
        split_metadata.sparse_attention_metadata_meta,
    ),
    "_C_ascend::npu_kv_quant_sparse_attn_sharedkv": (
        shared_kv_attention.kv_quant_sparse_attention,
        shared_kv_attention.kv_quant_sparse_attention_meta,
    ),
    "_C_ascend::npu_kv_quant_sparse_attn_sharedkv_metadata": (
        split_metadata.kv_quant_sparse_attention_metadata,
        split_metadata.kv_quant_sparse_attention_metadata_meta,
    ),
}
"""CPU kernel and Meta kernel of each operator."""
