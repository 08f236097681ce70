"""RMS norms through operations.

Legend: T tokens, H hidden size, N heads, D head dimension.
"""

import torch
from torch import nn
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm, RMSNormGated

from ascend_recipes.ops import operations


class AscendRMSNorm(RMSNorm):
    """`w * x / rms(x)`, optionally after adding a residual."""

    def forward_oot(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Normalise `[..., H]`; with a residual, return the sum as well."""
        assert self.variance_size_override is None, "a partial variance has no operation"
        if residual is None:
            return operations.rms_norm(x, self.weight, epsilon=self.variance_epsilon)
        return operations.add_rms_norm(x, residual, self.weight, epsilon=self.variance_epsilon)


class AscendGemmaRMSNorm(GemmaRMSNorm):
    """`(1 + w) * x / rms(x)`, optionally after adding a residual."""

    def forward_oot(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Normalise `[..., H]`; with a residual, return the sum as well."""
        if residual is None:
            return operations.gemma_rms_norm(x, self.weight, epsilon=self.variance_epsilon)
        return operations.add_gemma_rms_norm(
            x, residual, self.weight, epsilon=self.variance_epsilon
        )


class AscendRMSNormGated(RMSNormGated):
    """`w * x / rms(x) * act(z)`: norm before gate, one group."""

    def forward_oot(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        """Normalise `[T, N, D]` and gate with `[T, N, D]`."""
        assert z is not None, "a norm without a gate is an ordinary one"
        assert self.norm_before_gate, "gating before the norm has no operation"
        assert self.group_size is None, "a norm in groups has no operation"
        activation = "sigmoid" if self.activation == "sigmoid" else "silu"
        return operations.gated_rms_norm(x, z, self.weight, epsilon=self.eps, activation=activation)


class PlainRMSNorm(nn.Module):
    """`w * x / rms(x)` in models of our own, which never add a residual."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(size), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise `[..., H]`."""
        normed: torch.Tensor = operations.rms_norm(x, self.weight, epsilon=self.epsilon)
        return normed
