"""Reference of the fused norm and rotary embedding: one after the other, in float32."""

# Shapes: T tokens, N heads, D head dim, F frequencies

import torch
from torch import Tensor


def rms_norm_rotary(
    x_TND: Tensor,
    weight_D: Tensor,
    cosine_TF: Tensor,
    sine_TF: Tensor,
    *,
    epsilon: float,
    add_one: bool,
) -> Tensor:
    """y = rms_norm(x) · (1 +) weight; pairs (y[i], y[F + i]) turn by angle i; the rest stays."""
    wide_TND = x_TND.float()
    factor_D = weight_D.float() + 1.0 if add_one else weight_D.float()
    mean_TN1 = (wide_TND * wide_TND).mean(dim=-1, keepdim=True)
    normed_TND = wide_TND / torch.sqrt(mean_TN1 + epsilon) * factor_D
    half = cosine_TF.shape[1]
    first_TNF, second_TNF = normed_TND[..., :half], normed_TND[..., half : 2 * half]
    turn_T1F = torch.complex(cosine_TF.float(), sine_TF.float())[:, None]
    turned_TNF = torch.complex(first_TNF.contiguous(), second_TNF.contiguous()) * turn_T1F
    parts = (turned_TNF.real, turned_TNF.imag, normed_TND[..., 2 * half :])
    return torch.cat(parts, dim=-1).to(x_TND.dtype)
