"""Legal calls of the quantization and mixture-of-experts operators."""

import torch

from tests.vendor.cases.moe_cases import GROUP, two_ranks

WITHOUT_OUTPUT = set()


def bfloat(*shape):
    return torch.randn(*shape).bfloat16()


def int8(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def int32(*shape):
    return torch.randint(-8, 8, shape, dtype=torch.int32)


def group():
    two_ranks()
    return GROUP


COUNTS, ENDS = torch.tensor([1, 2]), torch.tensor([1, 3])
EXPERTS = torch.tensor([[0, 3], [1, 2], [3, 0]], dtype=torch.int32)
ROWS = torch.tensor([0, 4, 2, 1, 5, 3], dtype=torch.int32)
ROUTING = {
    "expert_num": 4,
    "expert_tokens_num_type": 1,
    "expert_tokens_num_flag": True,
    "active_expert_range": [1, 3],
    "quant_mode": 1,
}
GROUPED = {"group_list": ENDS, "split_item": 2, "group_type": 0}
DEQUANT = {
    "weight_scale": torch.rand(2, 64),
    "activation_scale": torch.rand(4),
    "group_index": COUNTS,
    "activate_left": True,
    "quant_mode": 1,
}
INT4 = {"weight_assist_matrix": [torch.rand(2, 16)], "group_list_type": 0}
PLACE = {"group_ep": group, "ep_world_size": 2, "ep_rank_id": 0, "moe_expert_num": 4}

CALLS = {
    "npu::npu_dynamic_quant": ((bfloat(3, 2, 8),), {}),
    "npu::npu_quantize": ((bfloat(3, 8), torch.rand(8), torch.zeros(8), 12, -1, False), {}),
    "npu::npu_trans_quant_param": ((torch.rand(8),), {}),
    "npu::npu_convert_weight_to_int4pack": ((int32(3, 16),), {}),
    "npu::npu_format_cast": ((bfloat(3, 16), 29), {}),
    "npu::npu_quant_matmul": (
        (int8(3, 16), int8(16, 8), torch.rand(8)),
        {"pertoken_scale": torch.rand(3), "output_dtype": 15},
    ),
    "npu::npu_dynamic_mx_quant": ((bfloat(3, 34),), {}),
    "_C_ascend::npu_swiglu_group_quant": (
        (bfloat(3, 128), None, None),
        {"dst_type": torch.float8_e4m3fn, "quant_mode": 2},
    ),
    "npu::npu_grouped_matmul": (([bfloat(3, 16)], [bfloat(2, 16, 8)]), GROUPED),
    "npu::npu_grouped_matmul_swiglu_quant": (
        (int8(5, 16), int8(2, 16, 8), ENDS, torch.rand(2, 8), torch.rand(5)),
        {},
    ),
    "_C_ascend::grouped_matmul_swiglu_quant_weight_nz": (
        (int8(5, 16), int8(2, 16, 8), torch.rand(2, 8), torch.rand(5), ENDS),
        {"swiglu_limit": 1.0},
    ),
    "_C_ascend::grouped_matmul_swiglu_quant_weight_nz_tensor_list": (
        (int8(5, 16), [int8(16, 8), int8(16, 8)], [torch.rand(8)] * 2, torch.rand(5), ENDS),
        {},
    ),
    "_C_ascend::grouped_matmul_swiglu_quant_v2": (
        (int8(5, 16), [int32(2, 16, 2)], [torch.ones(2, 16).long()], torch.rand(5), ENDS),
        INT4,
    ),
    "npu::npu_clipped_swiglu": ((bfloat(3, 8),), {}),
    "npu::npu_dequant_swiglu_quant": ((int32(4, 64),), DEQUANT),
    "_C_ascend::npu_dequant_swiglu_quant": ((int32(4, 64),), DEQUANT),
    "_C_ascend::npu_rms_norm_dynamic_quant": ((bfloat(3, 2, 8), bfloat(8)), {}),
    "npu::npu_add_rms_norm_dynamic_quant": ((bfloat(3, 8), bfloat(3, 8), bfloat(8)), {}),
    "npu::npu_moe_gating_top_k": ((bfloat(3, 8), 2), {}),
    "_C_ascend::moe_gating_top_k": ((bfloat(3, 8), 2, 1, 1, 0, 0, 1, False, 1.0, 1e-20), {}),
    "_C_ascend::moe_gating_top_k_hash": ((bfloat(3, 8), 2), {"norm_type": 2}),
    "npu::npu_moe_gating_top_k_softmax": ((bfloat(3, 2, 8), None, 2), {}),
    "npu::npu_moe_init_routing_v2": ((bfloat(3, 8), EXPERTS), ROUTING),
    "_C_ascend::npu_moe_init_routing_custom": ((bfloat(3, 8), EXPERTS), ROUTING),
    "npu::npu_moe_re_routing": ((bfloat(8, 4), torch.tensor([[1, 2], [0, 3]])), {}),
    "npu::npu_moe_token_permute": ((bfloat(3, 8), EXPERTS, 5), {}),
    "npu::npu_moe_token_unpermute": ((bfloat(6, 8), ROWS, bfloat(3, 2)), {}),
    "npu::npu_moe_finalize_routing": (
        (bfloat(6, 8), None, None, None, bfloat(3, 2), ROWS, None, 0, 2),
        {},
    ),
    "npu::npu_moe_distribute_dispatch_v2": (
        (bfloat(3, 1024), EXPERTS),
        PLACE | {"quant_mode": 2, "tp_world_size": 1},
    ),
    "npu::npu_moe_distribute_combine_v2": (
        (bfloat(12, 1024), EXPERTS, torch.zeros(128 * 12, dtype=torch.int32)),
        {
            "ep_send_counts": torch.ones(4, dtype=torch.int32),
            "expert_scales": torch.rand(3, 2),
            **PLACE,
        },
    ),
}
