"""Activations through operations."""

import torch
from vllm.model_executor.layers.activation import SiluAndMul

from ascend_recipes.ops import operations


class AscendSiluAndMul(SiluAndMul):
    """`silu(x[..., :I]) * x[..., I:]`."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        """Activate `[..., 2 * I]` to `[..., I]`."""
        return operations.swiglu(x)
