"""Bindings of quantization, integer matrix multiplication and format casts to NPU operators."""

# Shapes: T tokens (any leading dimensions), H hidden, K inner size, N columns

import torch
from torch import Tensor

FRACTAL_NZ, ND = 29, 2
"""Numbers of the vendor's layouts."""


def dynamic_quant_npu(x_TH: Tensor, *, smooth_H: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """int8 and a scale per token, on `npu::npu_dynamic_quant`."""
    # The operator wants at least two dimensions.
    rows = x_TH.reshape(-1, x_TH.shape[-1])
    quantized, scale = torch.ops.npu.npu_dynamic_quant(rows, smooth_scales=smooth_H)
    return quantized.view(x_TH.shape), scale.view(x_TH.shape[:-1])


def static_quant_npu(x_TH: Tensor, inverse_scale: Tensor, offset: Tensor) -> Tensor:
    """int8 with the scale and offset of the checkpoint, on `npu::npu_quantize` (multiplying)."""
    quantized: Tensor = torch.ops.npu.npu_quantize(
        x_TH, inverse_scale, offset, torch.qint8, -1, False
    )
    return quantized


def pack_quant_scale_npu(scale_N: Tensor) -> Tensor:
    """Scales as int64, the form that float16 output wants, on `npu::npu_trans_quant_param`."""
    packed: Tensor = torch.ops.npu.npu_trans_quant_param(scale_N)
    return packed


def quant_matmul_npu(
    x_TK: Tensor,
    weight_KN: Tensor,
    weight_scale_N: Tensor,
    *,
    token_scale_T: Tensor | None = None,
    bias_N: Tensor | None = None,
    output_dtype: torch.dtype,
) -> Tensor:
    """int8 by int8 on `npu::npu_quant_matmul`."""
    y: Tensor = torch.ops.npu.npu_quant_matmul(
        x_TK,
        weight_KN,
        weight_scale_N,
        pertoken_scale=token_scale_T,
        bias=bias_N,
        output_dtype=output_dtype,
    )
    return y


def pack_int4_npu(weight_KN: Tensor) -> Tensor:
    """Eight int4 numbers in an int32, on `npu::npu_convert_weight_to_int4pack`."""
    packed: Tensor = torch.ops.npu.npu_convert_weight_to_int4pack(weight_KN.contiguous())
    return packed


def unpack_int4_torch(packed_KN8: Tensor) -> Tensor:
    """The way back, by shifts; there is no vendor operator."""
    # int8 halves of a byte: an arithmetic shift extends the sign of the upper one.
    pairs_KN2 = packed_KN8.contiguous().view(torch.int8)
    low, high = (pairs_KN2 << 4) >> 4, pairs_KN2 >> 4
    return torch.stack((low, high), dim=-1).flatten(-2)


def block_dequant_torch(
    weight_OI: Tensor, inverse_scale: Tensor, *, output_dtype: torch.dtype
) -> Tensor:
    """float8 in blocks of 128 x 128 to a dense weight, a band of rows at a time."""
    rows, columns = weight_OI.shape
    dense_OI = weight_OI.new_empty((rows, columns), dtype=output_dtype)
    for band in range(inverse_scale.shape[0]):
        part = slice(128 * band, min(rows, 128 * (band + 1)))
        factor = inverse_scale[band].repeat_interleave(128)[:columns]
        dense_OI[part] = (weight_OI[part].float() * factor).to(output_dtype)
    return dense_OI


def rms_norm_dynamic_quant_npu(
    x_TH: Tensor, weight_H: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor]:
    """RMS norm to int8 on `_C_ascend::npu_rms_norm_dynamic_quant`."""
    quantized, scale = torch.ops._C_ascend.npu_rms_norm_dynamic_quant(
        x_TH, weight_H, epsilon=epsilon
    )
    return quantized, scale


def add_rms_norm_dynamic_quant_npu(
    x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Add and RMS norm to int8 on `npu::npu_add_rms_norm_dynamic_quant`; also returns the sum."""
    quantized, _, total, scale, _ = torch.ops.npu.npu_add_rms_norm_dynamic_quant(
        x_TH, residual_TH, weight_H, epsilon=epsilon, output_mask=[True, False]
    )
    return quantized, scale, total


def format_cast_npu(x: Tensor, *, layout: str) -> Tensor:
    """Order of a weight in memory, on `npu::npu_format_cast`; indices mean what they meant."""
    numbers = {"nz": FRACTAL_NZ, "nd": ND}
    if layout not in numbers:
        raise ValueError(f"format_cast: layout '{layout}'; allowed: {', '.join(numbers)}")
    cast: Tensor = torch.ops.npu.npu_format_cast(x, numbers[layout])
    return cast


def rms_norm_dynamic_quant_parts_npu(
    x_TH: Tensor, weight_H: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor]:
    """The same in two operators, where the fused one does not exist."""
    normed: Tensor = torch.ops.npu.npu_rms_norm(x_TH, weight_H, epsilon)[0]
    return dynamic_quant_npu(normed)


def dequant_swiglu_quant_npu(
    x_T2I: Tensor,
    weight_scale_E2I: Tensor,
    token_scale_T: Tensor,
    *,
    group_counts_E: Tensor | None = None,
    limit: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Sums to int8 activations on `_C_ascend::npu_dequant_swiglu_quant`."""
    return _dequant_swiglu_quant(
        torch.ops._C_ascend.npu_dequant_swiglu_quant,
        x_T2I,
        weight_scale_E2I,
        token_scale_T,
        group_counts_E,
        limit,
    )


def dequant_swiglu_quant_builtin_npu(
    x_T2I: Tensor,
    weight_scale_E2I: Tensor,
    token_scale_T: Tensor,
    *,
    group_counts_E: Tensor | None = None,
    limit: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The same on `npu::npu_dequant_swiglu_quant`."""
    return _dequant_swiglu_quant(
        torch.ops.npu.npu_dequant_swiglu_quant,
        x_T2I,
        weight_scale_E2I,
        token_scale_T,
        group_counts_E,
        limit,
    )


def _dequant_swiglu_quant(
    operator: torch._ops.OpOverloadPacket,
    x_T2I: Tensor,
    weight_scale_E2I: Tensor,
    token_scale_T: Tensor,
    group_counts_E: Tensor | None,
    limit: float,
) -> tuple[Tensor, Tensor]:
    # The defaults of the two operators differ: every number is stated. Alpha 1 and bias 0 turn the
    # variant that clamps into plain SwiGLU.
    quantized, scale = operator(
        x_T2I,
        weight_scale=weight_scale_E2I,
        activation_scale=token_scale_T,
        group_index=group_counts_E,
        activate_left=True,
        quant_mode=1,
        swiglu_mode=1 if limit > 0 else 0,
        clamp_limit=limit,
        glu_alpha=1.0,
        glu_bias=0.0,
    )
    return quantized, scale


def swiglu_clamped_npu(x_T2I: Tensor, *, limit: float) -> Tensor:
    """SwiGLU with gate at most the limit and up within it, on `npu::npu_clipped_swiglu`."""
    y: Tensor = torch.ops.npu.npu_clipped_swiglu(
        x_T2I.contiguous(), dim=-1, alpha=1.0, limit=limit, bias=0.0, interleaved=False
    )
    return y


def swiglu_clamped_parts_npu(x_T2I: Tensor, *, limit: float) -> Tensor:
    """The same with a clamp before `npu::npu_swiglu`, for generations without the fusion."""
    gate, up = x_T2I.chunk(2, dim=-1)
    clamped = torch.cat((gate.clamp(max=limit), up.clamp(-limit, limit)), dim=-1)
    y: Tensor = torch.ops.npu.npu_swiglu(clamped, -1)
    return y
