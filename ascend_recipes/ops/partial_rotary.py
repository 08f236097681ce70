"""Binding of the rotation of the last part of every head to an NPU operator."""

# Shapes: T tokens, N heads, D head dim, R rotated part

import torch
from torch import Tensor


def partial_rotary_custom(
    x_TND: Tensor, cosine_TR: Tensor, sine_TR: Tensor, *, inverse: bool = False
) -> Tensor:
    """Turn the last R dims of every head in place, on `_C_ascend::inplace_partial_rotary_mul`.

    Args:
        x_TND: Contiguous heads, written in place; returned for convenience.
        cosine_TR: Cosines of each token's position, every frequency twice in a row; float32 or
            the type of `x_TND`.
        sine_TR: Sines, alike.
        inverse: Turn back.
    """
    head = x_TND.shape[-1]
    torch.ops._C_ascend.inplace_partial_rotary_mul(
        x_TND.unsqueeze(1),
        cosine_TR[:, None, None],
        (-sine_TR if inverse else sine_TR)[:, None, None],
        rotary_mode="interleave",
        partial_slice=[head - cosine_TR.shape[-1], head],
    )
    return x_TND
