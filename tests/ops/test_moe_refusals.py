"""One violating call for each limit of the mixture-of-experts operators, each from a legal call."""

import pytest
import torch

from ascend_recipes.emulation import OperatorRefusedError, install
from tests.vendor.cases.moe_cases import GROUP, two_ranks

pytestmark = pytest.mark.ops

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def z(*shape, dtype=F32):
    return torch.zeros(shape, dtype=dtype)


def ids(*rows, dtype=torch.int32):
    return torch.tensor(rows, dtype=dtype)


def call(name, **arguments):
    two_ranks()
    namespace, operator = name.split("::")
    return getattr(getattr(torch.ops, namespace), operator)(**arguments)


GATE = {"x": z(3, 8), "k": 2}
CUSTOM_GATE = {
    **GATE,
    "k_group": 1,
    "group_count": 1,
    "group_select_mode": 0,
    "renorm": 0,
    "norm_type": 0,
    "out_flag": False,
    "routed_scaling_factor": 1.0,
    "eps": 1e-20,
}
ROUTING = {
    "x": z(3, 8),
    "expert_idx": ids([0, 1], [3, 2], [1, 0]),
    "expert_num": 4,
    "expert_tokens_num_type": 1,
    "expert_tokens_num_flag": True,
    "quant_mode": -1,
}
PLACE = {"group_ep": GROUP, "ep_world_size": 2, "ep_rank_id": 0, "moe_expert_num": 4}
LEGAL = {
    "npu::npu_moe_gating_top_k": GATE,
    "_C_ascend::moe_gating_top_k": CUSTOM_GATE,
    "_C_ascend::moe_gating_top_k_hash": {**GATE, "norm_type": 2},
    "npu::npu_moe_gating_top_k_softmax": GATE,
    "npu::npu_moe_init_routing_v2": ROUTING,
    "_C_ascend::npu_moe_init_routing_custom": ROUTING,
    "npu::npu_moe_re_routing": {
        "tokens": z(8, 4, dtype=BF16),
        "expert_token_num_per_rank": torch.tensor([[1, 2], [0, 3]]),
    },
    "npu::npu_moe_token_permute": {"tokens": z(3, 8), "indices": ids([0, 1], [3, 2], [1, 0])},
    "npu::npu_moe_token_unpermute": {
        "permuted_tokens": z(6, 8),
        "sorted_indices": torch.arange(6).int(),
        "probs": z(3, 2),
    },
    "npu::npu_moe_finalize_routing": {
        "expanded_permuted_rows": z(6, 8),
        "skip1": None,
        "skip2": None,
        "bias": None,
        "scales": z(3, 2),
        "expanded_src_to_dst_row": torch.arange(6).int(),
        "export_for_source_row": None,
        "k": 2,
    },
    "npu::npu_moe_distribute_dispatch_v2": {
        "x": z(3, 1024, dtype=BF16),
        "expert_ids": ids([0, 1], [3, 2], [1, 0]),
        **PLACE,
    },
    "npu::npu_moe_distribute_combine_v2": {
        "expand_x": z(12, 1024, dtype=BF16),
        "expert_ids": ids([0, 1], [3, 2], [1, 0]),
        "assist_info_for_combine": torch.zeros(128 * 12, dtype=torch.int32),
        "ep_send_counts": torch.ones(4, dtype=torch.int32),
        "expert_scales": z(3, 2),
        **PLACE,
    },
}


@pytest.mark.parametrize("name", LEGAL)
def test_the_unchanged_call_is_legal(name):
    call(name, **LEGAL[name])


REFUSED = []
for _name in ("npu::npu_moe_gating_top_k", "_C_ascend::moe_gating_top_k_hash"):
    REFUSED += [
        (_name, {"bias": z(8, dtype=BF16)}, r"bias.*first input"),
        (_name, {"bias": z(4)}, r"bias.*\[experts\]"),
        (_name, {"input_ids": ids(0, 0, 0)}, r"input_ids.*both of them"),
        (_name, {"tid2eid": ids([0, 1])}, r"input_ids.*both of them"),
        (_name, {"input_ids": ids(0, 0), "tid2eid": ids([0, 1])}, r"input_ids.*\[tokens\]"),
        (_name, {"input_ids": ids(0, 0, 0), "tid2eid": ids([0])}, r"tid2eid.*vocabulary, k"),
        (_name, {"input_ids": ids(0, 1, 0), "tid2eid": ids([0, 1])}, r"input_ids.*rows of tid2eid"),
        (_name, {"input_ids": ids(0, 0, 0), "tid2eid": ids([0, 8])}, r"tid2eid.*experts"),
        (_name, {"input_ids": z(3), "tid2eid": ids([0, 1])}, r"input_ids.*float32"),
    ]
for _name in (
    "npu::npu_moe_gating_top_k",
    "_C_ascend::moe_gating_top_k",
    "_C_ascend::moe_gating_top_k_hash",
):
    REFUSED += [
        (_name, {"x": z(3, 8, dtype=torch.int32)}, r"x.*int32"),
        (_name, {"x": z(1, 3, 8)}, r"x.*2 "),
        (_name, {"x": z(1, 2049)}, r"x.*2048"),
        (_name, {"k": 0}, r"k.*1 to 8"),
        (_name, {"k": 9}, r"k.*1 to 8"),
        (_name, {"group_count": 3}, r"group_count.*divisor"),
        (_name, {"group_count": 4}, r"group_count.*more than 2"),
        (_name, {"x": z(3, 300), "group_count": 100}, r"group_count.*aligned"),
        (_name, {"group_count": 2, "k_group": 3}, r"k_group.*1 to 2"),
        (_name, {"group_count": 2, "k_group": 0}, r"k_group.*1 to 2"),
        (_name, {"group_count": 2, "k_group": 1, "k": 5}, r"k.*1 to 4, experts of the groups"),
        (_name, {"group_select_mode": 2}, r"group_select_mode"),
        (_name, {"renorm": 1}, r"renorm.*0"),
        (_name, {"norm_type": 3}, r"norm_type.*0 \(softmax\), 1 \(sigmoid\)"),
        (_name, {"eps": 0.0}, r"eps.*positive"),
        (_name, {"routed_scaling_factor": 0.0}, r"routed_scaling_factor.*positive"),
    ]
REFUSED += [
    ("npu::npu_moe_gating_top_k", {"norm_type": 2}, r"norm_type"),
    ("_C_ascend::moe_gating_top_k", {"bias_opt": z(4)}, r"bias.*\[experts\]"),
]
_name = "npu::npu_moe_gating_top_k_softmax"
REFUSED += [
    (_name, {"x": z(8)}, r"x.*2 or 3"),
    (_name, {"x": z(3, 8, dtype=torch.int8)}, r"x.*int8"),
    (_name, {"k": 0}, r"k.*1 to 8"),
    (_name, {"k": 9}, r"k.*1 to 8"),
    (_name, {"x": z(1, 2000), "k": 1025}, r"k.*1 to 1024"),
    (_name, {"finished": z(3)}, r"finished.*bool"),
    (_name, {"finished": z(2, dtype=torch.bool)}, r"finished.*rows of x"),
]
for _name in ("npu::npu_moe_init_routing_v2", "_C_ascend::npu_moe_init_routing_custom"):
    REFUSED += [
        (_name, {"x": z(3, 8, dtype=torch.int32)}, r"x.*int32"),
        (_name, {"x": z(1, 3, 8)}, r"x.*rows, hidden"),
        (_name, {"expert_idx": ids([0, 1])}, r"expert_idx.*rows, k"),
        (_name, {"expert_idx": ids([0], [1], [2], dtype=torch.int64)}, r"expert_idx.*int32"),
        (_name, {"expert_idx": ids([0], [1], [4])}, r"expert_idx.*experts"),
        (_name, {"expert_num": 0}, r"expert_num.*1 to 10240"),
        (_name, {"active_expert_range": [2, 5]}, r"active_expert_range.*within \[0, 4\)"),
        (_name, {"active_expert_range": [2, 2]}, r"active_expert_range"),
        (_name, {"active_num": -2}, r"active_num.*-1 or more"),
        (_name, {"drop_pad_mode": 1}, r"drop_pad_mode.*dropless"),
        (_name, {"expert_tokens_num_type": 0}, r"expert_tokens_num_type.*counts"),
        (_name, {"expert_tokens_num_flag": False}, r"expert_tokens_num_flag"),
        (_name, {"quant_mode": 0}, r"quant_mode.*-1, 1"),
        (_name, {"x": z(3, 8, dtype=torch.int8), "quant_mode": 1}, r"quant_mode.*int8 x"),
        (_name, {"row_idx_type": 2}, r"row_idx_type"),
        (_name, {"offset": z(3)}, r"offset"),
        (_name, {"scale": z(3, dtype=BF16)}, r"scale.*float32"),
        (_name, {"scale": z(3, 8)}, r"scale.*1 \(\[rows\]\)"),
        (_name, {"scale": z(4, 7), "quant_mode": 1}, r"scale.*active experts, hidden"),
    ]
_name = "npu::npu_moe_re_routing"
REFUSED += [
    (_name, {"tokens": z(8, 4)}, r"tokens.*float32"),
    (_name, {"tokens": z(1, 8, 4, dtype=BF16)}, r"tokens.*2"),
    (_name, {"expert_token_num_per_rank": z(2, 2)}, r"expert_token_num_per_rank.*float32"),
    (_name, {"expert_token_num_per_rank": ids(1, 2)}, r"ranks, experts"),
    (_name, {"expert_token_num_per_rank": ids([1, 8])}, r"sums to 9.*at most 8"),
    (_name, {"expert_token_num_per_rank": ids([1, -1])}, r"expert_token_num_per_rank"),
    (_name, {"expert_token_num_type": 0}, r"expert_token_num_type.*counts"),
    (_name, {"idx_type": 1}, r"idx_type"),
    (_name, {"per_token_scales": z(7)}, r"per_token_scales.*rows"),
    (_name, {"per_token_scales": z(8, dtype=BF16)}, r"per_token_scales.*float32"),
]
_name = "npu::npu_moe_token_permute"
REFUSED += [
    (_name, {"padded_mode": True}, r"padded_mode"),
    (_name, {"tokens": z(3, 8, dtype=torch.int8)}, r"tokens.*int8"),
    (_name, {"tokens": z(3)}, r"tokens.*2"),
    (_name, {"indices": ids([0, 1])}, r"indices.*as tokens"),
    (_name, {"indices": z(3, 2)}, r"indices.*float32"),
    (_name, {"indices": ids([[0]], [[1]], [[2]])}, r"indices.*1 or 2"),
    (_name, {"indices": z(3, 513, dtype=torch.int32)}, r"indices.*512"),
    (_name, {"indices": ids([0, -1], [3, 2], [1, 0])}, r"indices.*experts"),
    (_name, {"indices": ids([0, 16777215], [3, 2], [1, 0])}, r"indices.*16777214"),
]
_name = "npu::npu_moe_token_unpermute"
REFUSED += [
    (_name, {"padded_mode": True}, r"padded_mode"),
    (_name, {"restore_shape": [3, 8]}, r"restore_shape"),
    (_name, {"permuted_tokens": z(6, 8, dtype=torch.int8)}, r"permuted_tokens.*int8"),
    (_name, {"permuted_tokens": z(6)}, r"permuted_tokens.*2"),
    (_name, {"sorted_indices": torch.arange(6)}, r"sorted_indices.*int64.*int32"),
    (_name, {"sorted_indices": ids(0, 1, 2, 3, 4, 6)}, r"sorted_indices.*rows"),
    (_name, {"probs": z(2, 2)}, r"probs.*6"),
    (_name, {"probs": z(6)}, r"probs.*2"),
    (_name, {"probs": z(3, 2, dtype=torch.int32)}, r"probs.*int32"),
    (_name, {"probs": z(1, 513)}, r"probs.*512"),
]
_name = "npu::npu_moe_finalize_routing"
REFUSED += [
    (_name, {"drop_pad_mode": 1}, r"drop_pad_mode.*0"),
    (_name, {"expanded_permuted_rows": z(6, 8, dtype=torch.int8)}, r"expanded_permuted_rows.*int8"),
    (_name, {"expanded_permuted_rows": z(6)}, r"expanded_permuted_rows.*2"),
    (_name, {"expanded_src_to_dst_row": torch.arange(6)}, r"expanded_src_to_dst_row.*int64"),
    (_name, {"expanded_src_to_dst_row": ids(0, 1)}, r"expanded_src_to_dst_row.*rows x k"),
    (_name, {"expanded_src_to_dst_row": ids(0, 1, 2, 3, 4, 6)}, r"expanded_src_to_dst_row.*rows"),
    (_name, {"skip1": z(3, 8)}, r"skip1.*skip2"),
    (_name, {"skip2": z(2, 8)}, r"skip2.*rows, hidden"),
    (_name, {"scales": z(3, 2, dtype=BF16)}, r"scales.*first input"),
    (_name, {"bias": z(4, 8, dtype=BF16)}, r"bias.*first input"),
    (
        _name,
        {"bias": z(4, 8), "export_for_source_row": ids([0, 1], [2, 3], [4, 0])},
        r"export_for_source_row.*experts",
    ),
]
for _name in ("npu::npu_moe_distribute_dispatch_v2", "npu::npu_moe_distribute_combine_v2"):
    REFUSED += [
        (_name, {"ep_world_size": 1}, r"ep_world_size.*2 to 768"),
        (_name, {"ep_world_size": 769}, r"ep_world_size.*2 to 768"),
        (_name, {"ep_rank_id": 2}, r"ep_rank_id.*0 to 1"),
        (_name, {"moe_expert_num": 5}, r"moe_expert_num.*multiple of 2"),
        (_name, {"moe_expert_num": 1026}, r"moe_expert_num.*1 to 1024"),
        (_name, {"expert_shard_type": 1}, r"expert_shard_type"),
        (_name, {"shared_expert_rank_num": 1}, r"shared_expert_rank_num"),
        (_name, {"tp_world_size": 2}, r"tp_world_size"),
        (_name, {"comm_alg": "hierarchy"}, r"comm_alg"),
        (_name, {"group_ep": "nobody"}, r"group_ep.*nobody"),
        (_name, {"x_active_mask": torch.tensor([True, False, True])}, r"x_active_mask.*gaps"),
        (_name, {"x_active_mask": torch.tensor([True])}, r"x_active_mask.*tokens"),
        (_name, {"x_active_mask": z(3)}, r"x_active_mask.*bool"),
        (_name, {"elastic_info": z(3)}, r"elastic_info"),
    ]
_name = "npu::npu_moe_distribute_dispatch_v2"
REFUSED += [
    (_name, {"x": z(3, 1024)}, r"x.*float32"),
    (_name, {"x": z(1, 3, 1024, dtype=BF16)}, r"x.*tokens, hidden"),
    (_name, {"x": z(3, 1000, dtype=BF16)}, r"x.*1024 to 8192"),
    (_name, {"x": z(3, 8224, dtype=BF16)}, r"x.*1024 to 8192"),
    (_name, {"x": z(513, 1024, dtype=BF16), "expert_ids": z(513, 2).int()}, r"x.*at most 512"),
    (_name, {"expert_ids": ids([0], [1])}, r"expert_ids.*tokens, k"),
    (_name, {"expert_ids": ids([0], [1], [2], dtype=torch.int64)}, r"expert_ids.*int64"),
    (_name, {"expert_ids": ids([0], [1], [4])}, r"expert_ids.*experts"),
    (_name, {"expert_ids": z(3, 17).int()}, r"expert_ids.*1 to 16"),
    (_name, {"global_bs": 5}, r"global_bs.*times 2"),
    (_name, {"global_bs": 4}, r"global_bs.*times 2"),
    (_name, {"quant_mode": 1}, r"quant_mode.*0, 2"),
    (_name, {"expert_token_nums_type": 2}, r"expert_token_nums_type.*cumulative.*counts"),
    (_name, {"scales": z(4, 1024)}, r"scales"),
    (_name, {"zero_expert_num": 1}, r"zero_expert_num"),
]
_name = "npu::npu_moe_distribute_combine_v2"
REFUSED += [
    (_name, {"expand_x": z(12, 1024)}, r"expand_x.*float32"),
    (_name, {"expert_scales": z(3, 2, dtype=BF16)}, r"expert_scales.*float32"),
    (_name, {"expert_scales": z(2, 2)}, r"expert_scales.*tokens, k"),
    (_name, {"ep_send_counts": ids(1, 0, 1, 0)}, r"ep_send_counts.*cumulative"),
    (_name, {"ep_send_counts": ids(1, 1)}, r"ep_send_counts.*ranks x experts"),
    (_name, {"ep_send_counts": torch.ones(4).long()}, r"ep_send_counts.*int64"),
    (_name, {"comm_quant_mode": 2}, r"comm_quant_mode"),
    (
        _name,
        {"assist_info_for_combine": torch.full((1536,), 9, dtype=torch.int32)},
        r"assist_info_for_combine.*tokens",
    ),
]


@pytest.mark.parametrize(("name", "change", "message"), REFUSED)
def test_limits(name, change, message):
    with pytest.raises(OperatorRefusedError, match=message) as caught:
        call(name, **{**LEGAL[name], **change})
    assert caught.value.allowed


def test_relaxed_limits_are_the_named_ones():
    name = "npu::npu_moe_distribute_dispatch_v2"
    install({"shape.small"})
    call(name, **{**LEGAL[name], "x": z(3, 24, dtype=BF16)})
    with pytest.raises(OperatorRefusedError, match="float32"):
        call(name, **{**LEGAL[name], "x": z(3, 24)})
    install({"shape.small", "dtype.float32"})
    call(name, **{**LEGAL[name], "x": z(3, 24)})
