"""References of expert selection, token by token."""

# Shapes: T tokens, G experts, K chosen experts, V vocabulary

import torch
import torch.nn.functional as F
from torch import Tensor


def moe_gate_softmax(
    logits_TG: Tensor, *, top_k: int, renormalize: bool, scaling: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The k most probable experts, weighted by probability, to a sum of one where asked."""
    weights_TK, ids_TK = logits_TG.float().softmax(dim=-1).topk(top_k, dim=-1)
    if renormalize:
        weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
    return (weights_TK * scaling).to(logits_TG.dtype), ids_TK.int()


def moe_gate_sigmoid(
    logits_TG: Tensor,
    *,
    bias_G: Tensor | None,
    top_k: int,
    groups: int = 1,
    top_groups: int = 1,
    scaling: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Best experts by score + bias within the best groups; weights are scores, summing to scaling.

    A group is worth the sum of its two best experts.
    """
    score_TG = logits_TG.float().sigmoid()
    rank_TG = score_TG if bias_G is None else score_TG + bias_G.to(logits_TG.dtype).float()
    chosen = []
    for rank_G in rank_TG:
        members = rank_G.view(groups, -1)
        worth = members.topk(min(2, members.shape[1]), dim=1).values.sum(dim=1)
        allowed = torch.full_like(members, -torch.inf)
        for group in worth.topk(top_groups).indices:
            allowed[group] = members[group]
        chosen.append(allowed.flatten().topk(top_k).indices)
    return _weighted(logits_TG, score_TG, torch.stack(chosen), scaling)


def moe_gate_sqrt_softplus(
    logits_TG: Tensor, *, bias_G: Tensor | None, top_k: int, scaling: float = 1.0
) -> tuple[Tensor, Tensor]:
    """score = sqrt(log(1 + e^x)); best by score + bias; weights are scores, summing to scaling."""
    score_TG = F.softplus(logits_TG.double()).sqrt().float()
    rank_TG = score_TG if bias_G is None else score_TG + bias_G.to(logits_TG.dtype).float()
    return _weighted(logits_TG, score_TG, rank_TG.topk(top_k, dim=-1).indices, scaling)


def moe_gate_hash(
    logits_TG: Tensor, input_ids_T: Tensor, experts_VK: Tensor, *, scaling: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The experts that the table lists for the token; weights as above."""
    score_TG = F.softplus(logits_TG.double()).sqrt().float()
    ids = torch.stack([experts_VK[int(token)].long() for token in input_ids_T])
    return _weighted(logits_TG, score_TG, ids, scaling)


def _weighted(
    logits_TG: Tensor, score_TG: Tensor, ids_TK: Tensor, scaling: float
) -> tuple[Tensor, Tensor]:
    weights_TK = score_TG.gather(1, ids_TK)
    weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True) * scaling
    return weights_TK.to(logits_TG.dtype), ids_TK.int()
