"""References of grouped matrix multiplication."""

# Shapes: R rows, K inner size, N columns, I intermediate, E experts of this rank

import torch
from torch import Tensor

from ascend_recipes.ops.reference import quantization


def experts_of_rows(group_list_E: Tensor, rows: int, *, cumulative: bool) -> list[int | None]:
    """Expert of every row; none for rows behind the last group.

    Raises:
        ValueError: the list names more rows than there are.
    """
    numbers = group_list_E.tolist()
    counts = numbers
    if cumulative:
        counts = [end - start for start, end in zip([0, *numbers], numbers, strict=False)]
    owners: list[int | None] = [expert for expert, count in enumerate(counts) for _ in range(count)]
    if len(owners) > rows or min(counts, default=0) < 0:
        raise ValueError(f"group list {numbers} does not fit {rows} rows")
    return owners + [None] * (rows - len(owners))


def grouped_matmul(
    x_RK: Tensor, weight_EKN: Tensor, group_list_E: Tensor, *, cumulative: bool
) -> Tensor:
    """Row by row: x · weight of its expert."""
    owners = experts_of_rows(group_list_E, x_RK.shape[0], cumulative=cumulative)
    y_RN = torch.zeros((x_RK.shape[0], weight_EKN.shape[2]))
    for row, expert in enumerate(owners):
        if expert is not None:
            y_RN[row] = x_RK[row].float() @ weight_EKN[expert].float()
    return y_RN.to(x_RK.dtype)


def grouped_quant_matmul(
    x_RK: Tensor,
    weight_EKN: Tensor,
    weight_scale_EN: Tensor | None,
    token_scale_R: Tensor | None,
    group_list_E: Tensor,
    *,
    cumulative: bool,
    output_dtype: torch.dtype,
) -> Tensor:
    """Row by row: the integer matrix product of `quant_matmul` with the scales of its expert."""
    owners = experts_of_rows(group_list_E, x_RK.shape[0], cumulative=cumulative)
    y_RN = torch.zeros((x_RK.shape[0], weight_EKN.shape[2]), dtype=output_dtype)
    for row, expert in enumerate(owners):
        if expert is None:
            continue
        scale = torch.ones(1) if weight_scale_EN is None else weight_scale_EN[expert]
        y_RN[row] = quantization.quant_matmul(
            x_RK[row : row + 1],
            weight_EKN[expert],
            scale,
            token_scale_T=None if token_scale_R is None else token_scale_R[row : row + 1],
            output_dtype=output_dtype,
        )[0]
    return y_RN


def _int4_product(
    x_RK: Tensor,
    weight_EKN8: Tensor,
    weight_scale_EN: Tensor,
    scale_bias_EN: Tensor,
    token_scale_R: Tensor,
    group_list_E: Tensor,
    *,
    cumulative: bool,
) -> Tensor:
    """Float32 products; the scale bias makes up for the 8 that the cube takes off x: 8 · Σ w · s.

    A scale bias of exactly that gives the plain product; any other one shifts it.
    """
    owners = experts_of_rows(group_list_E, x_RK.shape[0], cumulative=cumulative)
    y_RN = torch.zeros((x_RK.shape[0], weight_EKN8.shape[2] * 8))
    for row, expert in enumerate(owners):
        if expert is None:
            continue
        weight_KN = quantization.unpack_int4(weight_EKN8[expert]).long()
        scale_N = quantization.unpacked_scale(weight_scale_EN[expert])
        without_eight = (x_RK[row].long() - 8) @ weight_KN
        y_RN[row] = (without_eight * scale_N + scale_bias_EN[expert]) * token_scale_R[row]
    return y_RN


def grouped_int4_matmul(
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
    """int8 rows by int4 weights, with the scale bias of the checkpoint."""
    return _int4_product(
        x_RK,
        weight_EKN8,
        weight_scale_EN,
        scale_bias_EN,
        token_scale_R,
        group_list_E,
        cumulative=cumulative,
    ).to(output_dtype)


def grouped_matmul_swiglu_quant(
    x_RK: Tensor,
    weight_EK2I: Tensor,
    weight_scale_E2I: Tensor,
    token_scale_R: Tensor,
    group_list_E: Tensor,
    *,
    cumulative: bool,
    limit: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The int8 product in float32, SwiGLU (clamped where limit > 0), int8 per row."""
    product_R2I = grouped_quant_matmul(
        x_RK,
        weight_EK2I,
        weight_scale_E2I,
        token_scale_R,
        group_list_E,
        cumulative=cumulative,
        output_dtype=torch.float32,
    )
    return quantization.dynamic_quant(quantization.clamped(product_R2I, limit))


def grouped_int4_matmul_swiglu_quant(
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
    """The int4 product in float32, SwiGLU (clamped where limit > 0), int8 per row."""
    product_R2I = _int4_product(
        x_RK,
        weight_EKI4,
        weight_scale_E2I,
        scale_bias_E2I,
        token_scale_R,
        group_list_E,
        cumulative=cumulative,
    )
    return quantization.dynamic_quant(quantization.clamped(product_R2I, limit))
