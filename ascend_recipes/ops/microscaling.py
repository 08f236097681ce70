"""Bindings of microscaled quantization and products (MXFP8, MXFP4) to NPU operators."""

# Shapes: T tokens, R rows, H hidden, K inner size, N columns, E experts of this rank

import torch
from torch import Tensor

from ascend_recipes.ops.grouped import COUNTS, CUMULATIVE

E8M0, FLOAT4_E2M1 = 293, 296
"""torch_npu's numbers of formats that PyTorch's dispatcher does not carry."""
BLOCK = 32


def mx_quant_npu(x_TH: Tensor, *, kind: str) -> tuple[Tensor, Tensor]:
    """Values and E8M0 bytes for blocks of 32, on `npu::npu_dynamic_mx_quant`."""
    quantized, scale = torch.ops.npu.npu_dynamic_mx_quant(
        x_TH,
        axis=-1,
        round_mode="rint",
        dst_type=FLOAT4_E2M1 if _is_fp4(kind) else torch.float8_e4m3fn,
        block_size=BLOCK,
        scale_alg=0,
    )
    return quantized, scale


def mx_matmul_npu(
    x_TK: Tensor,
    weight_KN: Tensor,
    token_scale: Tensor,
    weight_scale: Tensor,
    *,
    kind: str,
    bias_N: Tensor | None = None,
    output_dtype: torch.dtype,
) -> Tensor:
    """Product of microscaled matrices on `npu::npu_quant_matmul`."""
    number = FLOAT4_E2M1 if _is_fp4(kind) else None
    y: Tensor = torch.ops.npu.npu_quant_matmul(
        x_TK,
        weight_KN,
        weight_scale,
        pertoken_scale=token_scale,
        bias=bias_N,
        output_dtype=output_dtype,
        x1_dtype=number,
        x2_dtype=number,
        pertoken_scale_dtype=E8M0,
        scale_dtype=E8M0,
        group_sizes=[1, 1, BLOCK],
    )
    return y


def grouped_mx_matmul_npu(
    x_RK: Tensor,
    weight_EKN: Tensor,
    token_scale: Tensor,
    weight_scale: Tensor,
    group_list_E: Tensor,
    *,
    kind: str,
    cumulative: bool,
    output_dtype: torch.dtype,
) -> Tensor:
    """Product of microscaled rows and experts' weights on `npu::npu_grouped_matmul`."""
    number = FLOAT4_E2M1 if _is_fp4(kind) else None
    y: Tensor = torch.ops.npu.npu_grouped_matmul(
        [x_RK],
        [weight_EKN],
        scale=[weight_scale],
        per_token_scale=[token_scale],
        group_list=group_list_E,
        split_item=2,
        group_type=0,
        group_list_type=CUMULATIVE if cumulative else COUNTS,
        output_dtype=output_dtype,
        x_dtype=number,
        weight_dtype=number,
        scale_dtype=E8M0,
        per_token_scale_dtype=E8M0,
    )[0]
    return y


def grouped_mx_w4a8_matmul_npu(
    x_RK: Tensor,
    weight_EKN: Tensor,
    token_scale: Tensor,
    weight_scale: Tensor,
    group_list_E: Tensor,
    *,
    cumulative: bool,
    output_dtype: torch.dtype,
) -> Tensor:
    """MXFP8 rows by MXFP4 weights on `npu::npu_grouped_matmul`."""
    y: Tensor = torch.ops.npu.npu_grouped_matmul(
        [x_RK],
        [weight_EKN],
        antiquant_scale=[weight_scale],
        per_token_scale=[token_scale],
        group_list=group_list_E,
        split_item=2,
        group_type=0,
        group_list_type=CUMULATIVE if cumulative else COUNTS,
        output_dtype=output_dtype,
        weight_dtype=FLOAT4_E2M1,
        per_token_scale_dtype=E8M0,
    )[0]
    return y


def swiglu_mx_quant_npu(x_T2I: Tensor, *, limit: float = 0.0) -> tuple[Tensor, Tensor]:
    """SwiGLU to MXFP8 on `_C_ascend::npu_swiglu_group_quant`."""
    quantized, scale, _ = torch.ops._C_ascend.npu_swiglu_group_quant(
        x_T2I, None, None, dst_type=torch.float8_e4m3fn, quant_mode=2, clamp_value=limit
    )
    # Bytes, as every other microscaled operator takes and returns them.
    return quantized, scale.view(torch.uint8)


def _is_fp4(kind: str) -> bool:
    kinds = {"float8_e4m3fn": False, "float4_e2m1": True}
    if kind not in kinds:
        raise ValueError(f"microscaling: kind '{kind}'; allowed: {', '.join(kinds)}")
    return kinds[kind]
