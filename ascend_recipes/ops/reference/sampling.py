"""References of sampling."""

import torch
from torch import Tensor


def top_k_top_p(logits_TV: Tensor, *, k: Tensor | None, p: Tensor | None) -> Tensor:
    """Row by row: keep the k largest (and ties), then the smallest set whose mass exceeds p."""
    out_TV = logits_TV.clone()
    for row in range(out_TV.shape[0]):
        values = out_TV[row]
        if k is not None:
            threshold = values.float().topk(int(k[row])).values[-1]
            values[values.float() < threshold] = -torch.inf
        if p is not None:
            probability, order = values.float().softmax(dim=-1).sort(stable=True)
            drop = probability.cumsum(dim=-1) <= 1 - float(p[row])
            drop[-1] = False
            values[order[drop]] = -torch.inf
    return out_TV
