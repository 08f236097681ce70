"""Plain rotation of the last part of every head."""

# Shapes: T tokens, N heads, D head dim, R rotated part, F = R / 2 pairs

import torch
from torch import Tensor


def partial_rotary(
    x_TND: Tensor, cosine_TR: Tensor, sine_TR: Tensor, *, inverse: bool = False
) -> Tensor:
    """Multiply neighbours (x, y), as x + iy, by cos + i·sin (inverse: by cos - i·sin), in place."""
    rotated = cosine_TR.shape[-1]
    pairs_TNF2 = x_TND[..., -rotated:].float().unflatten(-1, (-1, 2))
    number_TNF = torch.view_as_complex(pairs_TNF2.contiguous())
    sign = -1.0 if inverse else 1.0
    turn_TF = torch.complex(cosine_TR[:, ::2].float(), sign * sine_TR[:, ::2].float())
    turned_TNR = torch.view_as_real(number_TNF * turn_TF[:, None]).flatten(-2)
    x_TND[..., -rotated:] = turned_TNR.to(x_TND.dtype)
    return x_TND
