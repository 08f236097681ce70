"""Plain projection of groups."""

# Shapes: T tokens, G groups, X inputs of a group, L outputs of a group

import torch
from torch import Tensor


def grouped_projection(x_TGX: Tensor, weight_GXL: Tensor) -> Tensor:
    """y[t, g] = x[t, g] · weight[g], summed in float32."""
    y_TGL = torch.einsum("tgx,gxl->tgl", x_TGX.float(), weight_GXL.float())
    return y_TGL.to(x_TGX.dtype)
