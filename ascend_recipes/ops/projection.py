"""Bindings of a projection of groups, each with a weight of its own, to NPU operators."""

# Shapes: T tokens, G groups, X inputs of a group, L outputs of a group

import torch
from torch import Tensor

TOKENS_AND_GROUPS = (1, 0, 2)
AS_IT_IS = (0, 1, 2)
SHARED_SCALES = (0, 0, 32)
"""Numbers along each axis that share a scale; 0 for what the operator knows itself."""


def grouped_projection_npu(x_TGX: Tensor, weight_GXL: Tensor) -> Tensor:
    """Every group times its weight, on `npu::npu_transpose_batchmatmul`; no copy to turn axes.

    Args:
        x_TGX: Inputs.
        weight_GXL: Weights, of the type of the inputs.
    """
    y_TGL: Tensor = torch.ops.npu.npu_transpose_batchmatmul(
        x_TGX,
        weight_GXL,
        perm_x1=TOKENS_AND_GROUPS,
        perm_x2=AS_IT_IS,
        perm_y=TOKENS_AND_GROUPS,
    )
    return y_TGL


def grouped_mx_projection_npu(
    x_TGX: Tensor,
    weight_GXL: Tensor,
    token_scale: Tensor,
    weight_scale: Tensor,
    *,
    output_dtype: torch.dtype,
) -> Tensor:
    """The same of microscaled float8, on `npu::npu_transpose_quant_batchmatmul`.

    Args:
        x_TGX: Inputs, from `mx_quant`.
        weight_GXL: Weights.
        token_scale: Bytes [T, G, X / 64, 2].
        weight_scale: Bytes [G, X / 64, L, 2].
        output_dtype: Of the result.
    """
    y_TGL: Tensor = torch.ops.npu.npu_transpose_quant_batchmatmul(
        x_TGX,
        weight_GXL,
        output_dtype,
        x1_scale=token_scale.view(torch.float8_e8m0fnu),
        x2_scale=weight_scale.view(torch.float8_e8m0fnu),
        group_sizes=SHARED_SCALES,
        perm_x1=TOKENS_AND_GROUPS,
        perm_x2=AS_IT_IS,
        perm_y=TOKENS_AND_GROUPS,
    )
    return y_TGL
