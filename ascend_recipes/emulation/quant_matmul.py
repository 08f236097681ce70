"""Emulated matrix multiplication of quantized operands."""

# Shapes: [..., M, K] times [..., K, N]

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_recipes.emulation import microscaling
from ascend_recipes.emulation.dtypes import dtype_of
from ascend_recipes.emulation.integer import accumulate, real_scale, to_int8
from ascend_recipes.emulation.limits import check_limit
from ascend_recipes.emulation.refusal import (
    FLOAT32,
    check,
    check_dtype,
    check_shape,
    check_unset,
    relaxes,
)

INNER_LIMIT = 65535
FLOAT32_CODE = 6


def quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: int | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    pertoken_scale_dtype: int | None = None,
    scale_dtype: int | None = None,
    group_sizes: Sequence[int] | None = None,
    y_scale: Tensor | None = None,
) -> Tensor:
    """`npu::npu_quant_matmul` on int8, or on microscaled numbers where the scales are E8M0.

    int8: y = ((x1 · x2 + bias_int32) · scale) · pertoken_scale + bias_float; int32 output is the
    accumulator, int8 output is y + offset, rounded.
    """
    name = "npu_quant_matmul"
    check_unset(name, y_scale=y_scale)
    check(x1.numel() > 0, name, "x1", "is empty", "at least one element")
    check(x2.numel() > 0, name, "x2", "is empty", "at least one element")
    check(scale.numel() > 0, name, "scale", "is empty", "at least one element")
    code = 1 if output_dtype is None else output_dtype
    check_output(name, code)
    output = dtype_of(name, "output_dtype", code)
    if scale_dtype is not None or pertoken_scale_dtype is not None:
        check_unset(name, offset=offset)
        codes = (x1_dtype, x2_dtype, scale_dtype, pertoken_scale_dtype)
        return microscaling.matmul(
            name, x1, x2, scale, pertoken_scale, bias, output, codes, group_sizes
        )
    check_unset(name, x1_dtype=x1_dtype, x2_dtype=x2_dtype, group_sizes=group_sizes)
    _check_operands(name, x1, x2)
    _check_scales(name, x1, x2, scale, pertoken_scale, output)
    _check_offset(name, x2, offset, output)
    _check_bias(name, x2, bias, pertoken_scale, output)
    sums = _accumulate_batches(x1, x2)
    if bias is not None and bias.dtype == torch.int32:
        sums = sums + bias
    if output == torch.int32:
        return sums
    y = sums.float() * real_scale(scale)
    if pertoken_scale is not None:
        y = y * pertoken_scale.unsqueeze(-1)
    if bias is not None and bias.dtype != torch.int32:
        y = y + bias.float()
    if output == torch.int8:
        return to_int8(y if offset is None else y + offset)
    return y.to(output)


def check_output(name: str, code: int) -> None:
    """Refuse outputs that the generation does not give; float32 counts as a 2-byte float."""
    if not (code == FLOAT32_CODE and relaxes(FLOAT32)):
        check_limit(f"npu::{name}", "output", "output_dtype", code)


def quant_matmul_meta(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: int | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    pertoken_scale_dtype: int | None = None,
    scale_dtype: int | None = None,
    group_sizes: Sequence[int] | None = None,
    y_scale: Tensor | None = None,
) -> Tensor:
    """Shape of `npu_quant_matmul`."""
    output = dtype_of(
        "npu_quant_matmul", "output_dtype", 1 if output_dtype is None else output_dtype
    )
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    return x1.new_empty((*batch, x1.shape[-2], x2.shape[-1]), dtype=output)


def _accumulate_batches(x1: Tensor, x2: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    left = x1.expand(*batch, -1, -1).reshape(-1, *x1.shape[-2:])
    right = x2.expand(*batch, -1, -1).reshape(-1, *x2.shape[-2:])
    sums = [accumulate(a, b) for a, b in zip(left, right, strict=True)]
    return torch.stack(sums).view(*batch, x1.shape[-2], x2.shape[-1])


def _check_operands(name: str, x1: Tensor, x2: Tensor) -> None:
    for argument, tensor in (("x1", x1), ("x2", x2)):
        check_dtype(name, argument, tensor, (torch.int8,))
        check(
            2 <= tensor.dim() <= 6,
            name,
            argument,
            f"has {tensor.dim()} dimensions",
            "2 to 6 dimensions",
        )
        last = tensor.shape[-1]
        check(
            last <= INNER_LIMIT,
            name,
            argument,
            f"has a last dimension of {last}",
            f"at most {INNER_LIMIT}",
        )
    check(
        x1.shape[-1] == x2.shape[-2],
        name,
        "x2",
        f"has {x2.shape[-2]} rows",
        f"{x1.shape[-1]}, the columns of x1",
    )


def _check_scales(
    name: str, x1: Tensor, x2: Tensor, scale: Tensor, pertoken: Tensor | None, output: torch.dtype
) -> None:
    """Dtypes that the documentation's table allows together."""
    columns = x2.shape[-1]
    check(
        scale.dim() == 1 and scale.shape[0] in (1, columns),
        name,
        "scale",
        f"has shape {list(scale.shape)}",
        f"[1] or [{columns}], the columns of x2",
    )
    halves = torch.empty(0, dtype=output)
    check_dtype(name, "output_dtype", halves, (torch.int8, torch.int32, *microscaling.LOW))
    allowed: tuple[torch.dtype, ...] = {
        torch.int8: (torch.int64, torch.float32),
        torch.float16: (torch.int64, torch.float32),
    }.get(output, (torch.float32, torch.bfloat16))
    if output == torch.float16 and pertoken is not None:
        allowed = (torch.float32,)
    check(
        scale.dtype in allowed,
        name,
        "scale",
        f"is {scale.dtype} for output {output}",
        ", ".join(map(str, allowed)),
    )
    if pertoken is None:
        return
    check_dtype(name, "pertoken_scale", pertoken, (torch.float32,))
    check_shape(name, "pertoken_scale", pertoken, (x1.shape[-2],), "[rows of x1]")
    check(
        output not in (torch.int8, torch.int32),
        name,
        "pertoken_scale",
        f"is set for output {output}",
        "None for int8 and int32 output",
    )


def _check_offset(name: str, x2: Tensor, offset: Tensor | None, output: torch.dtype) -> None:
    if offset is None:
        return
    check(output == torch.int8, name, "offset", f"is set for output {output}", "int8 output only")
    columns = x2.shape[-1]
    fits = offset.dim() == 1 and offset.shape[0] in (1, columns)
    check(fits, name, "offset", f"has shape {list(offset.shape)}", f"[1] or [{columns}]")


def _check_bias(
    name: str, x2: Tensor, bias: Tensor | None, pertoken: Tensor | None, output: torch.dtype
) -> None:
    if bias is None:
        return
    check_shape(name, "bias", bias, (x2.shape[-1],), "[columns of x2]")
    allowed: tuple[torch.dtype, ...] = (torch.int32,)
    if output == torch.bfloat16:
        allowed = (torch.int32, torch.bfloat16, torch.float32)
    elif output not in (torch.int8, torch.int32) and pertoken is not None:
        allowed = (torch.int32, output, torch.float32)
    check(
        bias.dtype in allowed,
        name,
        "bias",
        f"is {bias.dtype} for output {output}",
        ", ".join(map(str, allowed)),
    )
