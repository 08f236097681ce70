"""Microscaled numbers (MXFP8, MXFP4): blocks of 32 that share a power of two, an E8M0 byte."""

# Shapes: [..., H] values, M x K times K x N; scales [..., ceil(H/64), 2]

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from ascend_recipes.emulation.dtypes import FLOAT4_E2M1, FLOAT8_E8M0, dtype_of
from ascend_recipes.emulation.refusal import (
    SMALL,
    OperatorRefusedError,
    check,
    check_dtype,
    check_shape,
    check_unset,
    relaxes,
)

LOW = (torch.float16, torch.bfloat16)
BLOCK = 32
E4M3_LARGEST, E4M3_EXPONENT = 448.0, 8
E2M1_LARGEST, E2M1_EXPONENT = 6.0, 2
BIAS = 127
OCP, CUBLAS = 0, 1
FP8_NUMBERS, FP4_NUMBERS = (24, 292), (FLOAT4_E2M1,)


def dynamic_mx_quant(
    input: Tensor,
    *,
    axis: int = -1,
    round_mode: str = "rint",
    dst_type: int = FLOAT4_E2M1,
    block_size: int = BLOCK,
    scale_alg: int | None = 0,
    dst_type_max: float = 0.0,
    max_low_bound: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`npu::npu_dynamic_mx_quant` along the last axis, ties to even.

    Scale algorithm 0 (OCP): the shared exponent is that of the block's largest magnitude less the
    format's largest exponent; what then exceeds the format saturates. Algorithm 1 (cuBLAS, FP8
    only): the largest magnitude over the format's largest number, rounded up to a power of two, so
    that nothing saturates. Scales of blocks that do not exist are byte 0.
    """
    name = "npu_dynamic_mx_quant"
    check(1 <= input.dim() <= 7, name, "input", f"has {input.dim()} dimensions", "1 to 7")
    _check_blocks(name, input, axis, block_size)
    check(round_mode == "rint", name, "round_mode", f"is '{round_mode}'", "rint")
    fp4 = dst_type in FP4_NUMBERS
    allowed = "0 (OCP)" if fp4 else "0 (OCP), 1 (cuBLAS)"
    algorithms = (None, OCP) if fp4 else (None, OCP, CUBLAS)
    check(scale_alg in algorithms, name, "scale_alg", f"is {scale_alg}", allowed)
    check(dst_type_max == 0.0, name, "dst_type_max", f"is {dst_type_max}", "0")
    fits = max_low_bound >= 0 if scale_alg == CUBLAS else max_low_bound == 0
    check(fits, name, "max_low_bound", f"is {max_low_bound}", "0, or more with scale_alg 1")
    known = dst_type in FP8_NUMBERS + FP4_NUMBERS
    check(known, name, "dst_type", f"is {dst_type}", "float8_e4m3fn (292), float4_e2m1fn_x2 (296)")
    width = input.shape[-1]
    if input.dtype == torch.float32:
        check(width >= BLOCK, name, "input", f"has {width} elements in a row", "32 for float32")
    if fp4:
        check(width % 2 == 0, name, "input", f"has rows of odd size {width}", "even for FP4")
    blocks = _blocks(input.float())
    if scale_alg == CUBLAS:
        byte = _raised_scales(blocks, max_low_bound)
    else:
        byte = _ocp_scales(blocks, E2M1_EXPONENT if fp4 else E4M3_EXPONENT)
    scaled = _divide(blocks, byte, width)
    values = _to_fp4(scaled) if fp4 else _to_fp8(scaled)
    return values, _pair(byte.to(torch.uint8))


def _check_blocks(name: str, x: Tensor, axis: int, block_size: int) -> None:
    """Blocks of 32 along the last axis; what else the operator offers is not emulated."""
    rank = x.dim()
    check(-rank <= axis < rank, name, "axis", f"is {axis}", f"-{rank} to {rank - 1}")
    check(axis in (-1, rank - 1), name, "axis", f"is {axis}", "the last one (others not emulated)")
    check(
        0 < block_size <= 1024 and block_size % BLOCK == 0,
        name,
        "block_size",
        f"is {block_size}",
        "multiples of 32 up to 1024",
    )
    wanted = "32 (for float32 input; others not emulated)"
    check(block_size == BLOCK, name, "block_size", f"is {block_size}", wanted)


def dynamic_mx_quant_meta(
    input: Tensor,
    *,
    axis: int = -1,
    round_mode: str = "rint",
    dst_type: int = FLOAT4_E2M1,
    block_size: int = BLOCK,
    scale_alg: int | None = 0,
    dst_type_max: float = 0.0,
    max_low_bound: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Shapes of `npu_dynamic_mx_quant`."""
    *lead, width = input.shape
    scale = input.new_empty((*lead, -(-width // (2 * BLOCK)), 2), dtype=torch.uint8)
    if dst_type in FP4_NUMBERS:
        return input.new_empty((*lead, width // 2), dtype=torch.uint8), scale
    return input.new_empty(input.shape, dtype=dtype_of("", "dst_type", dst_type)), scale


def swiglu_group_quant(
    x: Tensor,
    topk_weight: Tensor | None,
    group_index: Tensor | None,
    dst_type: int = 39,
    quant_mode: int = 1,
    group_size: int = 128,
    round_scale: bool = False,
    ue8m0_scale: bool = False,
    output_origin: bool = False,
    group_list_type: int = 0,
    clamp_value: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """`_C_ascend::npu_swiglu_group_quant` in its microscaled mode: SwiGLU, rounded, then MXFP8.

    The third output, the activation itself, is undefined unless asked for.
    """
    name = "npu_swiglu_group_quant"
    check_unset(name, topk_weight=topk_weight, group_index=group_index)
    check(quant_mode == 2, name, "quant_mode", f"is {quant_mode}", "2 (microscaled)")
    check(dst_type == torch.float8_e4m3fn, name, "dst_type", f"is {dst_type}", "float8_e4m3fn")
    check(not output_origin, name, "output_origin", "is True", "False")
    check(group_list_type == 0, name, "group_list_type", f"is {group_list_type}", "0 (counts)")
    width = x.shape[-1]
    check(
        width % 128 == 0 or (width % 2 == 0 and relaxes(SMALL)),
        name,
        "x",
        f"has a last dimension of {width}",
        "a multiple of 128",
    )
    gate, up = x.float().chunk(2, dim=-1)
    if clamp_value > 0:
        gate, up = gate.clamp(max=clamp_value), up.clamp(-clamp_value, clamp_value)
    y = (gate / (1.0 + torch.exp(-gate)) * up).to(x.dtype)
    blocks = _blocks(y.float())
    byte = _ocp_scales(blocks, E4M3_EXPONENT)
    scaled = _divide(blocks, byte, y.shape[-1])
    bits = _pair(byte.to(torch.uint8)).view(torch.float8_e8m0fnu)
    return _to_fp8(scaled), bits, torch.full_like(y, torch.nan)


def swiglu_group_quant_meta(
    x: Tensor, topk_weight: Tensor | None, group_index: Tensor | None, *_: object, **__: object
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes of `npu_swiglu_group_quant`."""
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    pairs = -(-shape[-1] // (2 * BLOCK))
    return (
        x.new_empty(shape, dtype=torch.float8_e4m3fn),
        x.new_empty((*shape[:-1], pairs, 2), dtype=torch.float8_e8m0fnu),
        x.new_empty(shape),
    )


def _ocp_scales(blocks: Tensor, largest_exponent: int) -> Tensor:
    """Exponent of each block's largest magnitude, less that of the format, as bytes."""
    bits = blocks.abs().amax(dim=-1).contiguous().view(torch.int32)
    return ((bits >> 23) - largest_exponent).clamp(0, 254)


def _raised_scales(blocks: Tensor, least: float) -> Tensor:
    """Smallest powers of two that bring each block's largest magnitude into FP8, as bytes."""
    share = blocks.abs().amax(dim=-1).clamp(min=least) / E4M3_LARGEST
    bits = share.contiguous().view(torch.int32)
    exponent, mantissa = bits >> 23, bits & ((1 << 23) - 1)
    # Byte 0 is the power below float32's normal numbers: half of their step.
    reached = torch.where(exponent == 0, 1 << 22, 0)
    return (exponent + (mantissa > reached)).clamp(0, 254)


def _divide(blocks: Tensor, byte: Tensor, width: int) -> Tensor:
    """Values of the blocks divided by their scales, without what filled the last block."""
    return (blocks / _power(byte).unsqueeze(-1)).flatten(-2)[..., :width]


def matmul(
    name: str,
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    token_scale: Tensor | None,
    bias: Tensor | None,
    output: torch.dtype,
    codes: tuple[int | None, int | None, int | None, int | None],
    group_sizes: Sequence[int] | None,
) -> Tensor:
    """Product of two microscaled matrices, accumulated in float32.

    Args:
        name: Operator, for refusals.
        x: [M, K] float8, or uint8 with two FP4 numbers a byte, the first one low.
        weight: [K, N], FP4 as the transposed view of a packed [N, K/2].
        scale: [ceil(K/64), N, 2] bytes.
        token_scale: [M, ceil(K/64), 2] bytes.
        bias: [N] float32.
        output: bfloat16, float16 or float32.
        codes: Stated dtypes of x, weight, scale and token scale.
        group_sizes: Must be [1, 1, 32].
    """
    x_code, weight_code, scale_code, token_code = codes
    for argument, code in (("scale_dtype", scale_code), ("pertoken_scale_dtype", token_code)):
        check(code == FLOAT8_E8M0, name, argument, f"is {code}", "float8_e8m0fnu (293)")
    check(
        group_sizes is None or list(group_sizes) == [1, 1, BLOCK],
        name,
        "group_sizes",
        f"is {group_sizes}",
        "[1, 1, 32]",
    )
    if token_scale is None:
        raise OperatorRefusedError(name, "pertoken_scale", "is None", "E8M0 bytes for E8M0 weights")
    check_dtype(name, "output_dtype", torch.empty(0, dtype=output), (*LOW, torch.float32))
    left = _open(name, "x1", x, x_code)
    right = _open_weight(name, "x2", weight, weight_code)
    check(
        left.shape[-1] == right.shape[0],
        name,
        "x2",
        f"holds {right.shape[0]} rows",
        f"{left.shape[-1]}, the columns of x1",
    )
    left = left * token_factors(name, token_scale, left.shape)
    right = right * weight_factors(name, scale, right.shape)
    y = left @ right
    if bias is not None:
        check_dtype(name, "bias", bias, (torch.float32,))
        check_shape(name, "bias", bias, (right.shape[1],), "[columns of x2]")
        y = y + bias
    return y.to(output)


def token_factors(name: str, scale: Tensor, shape: Sequence[int]) -> Tensor:
    """Powers of two [M, K] from bytes [M, ceil(K/64), 2]."""
    rows, inner = shape
    check_dtype(name, "pertoken_scale", scale, (torch.uint8,))
    pairs = -(-inner // (2 * BLOCK))
    check_shape(name, "pertoken_scale", scale, (rows, pairs, 2), "[rows, ceil(K/64), 2]")
    return _power(scale.int().flatten(1)).repeat_interleave(BLOCK, dim=1)[:, :inner]


def weight_factors(name: str, scale: Tensor, shape: Sequence[int]) -> Tensor:
    """Powers of two [K, N] from bytes [ceil(K/64), N, 2]."""
    inner, columns = shape
    check_dtype(name, "scale", scale, (torch.uint8,))
    pairs = -(-inner // (2 * BLOCK))
    check_shape(name, "scale", scale, (pairs, columns, 2), "[ceil(K/64), columns, 2]")
    # Laid out as weights mostly are, transposed: a product of unlike strides takes far longer.
    power_NK = _power(scale.int().transpose(0, 1).flatten(1)).repeat_interleave(BLOCK, dim=1)
    return power_NK[:, :inner].t()


def grouped_operands(
    name: str, x: Tensor, weight: Tensor, x_code: int | None, weight_code: int | None
) -> tuple[Tensor, list[Tensor]]:
    """Unscaled values of rows [R, K] and of each expert's weight [K, N]."""
    rows = _open(name, "x", x, x_code)
    return rows, [_open_weight(name, "weight", item, weight_code) for item in weight]


def _open(name: str, argument: str, x: Tensor, code: int | None) -> Tensor:
    if code is None:
        check_dtype(name, argument, x, (torch.float8_e4m3fn,))
        return x.float()
    check(code == FLOAT4_E2M1, name, f"{argument}_dtype", f"is {code}", "float4_e2m1fn_x2 (296)")
    check_dtype(name, argument, x, (torch.uint8,))
    return _from_fp4(x)


def _open_weight(name: str, argument: str, weight: Tensor, code: int | None) -> Tensor:
    if code is None:
        return _open(name, argument, weight, code)
    # Packed pairs must be neighbours along K: only the transposed view of [N, K/2] has them so.
    check(
        weight.t().is_contiguous(),
        name,
        argument,
        f"has strides {list(weight.stride())}",
        "the transposed view of a contiguous [N, K/2]",
    )
    return _open(name, argument, weight.t(), code).t()


def _blocks(values: Tensor) -> Tensor:
    """[..., H] to [..., ceil(H/32), 32], zeros behind the end."""
    missing = -values.shape[-1] % BLOCK
    return torch.nn.functional.pad(values, (0, missing)).unflatten(-1, (-1, BLOCK))


def _pair(byte: Tensor) -> Tensor:
    missing = byte.shape[-1] % 2
    return torch.nn.functional.pad(byte, (0, missing)).unflatten(-1, (-1, 2))


def _power(byte: Tensor) -> Tensor:
    """2 ** (byte - 127) from bits; byte 0 is the only one that float32 holds as a subnormal."""
    bits = torch.where(byte == 0, 1 << 22, byte << 23)
    return bits.to(torch.int32).view(torch.float32)


def _to_fp8(values: Tensor) -> Tensor:
    return values.clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn)


def _to_fp4(values: Tensor) -> Tensor:
    """Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 with ties to the even mantissa, two codes a byte."""
    size = values.abs().clamp(max=E2M1_LARGEST)
    exponent = ((size.view(torch.int32) >> 23) - BIAS).clamp(0, E2M1_EXPONENT)
    step = _power(exponent + BIAS - 1)
    mantissa = (size / step).round()
    # Half steps count from zero: a binade adds two codes, and a carry lands on the next binade.
    code = (mantissa + 2 * exponent).to(torch.uint8) + (values.signbit().to(torch.uint8) << 3)
    return code[..., ::2] | (code[..., 1::2] << 4)


def _from_fp4(packed: Tensor) -> Tensor:
    pairs = _fp4_pairs().index_select(0, packed.int().flatten())
    return pairs.view(torch.float32).view(*packed.shape[:-1], 2 * packed.shape[-1])


@cache
def _fp4_pairs() -> Tensor:
    """Both numbers of every byte as one of 64 bits: whole weights are opened at each call."""
    byte = torch.arange(256)
    code = torch.stack((byte & 0xF, byte >> 4), dim=-1)
    magnitude, mantissa = (code >> 1) & 3, code & 1
    tiny = mantissa.float() * 0.5
    normal = (1 + mantissa.float() * 0.5) * _power(magnitude.int() + BIAS - 1)
    value = torch.where(magnitude == 0, tiny, normal)
    return torch.where(code > 7, -value, value).view(torch.float64).flatten()
