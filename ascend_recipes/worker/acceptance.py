"""How many drafts the target accepted, counted where they are judged.

Legend: R requests, K drafts of a step.
"""

import torch

from ascend_recipes.receipts import DraftCounts

_REJECTED = -1
"""What vLLM's sampler puts behind the last token that a request got."""


class AcceptanceCounter:
    """Sums on the device, read only when a receipt is written: counting makes no step wait."""

    def __init__(self, num_drafts: int, device: torch.device) -> None:
        self._proposed = 0
        self._accepted_K = torch.zeros(num_drafts, dtype=torch.int64, device=device)

    def add(self, num_proposed: int, sampled_RK1: torch.Tensor) -> None:
        """Count a step.

        Args:
            num_proposed: drafts that were judged, over all requests.
            sampled_RK1: tokens of each request, its accepted drafts and one more, then -1.
        """
        self._proposed += num_proposed
        accepted_RK = sampled_RK1[:, 1:] != _REJECTED
        self._accepted_K[: accepted_RK.shape[1]] += accepted_RK.sum(0)

    def counts(self) -> DraftCounts:
        """What was counted so far; waits for the device."""
        return DraftCounts(proposed=self._proposed, accepted=tuple(self._accepted_K.tolist()))
