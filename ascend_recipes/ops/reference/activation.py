"""References of the activations."""

import torch.nn.functional as F
from torch import Tensor


def swiglu(x_T2I: Tensor) -> Tensor:
    """silu(first half) · second half."""
    size = x_T2I.shape[-1] // 2
    return (F.silu(x_T2I[..., :size].float()) * x_T2I[..., size:].float()).to(x_T2I.dtype)
