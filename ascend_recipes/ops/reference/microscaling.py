"""References of microscaling: every number of a format is listed, and the nearest one is chosen."""

# Shapes: T tokens, R rows, H hidden, K inner size, N columns, E experts of this rank

import math

import torch
from torch import Tensor

from ascend_recipes.ops.reference import quantization

BLOCK = 32
LARGEST_EXPONENT = {"float8_e4m3fn": 8, "float4_e2m1": 2}


def mx_quant(x_TH: Tensor, *, kind: str) -> tuple[Tensor, Tensor]:
    """Blocks of 32: scale 2^e, e = floor(log2 max |x|) less the format's largest exponent.

    Returns:
        Nearest numbers of x / 2^e, ties to the even code, and bytes e + 127 in pairs.
    """
    rows = x_TH.float().reshape(-1, x_TH.shape[-1])
    blocks = -(-rows.shape[1] // BLOCK)
    byte = torch.zeros((rows.shape[0], blocks + blocks % 2), dtype=torch.uint8)
    code = torch.zeros(rows.shape, dtype=torch.uint8)
    for row in range(rows.shape[0]):
        for block in range(blocks):
            part = slice(BLOCK * block, BLOCK * (block + 1))
            largest = float(rows[row, part].abs().max())
            exponent = math.frexp(largest)[1] - 1 if largest > 0 else -math.inf
            stored = int(max(exponent - LARGEST_EXPONENT[kind] + 127, 0))
            byte[row, block] = stored
            scaled = rows[row, part].double() / 2.0 ** (stored - 127)
            code[row, part] = _nearest(scaled, kind)
    lead = x_TH.shape[:-1]
    scale = byte.view(*lead, -1, 2)
    if kind == "float4_e2m1":
        return (code[:, ::2] + 16 * code[:, 1::2]).view(*lead, -1), scale
    return code.view(torch.float8_e4m3fn).view(x_TH.shape), scale


def numbers(kind: str) -> Tensor:
    """Magnitudes of a format by code, the sign left out."""
    exponents, mantissas, bias = (2, 1, 1) if kind == "float4_e2m1" else (4, 3, 7)
    codes = range(2 ** (exponents + mantissas))
    steps = 2**mantissas
    values = []
    for code in codes:
        exponent, fraction = divmod(code, steps)
        lead = 0 if exponent == 0 else steps
        values.append((lead + fraction) * 2.0 ** (max(exponent, 1) - bias - mantissas))
    # The last code of float8_e4m3fn is not a number.
    return torch.tensor(values if kind == "float4_e2m1" else values[:-1], dtype=torch.float64)


def mx_dequant(values: Tensor, scale: Tensor, *, kind: str) -> Tensor:
    """Numbers [M, K] in float32 from values and bytes [M, ceil(K/64), 2]."""
    if kind == "float4_e2m1":
        code = torch.stack((values % 16, values // 16), dim=-1).flatten(-2).long()
    else:
        code = values.contiguous().view(torch.uint8).long()
    half = 8 if kind == "float4_e2m1" else 128
    magnitude = numbers(kind)[code % half]
    power = 2.0 ** (scale.flatten(1).double() - 127)
    spread = power.repeat_interleave(BLOCK, 1)[:, : magnitude.shape[1]]
    return (torch.where(code >= half, -magnitude, magnitude) * spread).float()


def mx_matmul(
    x_TK: Tensor,
    weight_KN: Tensor,
    token_scale: Tensor,
    weight_scale: Tensor,
    *,
    kind: str,
    bias_N: Tensor | None = None,
    output_dtype: torch.dtype,
) -> Tensor:
    """Both sides back to numbers, then the product."""
    x = mx_dequant(x_TK, token_scale, kind=kind)
    weight_NK = mx_dequant(weight_KN.t(), weight_scale.transpose(0, 1), kind=kind)
    y_TN = x @ weight_NK.t()
    if bias_N is not None:
        y_TN = y_TN + bias_N
    return y_TN.to(output_dtype)


def grouped_mx_matmul(
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
    """`mx_matmul` of each expert's rows."""
    ends = group_list_E.tolist() if cumulative else group_list_E.cumsum(0).tolist()
    parts = []
    start = 0
    for expert, end in enumerate(ends):
        parts.append(
            mx_matmul(
                x_RK[start:end],
                weight_EKN[expert],
                token_scale[start:end],
                weight_scale[expert],
                kind=kind,
                output_dtype=output_dtype,
            )
        )
        start = end
    return torch.cat(parts)


def grouped_mx_w4a8_matmul(
    x_RK: Tensor,
    weight_EKN: Tensor,
    token_scale: Tensor,
    weight_scale: Tensor,
    group_list_E: Tensor,
    *,
    cumulative: bool,
    output_dtype: torch.dtype,
) -> Tensor:
    """Rows of float8 and weights of FP4 back to numbers, then the product of each expert."""
    ends = group_list_E.tolist() if cumulative else group_list_E.cumsum(0).tolist()
    rows = mx_dequant(x_RK, token_scale, kind="float8_e4m3fn")
    y_RN = torch.zeros((x_RK.shape[0], weight_EKN.shape[2]))
    start = 0
    for expert, end in enumerate(ends):
        scale = weight_scale[expert].transpose(0, 1)
        weight_NK = mx_dequant(weight_EKN[expert].t(), scale, kind="float4_e2m1")
        y_RN[start:end] = rows[start:end] @ weight_NK.t()
        start = end
    return y_RN.to(output_dtype)


def swiglu_mx_quant(x_T2I: Tensor, *, limit: float = 0.0) -> tuple[Tensor, Tensor]:
    """SwiGLU (clamped where limit > 0), rounded to the input type, then MXFP8."""
    activated = quantization.clamped(x_T2I, limit).to(x_T2I.dtype)
    return mx_quant(activated, kind="float8_e4m3fn")


def _nearest(values: Tensor, kind: str) -> Tensor:
    """Code of the nearest number; of two equally near ones the even code."""
    table = numbers(kind)
    distance = (values.abs()[:, None] - table).abs()
    closest = distance.min(dim=1, keepdim=True).values
    candidates = distance == closest
    first = candidates.int().argmax(dim=1)
    both = candidates.sum(dim=1) == 2
    code = torch.where(both & (first % 2 == 1), first + 1, first)
    return (code + torch.where(values.signbit(), len(table) + len(table) % 2, 0)).to(torch.uint8)
