"""References of the verification of drafted tokens and of penalties, request by request."""

# Shapes: D drafted tokens of all requests, B requests, V vocabulary, W most drafts of a request

import torch
from torch import Tensor


def verify_drafts_greedy(
    draft_ids_D: Tensor,
    target_logits_DV: Tensor,
    bonus_ids_B: Tensor,
    *,
    draft_lengths_B: Tensor,
    width: int,
) -> Tensor:
    """Emit the most probable token until it differs from the draft; after the last, the bonus.

    Returns:
        int32 [B, W + 1], -1 behind the last token.
    """
    tokens = torch.full((len(draft_lengths_B), width + 1), -1, dtype=torch.int32)
    start = 0
    for request, length in enumerate(draft_lengths_B.tolist()):
        for place in range(length):
            best = int(target_logits_DV[start + place].argmax())
            tokens[request, place] = best
            if best != int(draft_ids_D[start + place]):
                break
        else:
            tokens[request, length] = bonus_ids_B[request]
        start += length
    return tokens


def verify_drafts_random(
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
    """Accept a draft when p / q reaches its uniform number; else draw from what p has left.

    What is left is max(p - q, 0), or without draft probabilities (q = 1) p without the draft; it is
    drawn as the largest quotient by exponential numbers.

    Returns:
        int32 [B, W + 1], -1 behind the last token.
    """
    tokens = torch.full((len(draft_lengths_B), width + 1), -1, dtype=torch.int32)
    start = 0
    for request, length in enumerate(draft_lengths_B.tolist()):
        for place in range(length):
            row = start + place
            draft = int(draft_ids_D[row])
            p = target_probabilities_DV[row]
            q = draft_probabilities_DV[row] if draft_probabilities_DV is not None else None
            q_draft = 1.0 if q is None else float(q[max(draft, 0)])
            accepted = draft >= 0 and q_draft > 0 and p[draft] >= uniform_D[row] * q_draft
            if accepted:
                tokens[request, place] = draft
                continue
            left = p.clone() if q is None else torch.clamp(p - q, min=0)
            if q is None:
                left[max(draft, 0)] = 0
            tokens[request, place] = int((left / exponential_BV[request]).argmax())
            break
        else:
            tokens[request, length] = bonus_ids_B[request]
        start += length
    return tokens


def apply_penalties(
    logits_TV: Tensor,
    *,
    prompt_mask_TV: Tensor,
    output_counts_TV: Tensor,
    presence_T: Tensor,
    frequency_T: Tensor,
    repetition_T: Tensor,
) -> Tensor:
    """Repetition divides positive and multiplies negative logits of tokens in prompt or output.

    Frequency counts and presence notes the output only.
    """
    out_TV = logits_TV.float().clone()
    for row in range(out_TV.shape[0]):
        for token in range(out_TV.shape[1]):
            count = int(output_counts_TV[row, token])
            value = out_TV[row, token]
            if count or bool(prompt_mask_TV[row, token]):
                value = value / repetition_T[row] if value > 0 else value * repetition_T[row]
            value = value - frequency_T[row] * count - presence_T[row] * (count > 0)
            out_TV[row, token] = value
    return out_TV.to(logits_TV.dtype)
