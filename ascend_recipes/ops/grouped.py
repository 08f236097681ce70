"""Bindings of grouped matrix multiplication: rows sorted by expert, one weight an expert."""

# Shapes: R rows, K inner size, N columns, I intermediate, E experts of this rank

import torch
from torch import Tensor

CUMULATIVE, COUNTS = 0, 1


def grouped_matmul_npu(
    x_RK: Tensor, weight_EKN: Tensor, group_list_E: Tensor, *, cumulative: bool
) -> Tensor:
    """Floating point, on `npu::npu_grouped_matmul`."""
    return _multiply(x_RK, weight_EKN, group_list_E, cumulative)


def grouped_quant_matmul_npu(
    x_RK: Tensor,
    weight_EKN: Tensor,
    weight_scale_EN: Tensor | None,
    token_scale_R: Tensor | None,
    group_list_E: Tensor,
    *,
    cumulative: bool,
    output_dtype: torch.dtype,
) -> Tensor:
    """int8 by int8 on `npu::npu_grouped_matmul`; int32 output is the accumulator."""
    sums = output_dtype == torch.int32
    return _multiply(
        x_RK,
        weight_EKN,
        group_list_E,
        cumulative,
        scale=None if sums or weight_scale_EN is None else [weight_scale_EN],
        per_token_scale=None if sums or token_scale_R is None else [token_scale_R],
        output_dtype=output_dtype,
    )


def grouped_int4_matmul_npu(
    x_RK: Tensor,
    weight_EKN8: Tensor,
    weight_scale_EN: Tensor,
    scale_bias_EN: Tensor,
    token_scale_R: Tensor,
    group_list_E: Tensor,
    *,
    cumulative: bool,
    output_dtype: torch.dtype,
) -> Tensor:
    """int8 by packed int4 on `npu::npu_grouped_matmul`."""
    return _multiply(
        x_RK,
        weight_EKN8,
        group_list_E,
        cumulative,
        scale=[weight_scale_EN.unsqueeze(1)],
        bias=[scale_bias_EN],
        per_token_scale=[token_scale_R],
        output_dtype=output_dtype,
    )


def grouped_matmul_swiglu_quant_npu(
    x_RK: Tensor,
    weight_EK2I: Tensor,
    weight_scale_E2I: Tensor,
    token_scale_R: Tensor,
    group_list_E: Tensor,
    *,
    cumulative: bool,
    limit: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """int8 product, SwiGLU and int8 on `_C_ascend::grouped_matmul_swiglu_quant_weight_nz`."""
    quantized, scale, _ = torch.ops._C_ascend.grouped_matmul_swiglu_quant_weight_nz(
        x_RK,
        weight_EK2I,
        weight_scale_E2I,
        token_scale_R,
        row_ends(group_list_E, cumulative=cumulative),
        swiglu_limit=limit,
    )
    return quantized, scale


def grouped_matmul_swiglu_quant_list_npu(
    x_RK: Tensor,
    weight_EK2I: Tensor,
    weight_scale_E2I: Tensor,
    token_scale_R: Tensor,
    group_list_E: Tensor,
    *,
    cumulative: bool,
    limit: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The same with one tensor an expert, which may lie anywhere in memory."""
    operator = torch.ops._C_ascend.grouped_matmul_swiglu_quant_weight_nz_tensor_list
    quantized, scale, _ = operator(
        x_RK,
        list(weight_EK2I.unbind(0)),
        list(weight_scale_E2I.unbind(0)),
        token_scale_R,
        row_ends(group_list_E, cumulative=cumulative),
        swiglu_limit=limit,
    )
    return quantized, scale


def grouped_matmul_swiglu_quant_builtin_npu(
    x_RK: Tensor,
    weight_EK2I: Tensor,
    weight_scale_E2I: Tensor,
    token_scale_R: Tensor,
    group_list_E: Tensor,
    *,
    cumulative: bool,
    limit: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The same on `npu::npu_grouped_matmul_swiglu_quant`, which cannot clamp."""
    if limit > 0:
        raise ValueError(
            f"grouped_matmul_swiglu_quant: limit {limit}; npu_grouped_matmul_swiglu_quant has no "
            "clamp, allowed: 0"
        )
    quantized, scale, _ = torch.ops.npu.npu_grouped_matmul_swiglu_quant(
        x_RK,
        weight_EK2I,
        row_ends(group_list_E, cumulative=cumulative),
        weight_scale_E2I,
        token_scale_R,
    )
    return quantized, scale


def grouped_int4_matmul_swiglu_quant_npu(
    x_RK: Tensor,
    weight_EKI4: Tensor,
    weight_scale_E2I: Tensor,
    scale_bias_E2I: Tensor,
    token_scale_R: Tensor,
    group_list_E: Tensor,
    *,
    cumulative: bool,
    limit: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """int8 by packed int4, SwiGLU and int8 on `_C_ascend::grouped_matmul_swiglu_quant_v2`."""
    quantized, scale = torch.ops._C_ascend.grouped_matmul_swiglu_quant_v2(
        x_RK,
        [weight_EKI4],
        [weight_scale_E2I],
        token_scale_R,
        group_list_E,
        weight_assist_matrix=[scale_bias_E2I],
        group_list_type=CUMULATIVE if cumulative else COUNTS,
        swiglu_limit=limit,
    )
    return quantized, scale


def row_ends(group_list_E: Tensor, *, cumulative: bool) -> Tensor:
    """The group list as row ends, the only form that the fused int8 operators take."""
    return group_list_E if cumulative else group_list_E.cumsum(0)


def _multiply(
    x_RK: Tensor,
    weight_EKN: Tensor,
    group_list_E: Tensor,
    cumulative: bool,
    **quantization: list[Tensor] | torch.dtype | None,
) -> Tensor:
    y: Tensor = torch.ops.npu.npu_grouped_matmul(
        [x_RK],
        [weight_EKN],
        group_list=group_list_E,
        split_item=2,
        group_type=0,
        group_list_type=CUMULATIVE if cumulative else COUNTS,
        **quantization,
    )[0]
    return y
