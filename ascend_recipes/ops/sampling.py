"""Bindings of sampling to NPU operators."""

import torch
from torch import Tensor


def top_k_top_p_npu(logits_TV: Tensor, *, k: Tensor | None, p: Tensor | None) -> Tensor:
    """Set logits outside top-k, then top-p to -inf, on `npu::npu_top_k_top_p`.

    Args:
        logits_TV: Scores.
        k: Tokens to keep per row, from 1 to 1024 and at most V; none for all.
        p: Probability mass to keep per row, from 0 to 1; none for all.
    """
    if k is None and p is None:
        return logits_TV
    filtered: Tensor = torch.ops.npu.npu_top_k_top_p(
        logits_TV,
        None if p is None else p.to(logits_TV.dtype),
        None if k is None else k.to(torch.int32),
    )
    return filtered
