"""Binding of a projection of groups, each with a weight of its own, to an NPU operator."""

# Shapes: T tokens, G groups, X inputs of a group, L outputs of a group

import torch
from torch import Tensor

TOKENS_AND_GROUPS = (1, 0, 2)
AS_IT_IS = (0, 1, 2)


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
