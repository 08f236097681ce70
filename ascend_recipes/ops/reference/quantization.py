"""References of quantization, integer matrix multiplication and format casts."""

# Shapes: T tokens (any leading dimensions), H hidden, K inner size, N columns

import torch
import torch.nn.functional as F
from torch import Tensor

from ascend_recipes.ops.reference import norm


def dynamic_quant(x_TH: Tensor, *, smooth_H: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """q = rint(x / s) with s = max |x| / 127 of the token, after x · smooth; zeros stay zeros."""
    wide_TH = x_TH.float() if smooth_H is None else x_TH.float() * smooth_H.float()
    scale_T = wide_TH.abs().max(dim=-1).values / 127
    divisor_T1 = torch.where(scale_T > 0, scale_T, 1.0)[..., None]
    return torch.round(wide_TH / divisor_T1).to(torch.int8), scale_T


def static_quant(x_TH: Tensor, inverse_scale: Tensor, offset: Tensor) -> Tensor:
    """q = rint(x · inverse_scale + offset), saturated."""
    shifted_TH = x_TH.float() * inverse_scale.float() + offset.float()
    return torch.round(shifted_TH).clamp(-128, 127).to(torch.int8)


def pack_quant_scale(scale_N: Tensor) -> Tensor:
    """The upper 19 of the 32 bits of each scale, in the low half of an int64."""
    bits_N = scale_N.contiguous().view(torch.int32).long() % 2**32
    return bits_N // 2**13 * 2**13


def unpacked_scale(scale_N: Tensor) -> Tensor:
    """Scales as float32, packed or not."""
    if scale_N.dtype != torch.int64:
        return scale_N.float()
    return scale_N.to(torch.int32).view(torch.float32)


def quant_matmul(
    x_TK: Tensor,
    weight_KN: Tensor,
    weight_scale_N: Tensor,
    *,
    token_scale_T: Tensor | None = None,
    bias_N: Tensor | None = None,
    output_dtype: torch.dtype,
) -> Tensor:
    """((x · w + integer bias) · weight scale) · token scale + float bias.

    int32 output is the integer sum.
    """
    sum_TN = x_TK.long() @ weight_KN.long()
    whole = bias_N is not None and bias_N.dtype == torch.int32
    if bias_N is not None and whole:
        sum_TN = sum_TN + bias_N
    if output_dtype == torch.int32:
        return sum_TN.int()
    y_TN = sum_TN.float() * unpacked_scale(weight_scale_N)
    if token_scale_T is not None:
        y_TN = y_TN * token_scale_T[:, None]
    if bias_N is not None and not whole:
        y_TN = y_TN + bias_N.float()
    return y_TN.to(output_dtype)


def pack_int4(weight_KN: Tensor) -> Tensor:
    """Element 8j + i of a row in bits 4i to 4i + 3 of word j."""
    digits = torch.remainder(weight_KN.long(), 16).unflatten(-1, (-1, 8))
    word = sum(digits[..., place] * 16**place for place in range(8))
    return torch.as_tensor(word).to(torch.int32)


def unpack_int4(packed_KN8: Tensor) -> Tensor:
    """int32 words to eight int8 numbers each, from -8 to 7."""
    words = packed_KN8.long() % 2**32
    digits = torch.stack([words // 16**place % 16 for place in range(8)], dim=-1).flatten(-2)
    return torch.where(digits > 7, digits - 16, digits).to(torch.int8)


def block_dequant(weight_OI: Tensor, inverse_scale: Tensor, *, output_dtype: torch.dtype) -> Tensor:
    """w · inverse scale of its block of 128 x 128."""
    rows, columns = weight_OI.shape
    spread = inverse_scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return (weight_OI.float() * spread[:rows, :columns]).to(output_dtype)


def rms_norm_dynamic_quant(
    x_TH: Tensor, weight_H: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor]:
    """RMS norm in float32, then int8 per token."""
    return dynamic_quant(norm.rms_norm(x_TH.float(), weight_H, epsilon=epsilon))


def add_rms_norm_dynamic_quant(
    x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same of the sum, and the sum."""
    total_TH = x_TH + residual_TH
    return *rms_norm_dynamic_quant(total_TH, weight_H, epsilon=epsilon), total_TH


def clamped(x_T2I: Tensor, limit: float) -> Tensor:
    """silu(gate) · up in float32; a positive limit bounds the gate above and up on both sides."""
    size = x_T2I.shape[-1] // 2
    gate, up = x_T2I[..., :size].float(), x_T2I[..., size:].float()
    if limit > 0:
        gate, up = gate.minimum(torch.tensor(limit)), up.clamp(-limit, limit)
    return F.silu(gate) * up


def swiglu_clamped(x_T2I: Tensor, *, limit: float) -> Tensor:
    """silu(min(gate, limit)) · clamp(up, -limit, limit)."""
    return clamped(x_T2I, limit).to(x_T2I.dtype)


def dequant_swiglu_quant(
    x_T2I: Tensor,
    weight_scale_E2I: Tensor,
    token_scale_T: Tensor,
    *,
    group_counts_E: Tensor | None = None,
    limit: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Integer sums times both scales, SwiGLU, int8 per token; rows of no group give zeros."""
    rows = x_T2I.shape[0]
    counts = [rows] if group_counts_E is None else group_counts_E.tolist()
    factor = torch.zeros(x_T2I.shape)
    start = 0
    for expert, count in enumerate(counts):
        factor[start : start + count] = weight_scale_E2I[expert]
        start += count
    return dynamic_quant(clamped(x_T2I.float() * factor * token_scale_T[:, None], limit))


def format_cast(x: Tensor, *, layout: str) -> Tensor:
    """The same values; only the order in memory differs, which PyTorch does not see."""
    del layout
    return x.clone()
