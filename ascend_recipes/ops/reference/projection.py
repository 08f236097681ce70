"""Plain projections of groups."""

# Shapes: T tokens, G groups, X inputs of a group, L outputs of a group

import torch
from torch import Tensor

from ascend_recipes.ops.reference import microscaling


def grouped_projection(x_TGX: Tensor, weight_GXL: Tensor) -> Tensor:
    """y[t, g] = x[t, g] · weight[g], summed in float32."""
    y_TGL = torch.einsum("tgx,gxl->tgl", x_TGX.float(), weight_GXL.float())
    return y_TGL.to(x_TGX.dtype)


def grouped_mx_projection(
    x_TGX: Tensor,
    weight_GXL: Tensor,
    token_scale: Tensor,
    weight_scale: Tensor,
    *,
    output_dtype: torch.dtype,
) -> Tensor:
    """`mx_matmul` of each group."""
    groups = [
        microscaling.mx_matmul(
            x_TGX[:, group],
            weight_GXL[group],
            token_scale[:, group],
            weight_scale[group],
            kind="float8_e4m3fn",
            output_dtype=output_dtype,
        )
        for group in range(x_TGX.shape[1])
    ]
    return torch.stack(groups, dim=1)
