"""One violating call for each limit of the quantization operators, each from a legal call."""

import pytest
import torch

from ascend_recipes.emulation import OperatorRefusedError, install

pytestmark = pytest.mark.ops

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def z(*shape, dtype=F32):
    return torch.zeros(shape, dtype=dtype)


def i8(*shape):
    return z(*shape, dtype=torch.int8)


def i32(*shape):
    return z(*shape, dtype=torch.int32)


def i64(*values):
    return torch.tensor(values, dtype=torch.int64)


def u8(*shape):
    return torch.full(shape, 127, dtype=torch.uint8)


def e4m3(*shape):
    return z(*shape).to(torch.float8_e4m3fn)


def call(name, **arguments):
    namespace, operator = name.split("::")
    return getattr(getattr(torch.ops, namespace), operator)(**arguments)


MX = {"pertoken_scale_dtype": 293, "scale_dtype": 293, "group_sizes": [1, 1, 32]}
GMM = {"split_item": 2, "group_type": 0, "group_list_type": 0, "group_list": i64(1, 3)}
FUSED = {
    "x": i8(4, 8),
    "weight": i8(2, 8, 16),
    "weight_scale": z(2, 16),
    "x_scale": z(4),
    "group_list": i64(1, 3),
}
DEQUANT = {
    "x": i32(4, 64),
    "weight_scale": z(2, 64),
    "activation_scale": z(4),
    "group_index": i64(1, 2),
    "quant_mode": 1,
}
LEGAL = {
    "npu::npu_dynamic_quant": {"input": z(3, 8, dtype=BF16)},
    "npu::npu_quantize": {
        "input": z(3, 8),
        "scales": z(8),
        "zero_points": z(8),
        "dtype": 12,
        "axis": -1,
        "div_mode": False,
    },
    "npu::npu_trans_quant_param": {"scale": z(8)},
    "npu::npu_convert_weight_to_int4pack": {"weight": i32(4, 16)},
    "npu::npu_format_cast": {"input": z(4, 16), "acl_format": 29},
    "npu::npu_quant_matmul": {
        "x1": i8(3, 8),
        "x2": i8(8, 4),
        "scale": z(4),
        "pertoken_scale": z(3),
        "output_dtype": 15,
    },
    "npu::npu_dynamic_mx_quant": {"input": z(3, 64), "dst_type": 296},
    "npu::npu_grouped_matmul": {"x": [z(3, 8)], "weight": [z(2, 8, 4)], **GMM},
    "npu::npu_grouped_matmul_swiglu_quant": FUSED,
    "_C_ascend::grouped_matmul_swiglu_quant_weight_nz": FUSED,
    "_C_ascend::grouped_matmul_swiglu_quant_weight_nz_tensor_list": {
        **FUSED,
        "weight": [i8(8, 16)] * 2,
        "weight_scale": [z(16)] * 2,
    },
    "_C_ascend::grouped_matmul_swiglu_quant_v2": {
        **FUSED,
        "weight": [i32(2, 8, 2)],
        "weight_scale": [torch.zeros(2, 16, dtype=torch.int64)],
        "weight_assist_matrix": [z(2, 16)],
    },
    "npu::npu_clipped_swiglu": {"x": z(3, 8)},
    "_C_ascend::npu_swiglu_group_quant": {
        "x": z(3, 128, dtype=BF16),
        "topk_weight": None,
        "group_index": None,
        "dst_type": torch.float8_e4m3fn,
        "quant_mode": 2,
    },
    "npu::npu_dequant_swiglu_quant": DEQUANT,
    "_C_ascend::npu_dequant_swiglu_quant": DEQUANT,
    "_C_ascend::npu_rms_norm_dynamic_quant": {"x": z(3, 8, dtype=BF16), "gamma": z(8, dtype=BF16)},
    "npu::npu_add_rms_norm_dynamic_quant": {
        "x1": z(3, 8, dtype=BF16),
        "x2": z(3, 8, dtype=BF16),
        "gamma": z(8, dtype=BF16),
    },
}
INT8_GMM = {"x": [i8(3, 8)], "weight": [i8(2, 8, 4)], "scale": [z(2, 4)], "output_dtype": 15}
INT4_GMM = {
    "x": [i8(3, 8)],
    "weight": [i32(2, 8, 1)],
    "scale": [torch.zeros(2, 1, 8, dtype=torch.int64)],
    "bias": [z(2, 8)],
    "per_token_scale": [z(3)],
    "output_dtype": 15,
}
MX_MATMUL = {
    "x1": e4m3(3, 64),
    "x2": e4m3(64, 4),
    "scale": u8(1, 4, 2),
    "pertoken_scale": u8(3, 1, 2),
    "output_dtype": 15,
    **MX,
}
MX_GMM = {
    "x": [e4m3(3, 64)],
    "weight": [e4m3(2, 64, 4)],
    "scale": [u8(2, 1, 4, 2)],
    "per_token_scale": [u8(3, 1, 2)],
    "output_dtype": 15,
    "scale_dtype": 293,
    "per_token_scale_dtype": 293,
}


W4A8_GMM = {
    "x": [e4m3(3, 64)],
    "weight": [u8(2, 4, 32).transpose(1, 2)],
    "antiquant_scale": [u8(2, 1, 4, 2)],
    "per_token_scale": [u8(3, 1, 2)],
    "output_dtype": 15,
    "weight_dtype": 296,
    "per_token_scale_dtype": 293,
}


@pytest.mark.parametrize("name", LEGAL)
def test_the_unchanged_call_is_legal(name):
    call(name, **LEGAL[name])


@pytest.mark.parametrize("form", [INT8_GMM, INT4_GMM, MX_GMM, W4A8_GMM])
def test_the_other_forms_of_the_grouped_product_are_legal(form):
    call("npu::npu_grouped_matmul", **{**LEGAL["npu::npu_grouped_matmul"], **form})


def test_the_microscaled_product_is_legal():
    call("npu::npu_quant_matmul", **MX_MATMUL)


REFUSED = [
    ("npu::npu_dynamic_quant", {"input": z(3, 8)}, r"input.*float32.*float16, bfloat16"),
    ("npu::npu_dynamic_quant", {"input": z(8, dtype=BF16)}, r"input.*more than 1"),
    ("npu::npu_dynamic_quant", {"dst_type": 16}, r"dst_type.*int8"),
    ("npu::npu_dynamic_quant", {"quant_mode": "pertensor"}, r"quant_mode.*pertoken"),
    ("npu::npu_dynamic_quant", {"dst_type_max": 1.0}, r"dst_type_max"),
    ("npu::npu_dynamic_quant", {"smooth_scales": z(8)}, r"smooth_scales.*first input"),
    ("npu::npu_dynamic_quant", {"smooth_scales": z(4, dtype=BF16)}, r"smooth_scales.*shape"),
    ("npu::npu_dynamic_quant", {"group_index": i32(1)}, r"group_index"),
    (
        "npu::npu_dynamic_quant",
        {"smooth_scales": z(2, 8, dtype=BF16), "group_index": torch.tensor([2, 1]).int()},
        r"group_index.*rising",
    ),
    (
        "npu::npu_dynamic_quant",
        {"smooth_scales": z(2, 8, dtype=BF16), "group_index": torch.tensor([1, 2]).int()},
        r"group_index.*3, rows",
    ),
    (
        "npu::npu_dynamic_quant",
        {"smooth_scales": z(2, 8, dtype=BF16), "group_index": i64(1, 3)},
        r"group_index.*int32",
    ),
    ("npu::npu_quantize", {"div_mode": True}, r"div_mode.*False"),
    ("npu::npu_quantize", {"dtype": 3}, r"dtype.*qint8"),
    ("npu::npu_quantize", {"axis": -3}, r"axis.*-2 or more"),
    ("npu::npu_quantize", {"axis": 2}, r"axis.*below 2"),
    ("npu::npu_quantize", {"scales": z(4)}, r"scales.*\[1\] or \[8\]"),
    ("npu::npu_quantize", {"zero_points": z(1)}, r"zero_points.*shape and dtype of scales"),
    ("npu::npu_quantize", {"zero_points": z(8, dtype=BF16)}, r"zero_points"),
    ("npu::npu_quantize", {"input": i8(3, 8)}, r"input.*int8"),
    ("npu::npu_trans_quant_param", {"scale": z(8, dtype=BF16)}, r"scale.*float32"),
    ("npu::npu_trans_quant_param", {"scale": z(2, 8)}, r"scale.*\[1, columns\]"),
    ("npu::npu_trans_quant_param", {"scale": z(0)}, r"scale.*empty"),
    ("npu::npu_trans_quant_param", {"round_mode": 2}, r"round_mode"),
    ("npu::npu_trans_quant_param", {"offset": z(8)}, r"offset"),
    ("npu::npu_convert_weight_to_int4pack", {"weight": i8(4, 16)}, r"weight.*int32"),
    ("npu::npu_convert_weight_to_int4pack", {"weight": i32(16, 4).t()}, r"contiguous"),
    ("npu::npu_convert_weight_to_int4pack", {"weight": i32(2, 4, 16)}, r"2 dimensions"),
    ("npu::npu_convert_weight_to_int4pack", {"weight": i32(4, 12)}, r"multiple of 8"),
    ("npu::npu_convert_weight_to_int4pack", {"weight": i32(1, 8) + 8}, r"-8 to 7"),
    ("npu::npu_convert_weight_to_int4pack", {"inner_k_tiles": 1}, r"inner_k_tiles"),
    ("npu::npu_format_cast", {"acl_format": 3}, r"acl_format.*2 \(ND\), 29"),
    ("npu::npu_format_cast", {"input": z(8)}, r"input.*2 or more for NZ"),
    ("npu::npu_format_cast", {"input": z(4, 4, dtype=torch.float64)}, r"input.*float64"),
    ("npu::npu_format_cast", {"customize_dtype": 1}, r"customize_dtype"),
    ("npu::npu_quant_matmul", {"x1": z(3, 8)}, r"x1.*float32"),
    ("npu::npu_quant_matmul", {"x2": i32(8, 4)}, r"x2.*int32"),
    ("npu::npu_quant_matmul", {"x1": i8(8)}, r"x1.*2 to 6"),
    ("npu::npu_quant_matmul", {"x1": i8(3, 7)}, r"x2.*columns of x1"),
    ("npu::npu_quant_matmul", {"x1": i8(0, 8)}, r"x1.*empty"),
    ("npu::npu_quant_matmul", {"x2": i8(8, 0)}, r"x2.*empty"),
    ("npu::npu_quant_matmul", {"scale": z(0)}, r"scale.*empty"),
    ("npu::npu_quant_matmul", {"x1": i8(1, 65536), "x2": i8(65536, 1)}, r"x1.*65535"),
    ("npu::npu_quant_matmul", {"scale": z(3)}, r"scale.*\[1\] or \[4\]"),
    ("npu::npu_quant_matmul", {"scale": z(4, dtype=F16)}, r"scale.*float16"),
    ("npu::npu_quant_matmul", {"scale": z(4, dtype=BF16), "output_dtype": 5}, r"scale.*bfloat16"),
    ("npu::npu_quant_matmul", {"pertoken_scale": z(4)}, r"pertoken_scale.*rows of x1"),
    ("npu::npu_quant_matmul", {"pertoken_scale": z(3, dtype=BF16)}, r"pertoken_scale.*float32"),
    ("npu::npu_quant_matmul", {"output_dtype": None}, r"pertoken_scale.*None for int8"),
    ("npu::npu_quant_matmul", {"output_dtype": 3}, r"pertoken_scale.*int32"),
    ("npu::npu_quant_matmul", {"output_dtype": 6}, r"output_dtype.*float32"),
    ("npu::npu_quant_matmul", {"output_dtype": 7}, r"output_dtype is 7|output_dtype.*is 7"),
    ("npu::npu_quant_matmul", {"bias": z(3)}, r"bias.*columns of x2"),
    ("npu::npu_quant_matmul", {"bias": z(4, dtype=F16)}, r"bias.*int32.*bfloat16.*float32"),
    (
        "npu::npu_quant_matmul",
        {"bias": z(4), "output_dtype": 5, "pertoken_scale": None},
        r"bias.*torch.int32",
    ),
    ("npu::npu_quant_matmul", {"offset": z(4)}, r"offset.*int8 output only"),
    (
        "npu::npu_quant_matmul",
        {"offset": z(3), "output_dtype": 1, "pertoken_scale": None},
        r"offset.*\[1\] or \[4\]",
    ),
    ("npu::npu_quant_matmul", {"y_scale": z(4)}, r"y_scale"),
    ("npu::npu_quant_matmul", {**MX_MATMUL, "scale_dtype": 1}, r"scale_dtype.*293"),
    ("npu::npu_quant_matmul", {**MX_MATMUL, "group_sizes": [1, 1, 64]}, r"group_sizes"),
    ("npu::npu_quant_matmul", {**MX_MATMUL, "pertoken_scale": None}, r"pertoken_scale.*E8M0"),
    ("npu::npu_quant_matmul", {**MX_MATMUL, "pertoken_scale": u8(3, 2, 2)}, r"ceil\(K/64\), 2"),
    ("npu::npu_quant_matmul", {**MX_MATMUL, "scale": u8(1, 3, 2)}, r"scale.*columns, 2"),
    ("npu::npu_quant_matmul", {**MX_MATMUL, "scale": z(1, 4, 2)}, r"scale.*uint8"),
    ("npu::npu_quant_matmul", {**MX_MATMUL, "x2": e4m3(32, 4)}, r"x2.*columns of x1"),
    ("npu::npu_quant_matmul", {**MX_MATMUL, "x1": z(3, 64)}, r"x1.*float8_e4m3fn"),
    ("npu::npu_quant_matmul", {**MX_MATMUL, "x1_dtype": 290}, r"x1_dtype.*296"),
    ("npu::npu_quant_matmul", {**MX_MATMUL, "bias": z(4, dtype=BF16)}, r"bias.*float32"),
    ("npu::npu_quant_matmul", {**MX_MATMUL, "output_dtype": 1}, r"output_dtype.*int8"),
    (
        "npu::npu_quant_matmul",
        {**MX_MATMUL, "x1": u8(3, 32), "x2": u8(32, 4), "x1_dtype": 296, "x2_dtype": 296},
        r"x2.*transposed view",
    ),
    ("npu::npu_dynamic_mx_quant", {"input": i8(3, 64)}, r"input.*int8"),
    ("npu::npu_dynamic_mx_quant", {"input": z(*[2] * 7, 32)}, r"input.*1 to 7"),
    ("npu::npu_dynamic_mx_quant", {"axis": 0}, r"axis"),
    ("npu::npu_dynamic_mx_quant", {"round_mode": "floor"}, r"round_mode.*rint"),
    ("npu::npu_dynamic_mx_quant", {"block_size": 64}, r"block_size"),
    ("npu::npu_dynamic_mx_quant", {"scale_alg": 1}, r"scale_alg"),
    ("npu::npu_dynamic_mx_quant", {"dst_type_max": 6.0}, r"dst_type_max"),
    ("npu::npu_dynamic_mx_quant", {"max_low_bound": 1.0}, r"max_low_bound"),
    ("npu::npu_dynamic_mx_quant", {"dst_type": 297}, r"dst_type.*292.*296"),
    ("npu::npu_dynamic_mx_quant", {"input": z(3, 31, dtype=BF16)}, r"input.*even"),
    ("npu::npu_dynamic_mx_quant", {"input": z(3, 30)}, r"input.*32 for float32"),
    ("npu::npu_grouped_matmul", {"group_type": -1}, r"group_type.*0"),
    ("npu::npu_grouped_matmul", {"split_item": 0}, r"split_item.*2 or 3"),
    ("npu::npu_grouped_matmul", {"act_type": 5}, r"act_type"),
    ("npu::npu_grouped_matmul", {"group_list": None}, r"group_list.*None"),
    ("npu::npu_grouped_matmul", {"group_list": torch.tensor([1, 3]).int()}, r"group_list.*int32"),
    ("npu::npu_grouped_matmul", {"group_list": i64(1, 2, 3)}, r"group_list.*\[groups\]"),
    ("npu::npu_grouped_matmul", {"group_list": i64(3, 1)}, r"group_list.*rising"),
    ("npu::npu_grouped_matmul", {"group_list": i64(1, 4)}, r"group_list.*at most 3"),
    ("npu::npu_grouped_matmul", {"group_list": i64(-1, 3)}, r"group_list.*negative"),
    ("npu::npu_grouped_matmul", {"group_list_type": 2}, r"group_list_type.*0 .*1"),
    ("npu::npu_grouped_matmul", {"group_list_type": 1}, r"group_list.*at most 3"),
    (
        "npu::npu_grouped_matmul",
        {"weight": [z(1025, 8, 4)], "group_list": torch.full((1025,), 3)},
        r"group_list.*1024",
    ),
    ("npu::npu_grouped_matmul", {"x": [z(3, 8), z(3, 8)]}, r"x.*1 tensor"),
    ("npu::npu_grouped_matmul", {"x": [z(1, 3, 8)]}, r"x.*2 for group_type 0"),
    ("npu::npu_grouped_matmul", {"x": [z(3, 7)]}, r"weight.*columns of x"),
    ("npu::npu_grouped_matmul", {"weight": [z(8, 4)]}, r"weight.*3"),
    ("npu::npu_grouped_matmul", {"weight": [z(8, 4), z(8, 5)]}, r"weight.*one shape"),
    ("npu::npu_grouped_matmul", {"weight": [z(2, 8, 4, dtype=BF16)]}, r"weight.*first input"),
    ("npu::npu_grouped_matmul", {"weight": [z(8, 4)] * 129}, r"weight.*128"),
    ("npu::npu_grouped_matmul", {"weight": [z(2, 8, 65536)]}, r"weight.*below 65536"),
    ("npu::npu_grouped_matmul", {"output_dtype": 15}, r"output_dtype.*that of x"),
    ("npu::npu_grouped_matmul", {"bias": [z(2, 4, dtype=BF16)]}, r"bias.*float32"),
    ("npu::npu_grouped_matmul", {"scale": [z(2, 4)]}, r"scale"),
    ("npu::npu_grouped_matmul", {"offset": [z(2, 4)]}, r"offset"),
    ("npu::npu_grouped_matmul", {"antiquant_scale": [z(2, 4)]}, r"weight_dtype.*antiquant_scale"),
    ("npu::npu_grouped_matmul", {"antiquant_offset": [z(2, 4)]}, r"antiquant_offset"),
    ("npu::npu_grouped_matmul", {**W4A8_GMM, "weight_dtype": None}, r"weight_dtype.*296"),
    ("npu::npu_grouped_matmul", {**W4A8_GMM, "per_token_scale_dtype": None}, r"per_token.*293"),
    ("npu::npu_grouped_matmul", {**W4A8_GMM, "per_token_scale": None}, r"scale.*both"),
    ("npu::npu_grouped_matmul", {**W4A8_GMM, "x": [u8(3, 64)]}, r"x.*float8_e4m3fn"),
    ("npu::npu_grouped_matmul", {**W4A8_GMM, "weight": [u8(2, 32, 4)]}, r"transposed view"),
    ("npu::npu_grouped_matmul", {**W4A8_GMM, "antiquant_scale": [u8(2, 1, 3, 2)]}, r"columns, 2"),
    ("_C_ascend::npu_swiglu_group_quant", {"x": z(3, 128)}, r"x.*float32"),
    ("_C_ascend::npu_swiglu_group_quant", {"x": z(3, 64, dtype=BF16)}, r"multiple of 128"),
    ("_C_ascend::npu_swiglu_group_quant", {"quant_mode": 1}, r"quant_mode.*2"),
    ("_C_ascend::npu_swiglu_group_quant", {"dst_type": torch.float8_e5m2}, r"dst_type.*e4m3fn"),
    ("_C_ascend::npu_swiglu_group_quant", {"output_origin": True}, r"output_origin"),
    ("_C_ascend::npu_swiglu_group_quant", {"topk_weight": z(3)}, r"topk_weight"),
    ("_C_ascend::npu_swiglu_group_quant", {"group_index": i64(3)}, r"group_index"),
    ("npu::npu_grouped_matmul", {**INT8_GMM, "scale": None}, r"scale.*one scale a column"),
    ("npu::npu_grouped_matmul", {**INT8_GMM, "scale": [z(2, 3)]}, r"scale.*experts, columns"),
    (
        "npu::npu_grouped_matmul",
        {**INT8_GMM, "scale": [z(2, 4, dtype=BF16)], "output_dtype": 5},
        r"scale.*bfloat16",
    ),
    ("npu::npu_grouped_matmul", {**INT8_GMM, "output_dtype": 3}, r"scale"),
    ("npu::npu_grouped_matmul", {**INT8_GMM, "output_dtype": 6}, r"output_dtype.*float32"),
    ("npu::npu_grouped_matmul", {**INT8_GMM, "output_dtype": None}, r"scale.*int64"),
    ("npu::npu_grouped_matmul", {**INT8_GMM, "weight": [z(2, 8, 4)]}, r"weight.*int8"),
    ("npu::npu_grouped_matmul", {**INT8_GMM, "bias": [z(2, 4)]}, r"bias.*int32"),
    ("npu::npu_grouped_matmul", {**INT8_GMM, "per_token_scale": [z(2)]}, r"per_token_scale.*rows"),
    (
        "npu::npu_grouped_matmul",
        {**INT8_GMM, "per_token_scale": [z(3, dtype=BF16)]},
        r"per_token_scale.*float32",
    ),
    ("npu::npu_grouped_matmul", {**INT4_GMM, "bias": None}, r"scale.*all three"),
    ("npu::npu_grouped_matmul", {**INT4_GMM, "scale": [z(2, 1, 8)]}, r"scale.*int64"),
    ("npu::npu_grouped_matmul", {**INT4_GMM, "bias": [z(2, 7)]}, r"bias.*experts, columns"),
    ("npu::npu_grouped_matmul", {**INT4_GMM, "x": [z(3, 8)]}, r"x.*float32"),
    ("npu::npu_grouped_matmul", {**INT4_GMM, "output_dtype": 1}, r"output_dtype.*int8"),
    ("npu::npu_grouped_matmul", {**MX_GMM, "scale_dtype": None}, r"scale_dtype.*293"),
    ("npu::npu_grouped_matmul", {**MX_GMM, "per_token_scale": None}, r"scale.*both"),
    ("npu::npu_grouped_matmul", {**MX_GMM, "scale": [u8(2, 1, 3, 2)]}, r"scale.*columns, 2"),
    ("npu::npu_grouped_matmul", {**MX_GMM, "x": [z(3, 64)]}, r"x.*float8_e4m3fn"),
    ("npu::npu_grouped_matmul", {**MX_GMM, "bias": [z(2, 4)]}, r"bias"),
    ("npu::npu_grouped_matmul", {**MX_GMM, "x_dtype": 297}, r"x_dtype.*296"),
    ("npu::npu_clipped_swiglu", {"x": i8(3, 8)}, r"x.*int8"),
    ("npu::npu_clipped_swiglu", {"x": z(8, 4).t()}, r"x.*contiguous"),
    ("npu::npu_clipped_swiglu", {"x": z(8)}, r"x.*more than 1"),
    ("npu::npu_clipped_swiglu", {"dim": 2}, r"dim.*-2 to 1"),
    ("npu::npu_clipped_swiglu", {"x": z(3, 7)}, r"x.*odd size 7"),
    ("npu::npu_clipped_swiglu", {"group_index": i64(1)}, r"group_index"),
    ("_C_ascend::npu_rms_norm_dynamic_quant", {"x": z(3, 8)}, r"x.*float32"),
    ("_C_ascend::npu_rms_norm_dynamic_quant", {"x": z(8, dtype=BF16)}, r"x.*2 to 8"),
    ("_C_ascend::npu_rms_norm_dynamic_quant", {"x": z(0, 8, dtype=BF16)}, r"x.*empty"),
    ("_C_ascend::npu_rms_norm_dynamic_quant", {"gamma": z(8)}, r"gamma.*first input"),
    ("_C_ascend::npu_rms_norm_dynamic_quant", {"gamma": z(4, dtype=BF16)}, r"gamma.*last dim"),
    ("_C_ascend::npu_rms_norm_dynamic_quant", {"beta": z(4, dtype=BF16)}, r"beta.*last dim"),
    ("npu::npu_add_rms_norm_dynamic_quant", {"x2": z(2, 8, dtype=BF16)}, r"x2.*as x1"),
    ("npu::npu_add_rms_norm_dynamic_quant", {"x2": z(3, 8, dtype=F16)}, r"x2.*first input"),
    ("npu::npu_add_rms_norm_dynamic_quant", {"gamma": z(2, 8, dtype=BF16)}, r"gamma"),
    ("npu::npu_add_rms_norm_dynamic_quant", {"output_mask": [False, False]}, r"output_mask"),
    ("npu::npu_add_rms_norm_dynamic_quant", {"y_dtype": 16}, r"y_dtype"),
    (
        "npu::npu_add_rms_norm_dynamic_quant",
        {"smooth_scale2": z(8, dtype=BF16)},
        r"smooth_scale2",
    ),
]
for _name in ("npu::npu_dequant_swiglu_quant", "_C_ascend::npu_dequant_swiglu_quant"):
    REFUSED += [
        (_name, {"x": z(4, 64, dtype=BF16)}, r"x.*bfloat16"),
        (_name, {"x": i32(64)}, r"x.*2 "),
        (_name, {"x": i32(4, 63)}, r"x.*odd size 63"),
        (_name, {"weight_scale": None}, r"weight_scale.*both for int32"),
        (_name, {"activation_scale": None}, r"weight_scale.*both for int32"),
        (_name, {"weight_scale": z(1, 64)}, r"weight_scale.*groups, 2H"),
        (_name, {"weight_scale": z(2, 64, dtype=BF16)}, r"weight_scale.*float32"),
        (_name, {"activation_scale": z(3)}, r"activation_scale.*tokens"),
        (_name, {"x": i32(4, 66), "weight_scale": z(2, 66)}, r"x.*multiple of 64"),
        (_name, {"x": i32(4, 21056), "weight_scale": z(2, 21056)}, r"x.*20992"),
        (_name, {"group_index": i64(2, 3)}, r"group_list.*at most 4"),
        (_name, {"group_index": torch.tensor([1, 2]).int()}, r"group_list.*int64"),
        (_name, {"quant_mode": 0}, r"quant_mode.*1"),
        (_name, {"swiglu_mode": 2}, r"swiglu_mode"),
        (_name, {"bias": i32(64)}, r"bias"),
        (_name, {"quant_offset": z(2, 32)}, r"quant_offset"),
    ]
for _name in (
    "npu::npu_grouped_matmul_swiglu_quant",
    "_C_ascend::grouped_matmul_swiglu_quant_weight_nz",
):
    REFUSED += [
        (_name, {"group_list": i64(3, 1)}, r"group_list.*rising"),
        (_name, {"group_list": i64(3, 5)}, r"group_list.*at most 4"),
        (_name, {"group_list": i64(3)}, r"group_list.*\[groups\]"),
        (_name, {"group_list": torch.tensor([1, 3]).int()}, r"group_list.*int32"),
        (_name, {"x": z(4, 8)}, r"x.*float32"),
        (_name, {"x": i8(1, 4, 8)}, r"x.*2"),
        (_name, {"x_scale": z(3)}, r"x_scale.*rows"),
        (_name, {"x_scale": z(4, dtype=BF16)}, r"x_scale.*float32"),
        (_name, {"weight": i8(8, 16)}, r"weight.*experts, K, N"),
        (_name, {"weight": i8(2, 7, 16)}, r"weight.*\[K, N\]"),
        (_name, {"weight": i8(2, 8, 15), "weight_scale": z(2, 15)}, r"weight.*even"),
        (_name, {"weight": i8(2, 8, 10242), "weight_scale": z(2, 10242)}, r"weight.*10240"),
        (_name, {"weight": z(2, 8, 16)}, r"weight.*float32"),
        (_name, {"weight_scale": z(1, 16)}, r"weight_scale.*experts"),
        (_name, {"weight_scale": z(2, 8)}, r"weight_scale.*\[N\]"),
        (_name, {"x": i8(4, 65536), "weight": i8(2, 65536, 2)}, r"x.*below 65536"),
        (_name, {"bias": i32(2, 16)}, r"bias"),
        (_name, {"offset": z(2, 16)}, r"offset"),
    ]
_name = "_C_ascend::grouped_matmul_swiglu_quant_weight_nz_tensor_list"
REFUSED += [
    (_name, {"weight_scale": [z(16)]}, r"weight_scale.*as weight"),
    (_name, {"group_list": i64(3, 1)}, r"group_list.*rising"),
    (_name, {"weight": [i8(8, 16), i8(8, 14)]}, r"weight.*\[K, N\]"),
    (_name, {"x_scale": z(3)}, r"x_scale.*rows"),
]
_name = "_C_ascend::grouped_matmul_swiglu_quant_v2"
REFUSED += [
    (_name, {"weight_assist_matrix": None}, r"weight_assist_matrix.*missing"),
    (_name, {"weight_assist_matrix": [z(2, 8)]}, r"weight_assist_matrix.*experts, N"),
    (_name, {"weight_scale": [z(2, 16)]}, r"weight_scale.*int64"),
    (_name, {"weight": [i8(2, 8, 2)]}, r"weight.*int32"),
    (_name, {"weight": [i32(2, 7, 2)]}, r"weight.*K, N/8"),
    (_name, {"weight": [i32(8, 2)] * 2}, r"weight.*1 tensor"),
    (_name, {"x": z(4, 8)}, r"x.*int8"),
    (_name, {"x_scale": z(3)}, r"x_scale.*rows"),
    (_name, {"dequant_mode": 1}, r"dequant_mode"),
    (_name, {"quant_mode": 1}, r"quant_mode"),
    (_name, {"transpose_weight": True}, r"transpose_weight"),
    (_name, {"group_list_type": 2}, r"group_list_type"),
    (_name, {"group_list_type": 1, "group_list": i64(3, 5)}, r"group_list.*at most 4"),
    (_name, {"smooth_scale": z(2, 8)}, r"smooth_scale"),
]


@pytest.mark.parametrize(("name", "change", "message"), REFUSED)
def test_limits(name, change, message):
    with pytest.raises(OperatorRefusedError, match=message) as caught:
        call(name, **{**LEGAL[name], **change})
    assert caught.value.allowed


def test_relaxed_limits_are_the_named_ones():
    install({"dtype.float32"})
    call("npu::npu_dynamic_quant", input=z(3, 8))
    call("npu::npu_quant_matmul", x1=i8(3, 8), x2=i8(8, 4), scale=z(4), output_dtype=6)
    narrow = {"x": i32(4, 6), "weight_scale": z(2, 6)}
    with pytest.raises(OperatorRefusedError, match="multiple of 64"):
        call("npu::npu_dequant_swiglu_quant", **{**DEQUANT, **narrow})
    install({"shape.small"})
    call("npu::npu_dequant_swiglu_quant", **{**DEQUANT, **narrow})
    with pytest.raises(OperatorRefusedError, match="float32"):
        call("npu::npu_dynamic_quant", input=z(3, 8))
