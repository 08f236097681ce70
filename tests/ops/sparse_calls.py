"""Legal calls of DeepSeek-V4's attention and hyper-connection operators, at the model's sizes."""

import torch

E4M3 = torch.float8_e4m3fn


def bfloat(*shape):
    return torch.randn(*shape).bfloat16()


def integers(*values):
    return torch.tensor(values, dtype=torch.int32)


def indexer_lengths():
    return {
        "actual_seq_lengths_query": integers(2),
        "actual_seq_lengths_key": integers(40),
        "layout_query": "TND",
        "layout_key": "PA_BSND",
        "sparse_count": 16,
        "cmp_ratio": 4,
    }


def attention_lengths():
    return {
        "cu_seqlens_q": integers(0, 2),
        "seqused_kv": integers(40),
        "cmp_ratio": 4,
        "ori_win_left": 127,
        "layout_q": "TND",
    }


def attention(cache):
    return {
        "ori_kv": cache,
        "cmp_kv": cache,
        "cmp_sparse_indices": torch.full((2, 1, 512), -1, dtype=torch.int32),
        "ori_block_table": integers(1)[None],
        "cmp_block_table": integers(1)[None],
        "sinks": torch.zeros(64),
        "softmax_scale": 0.1,
    } | attention_lengths()


def split(name, numbers, options):
    """Metadata of a call, as the operator gives it; made when the emulation is installed."""
    return lambda: getattr(torch.ops._C_ascend, name)(*numbers, batch_size=1, **options)


COMPRESSOR = (
    bfloat(8, 1024),
    bfloat(1024, 1024),
    bfloat(1024, 1024),
    torch.zeros(3, 8, 2048),
    torch.zeros(4, 1024),
    bfloat(512),
    torch.zeros(3, 64),
    torch.zeros(3, 64),
    integers(1)[None],
    integers(0, 8),
    None,
    integers(0),
    64,
    4,
    2,
    1e-6,
    2,
    1,
)
TABLE = torch.zeros(16, 64)
INDEXER = (64, 1, 128, 0, 0)
ATTENTION = (64, 1, 512)
PLAIN = bfloat(4, 64, 1, 512)
PACKED = torch.zeros(4, 64, 1, 640, dtype=torch.uint8).view(E4M3)
SELECTED = {"cmp_topk": 512}
PARAMETERS = (torch.randn(24, 16384), torch.ones(3), torch.zeros(24))

CALLS = {
    "npu::npu_mhc_pre": ((bfloat(2, 4, 4096), *PARAMETERS), {}),
    "npu::npu_mhc_sinkhorn": ((torch.randn(2, 4, 4),), {}),
    "npu::npu_mhc_post": (
        (bfloat(2, 4, 8), torch.randn(2, 4, 4), bfloat(2, 8), torch.randn(2, 4)),
        {},
    ),
    "npu::npu_transpose_batchmatmul": (
        (bfloat(3, 2, 8), bfloat(2, 8, 4)),
        {"perm_x1": [1, 0, 2], "perm_y": [1, 0, 2]},
    ),
    "npu::npu_transpose_quant_batchmatmul": (
        (torch.zeros(3, 2, 64).to(E4M3), torch.zeros(2, 64, 4).to(E4M3), torch.bfloat16),
        {
            "x1_scale": torch.ones(3, 2, 1, 2).to(torch.float8_e8m0fnu),
            "x2_scale": torch.ones(2, 1, 4, 2).to(torch.float8_e8m0fnu),
            "group_sizes": [0, 0, 32],
            "perm_x1": [1, 0, 2],
            "perm_x2": [0, 1, 2],
            "perm_y": [1, 0, 2],
        },
    ),
    "_C_ascend::npu_hc_pre_v2": ((bfloat(2, 4, 4096), *PARAMETERS, 4, 20, 1e-6, 1e-6), {}),
    "_C_ascend::npu_hc_post": (
        (bfloat(1, 2, 8), bfloat(1, 2, 4, 8), torch.randn(1, 2, 4), torch.randn(1, 2, 4, 4)),
        {},
    ),
    "_C_ascend::compressor": (COMPRESSOR, {}),
    "_C_ascend::compressor_metadata": (
        (TABLE, TABLE, integers(0, 8), integers(0), integers(1)[None], 16, 2, 4, 3, 1),
        {},
    ),
    "_C_ascend::npu_vllm_quant_lightning_indexer": (
        (
            torch.zeros(2, 64, 128, dtype=torch.int8),
            torch.zeros(2, 16, 1, 128, dtype=torch.int8),
            torch.zeros(2, 64).half(),
            torch.zeros(2, 64).half(),
            torch.zeros(2, 16, 1).half(),
        ),
        indexer_lengths()
        | {
            "block_table": integers(1)[None],
            "metadata": split(
                "npu_vllm_quant_lightning_indexer_metadata", INDEXER, indexer_lengths()
            ),
        },
    ),
    "_C_ascend::npu_vllm_quant_lightning_indexer_metadata": (
        INDEXER,
        indexer_lengths() | {"batch_size": 1},
    ),
    "_C_ascend::npu_sparse_attn_sharedkv": (
        (bfloat(2, 64, 512),),
        attention(PLAIN)
        | {
            "metadata": split(
                "npu_sparse_attn_sharedkv_metadata", ATTENTION, attention_lengths() | SELECTED
            )
        },
    ),
    "_C_ascend::npu_sparse_attn_sharedkv_metadata": (
        ATTENTION,
        attention_lengths() | {"batch_size": 1},
    ),
    "_C_ascend::npu_kv_quant_sparse_attn_sharedkv": (
        (bfloat(2, 64, 512), 1),
        attention(PACKED)
        | {
            "tile_size": 64,
            "rope_head_dim": 64,
            "metadata": split(
                "npu_kv_quant_sparse_attn_sharedkv_metadata",
                (*ATTENTION, 1),
                attention_lengths() | SELECTED,
            ),
        },
    ),
    "_C_ascend::npu_kv_quant_sparse_attn_sharedkv_metadata": (
        (*ATTENTION, 1),
        attention_lengths() | {"batch_size": 1},
    ),
}
"""Arguments and keywords by operator; a keyword may be a function that makes the value."""

WITHOUT_OUTPUT = {
    "_C_ascend::inplace_partial_rotary_mul",
    "_C_ascend::npu_scatter_nd_update_v2",
    "_C_ascend::kv_compress_epilog",
    "_C_ascend::indexer_compress_epilog_v2",
}
