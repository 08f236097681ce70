"""Verification of drafted tokens and penalties, in PyTorch without a loop over requests."""

# Shapes: D drafted tokens of all requests, B requests, V vocabulary, W most drafts of a request

import torch
from torch import Tensor

NOTHING = -1
"""What stands behind the last token that a request keeps."""


def verify_drafts_greedy_torch(
    draft_ids_D: Tensor,
    target_logits_DV: Tensor,
    bonus_ids_B: Tensor,
    *,
    draft_lengths_B: Tensor,
    width: int,
) -> Tensor:
    """Drafts that equal the most probable token, and one token more; int32 [B, W + 1]."""
    target_D = target_logits_DV.argmax(dim=-1)
    accepted_BW = _spread(target_D == draft_ids_D, draft_lengths_B, width)
    emitted_BW = _spread(target_D.int(), draft_lengths_B, width)
    return _emit(accepted_BW, emitted_BW, bonus_ids_B, draft_lengths_B)


def verify_drafts_random_torch(
    draft_ids_D: Tensor,
    target_probabilities_DV: Tensor,
    bonus_ids_B: Tensor,
    uniform_D: Tensor,
    exponential_BV: Tensor,
    *,
    draft_lengths_B: Tensor,
    width: int,
    draft_probabilities_DV: Tensor | None = None,
) -> Tensor:
    """Drafts accepted with probability min(1, p / q), then a recovered token; int32 [B, W + 1]."""
    drafted_D1 = draft_ids_D.long().clamp(min=0)[:, None]
    p_D = target_probabilities_DV.gather(1, drafted_D1)[:, 0]
    if draft_probabilities_DV is None:
        q_D = torch.ones_like(p_D)
        left_DV = target_probabilities_DV.scatter(1, drafted_D1, 0.0)
    else:
        q_D = draft_probabilities_DV.gather(1, drafted_D1)[:, 0]
        left_DV = (target_probabilities_DV - draft_probabilities_DV).clamp(min=0.0)
    accepted_D = (draft_ids_D >= 0) & (q_D > 0) & (p_D >= uniform_D * q_D)
    request_D = torch.repeat_interleave(
        torch.arange(draft_lengths_B.shape[0], device=draft_ids_D.device), draft_lengths_B.long()
    )
    recovered_D = (left_DV / exponential_BV[request_D]).argmax(dim=-1)
    emitted_D = torch.where(accepted_D, draft_ids_D.long(), recovered_D).int()
    return _emit(
        _spread(accepted_D, draft_lengths_B, width),
        _spread(emitted_D, draft_lengths_B, width),
        bonus_ids_B,
        draft_lengths_B,
    )


def apply_penalties_torch(
    logits_TV: Tensor,
    *,
    prompt_mask_TV: Tensor,
    output_counts_TV: Tensor,
    presence_T: Tensor,
    frequency_T: Tensor,
    repetition_T: Tensor,
) -> Tensor:
    """Logits after repetition, frequency and presence penalties."""
    seen_TV = prompt_mask_TV | (output_counts_TV > 0)
    factor_TV = torch.where(logits_TV > 0, 1.0 / repetition_T[:, None], repetition_T[:, None])
    wide_TV = torch.where(seen_TV, logits_TV.float() * factor_TV, logits_TV.float())
    wide_TV = wide_TV - frequency_T[:, None] * output_counts_TV
    return (wide_TV - presence_T[:, None] * (output_counts_TV > 0)).to(logits_TV.dtype)


def _spread(values_D: Tensor, lengths_B: Tensor, width: int) -> Tensor:
    """[B, W] from the requests' values one after another; False or 0 behind a request's last."""
    places_BW = torch.arange(width, device=values_D.device) < lengths_B[:, None]
    spread_BW = values_D.new_zeros(places_BW.shape)
    return spread_BW.masked_scatter(places_BW, values_D)


def _emit(
    accepted_BW: Tensor, emitted_BW: Tensor, bonus_ids_B: Tensor, lengths_B: Tensor
) -> Tensor:
    """The accepted drafts, then the token that replaces the first rejected one, or the bonus."""
    kept_B = accepted_BW.int().cumprod(dim=1).sum(dim=1)
    columns = torch.arange(accepted_BW.shape[1] + 1, device=emitted_BW.device)
    tokens = torch.nn.functional.pad(emitted_BW, (0, 1), value=NOTHING)
    all_kept = kept_B == lengths_B
    tokens = torch.where(
        (columns == lengths_B[:, None]) & all_kept[:, None], bonus_ids_B.int()[:, None], tokens
    )
    return torch.where(columns <= kept_B[:, None], tokens, NOTHING).int()
