"""Kernels of quantization, mixture of experts and format casts, by dispatcher name."""

from collections.abc import Callable
from typing import Any

from ascend_recipes.emulation import (
    grouped_matmul,
    grouped_swiglu,
    microscaling,
    moe_exchange,
    moe_gating,
    moe_permutation,
    moe_routing,
    norm_quant,
    quant_matmul,
    quantize,
    swiglu_quant,
)

Kernel = Callable[..., Any]

EXPERT_KERNELS: dict[str, tuple[Kernel, Kernel]] = {
    "npu::npu_dynamic_quant": (quantize.dynamic_quant, quantize.dynamic_quant_meta),
    "npu::npu_quantize": (quantize.quantize, quantize.quantize_meta),
    "npu::npu_trans_quant_param": (quantize.trans_quant_param, quantize.trans_quant_param_meta),
    "npu::npu_convert_weight_to_int4pack": (
        quantize.convert_weight_to_int4pack,
        quantize.convert_weight_to_int4pack_meta,
    ),
    "npu::npu_format_cast": (quantize.format_cast, quantize.format_cast_meta),
    "npu::npu_quant_matmul": (quant_matmul.quant_matmul, quant_matmul.quant_matmul_meta),
    "npu::npu_dynamic_mx_quant": (
        microscaling.dynamic_mx_quant,
        microscaling.dynamic_mx_quant_meta,
    ),
    "_C_ascend::npu_swiglu_group_quant": (
        microscaling.swiglu_group_quant,
        microscaling.swiglu_group_quant_meta,
    ),
    "npu::npu_grouped_matmul": (
        grouped_matmul.grouped_matmul,
        grouped_matmul.grouped_matmul_meta,
    ),
    "npu::npu_grouped_matmul_swiglu_quant": (
        grouped_swiglu.grouped_matmul_swiglu_quant,
        grouped_swiglu.grouped_matmul_swiglu_quant_meta,
    ),
    "_C_ascend::grouped_matmul_swiglu_quant_weight_nz": (
        grouped_swiglu.weight_nz,
        grouped_swiglu.weight_nz_meta,
    ),
    "_C_ascend::grouped_matmul_swiglu_quant_weight_nz_tensor_list": (
        grouped_swiglu.weight_nz_tensor_list,
        grouped_swiglu.weight_nz_tensor_list_meta,
    ),
    "_C_ascend::grouped_matmul_swiglu_quant_v2": (
        grouped_swiglu.int4_weight,
        grouped_swiglu.int4_weight_meta,
    ),
    "npu::npu_clipped_swiglu": (swiglu_quant.clipped_swiglu, swiglu_quant.clipped_swiglu_meta),
    "npu::npu_dequant_swiglu_quant": (
        swiglu_quant.dequant_swiglu_quant,
        swiglu_quant.dequant_swiglu_quant_meta,
    ),
    "_C_ascend::npu_dequant_swiglu_quant": (
        swiglu_quant.custom_dequant_swiglu_quant,
        swiglu_quant.dequant_swiglu_quant_meta,
    ),
    "_C_ascend::npu_rms_norm_dynamic_quant": (
        norm_quant.rms_norm_dynamic_quant,
        norm_quant.rms_norm_dynamic_quant_meta,
    ),
    "npu::npu_add_rms_norm_dynamic_quant": (
        norm_quant.add_rms_norm_dynamic_quant,
        norm_quant.add_rms_norm_dynamic_quant_meta,
    ),
    "npu::npu_moe_gating_top_k": (moe_gating.gating_top_k, moe_gating.gating_meta),
    "_C_ascend::moe_gating_top_k": (moe_gating.custom_gating_top_k, moe_gating.gating_meta),
    "_C_ascend::moe_gating_top_k_hash": (moe_gating.gating_top_k_hash, moe_gating.gating_meta),
    "npu::npu_moe_gating_top_k_softmax": (
        moe_gating.gating_top_k_softmax,
        moe_gating.gating_top_k_softmax_meta,
    ),
    "npu::npu_moe_init_routing_v2": (moe_routing.init_routing, moe_routing.init_routing_meta),
    "_C_ascend::npu_moe_init_routing_custom": (
        moe_routing.custom_init_routing,
        moe_routing.init_routing_meta,
    ),
    "npu::npu_moe_re_routing": (moe_routing.re_routing, moe_routing.re_routing_meta),
    "npu::npu_moe_token_permute": (
        moe_permutation.token_permute,
        moe_permutation.token_permute_meta,
    ),
    "npu::npu_moe_token_unpermute": (
        moe_permutation.token_unpermute,
        moe_permutation.token_unpermute_meta,
    ),
    "npu::npu_moe_finalize_routing": (
        moe_permutation.finalize_routing,
        moe_permutation.finalize_routing_meta,
    ),
    "npu::npu_moe_distribute_dispatch_v2": (
        moe_exchange.distribute_dispatch,
        moe_exchange.distribute_dispatch_meta,
    ),
    "npu::npu_moe_distribute_combine_v2": (
        moe_exchange.distribute_combine,
        moe_exchange.distribute_combine_meta,
    ),
}
"""CPU kernel and Meta kernel of each operator."""
