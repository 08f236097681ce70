"""Acceptance of draft tokens, without waiting for the device.

Every kernel works on the ragged list of draft tokens of all requests. Parameter names are those
of vLLM's kernels, which it passes by name.

Legend: R requests, T draft tokens of all requests, S most drafts of a request, V vocabulary.
"""

import torch


def accept_greedily(
    output_token_ids_ptr: torch.Tensor,
    cu_num_draft_tokens_ptr: torch.Tensor,
    draft_token_ids_ptr: torch.Tensor,
    target_argmax_ptr: torch.Tensor,
    bonus_token_ids_ptr: torch.Tensor,
    is_greedy_ptr: torch.Tensor | None,
    max_spec_len: int,
    uniform_probs_ptr: torch.Tensor | None,
    synthetic_conditional_rates_ptr: torch.Tensor | None,
    SYNTHETIC_MODE: bool,
) -> None:
    """Emit the model's best tokens up to and including the first that differs from its draft.

    Args:
        output_token_ids_ptr: int32 `[R, S + 1]`, holds -1; written for greedy requests.
        cu_num_draft_tokens_ptr: int32 `[R]`, running sum, the request's included.
        draft_token_ids_ptr: int32 `[T]`.
        target_argmax_ptr: int64 `[T]`.
        bonus_token_ids_ptr: int64 `[R]` or `[R, 1]`, emitted when no draft is rejected.
        is_greedy_ptr: bool `[R]`; none if all are.
        max_spec_len: S.
        uniform_probs_ptr: `[T]` in synthetic mode.
        synthetic_conditional_rates_ptr: float32 `[S]` in synthetic mode.
        SYNTHETIC_MODE: accept at given rates instead of by agreement.
    """
    drafts = _Drafts(cu_num_draft_tokens_ptr, max_spec_len)
    draft_RS = drafts.table(draft_token_ids_ptr, fill=-1)
    best_RS = drafts.table(target_argmax_ptr, fill=-1).to(draft_RS.dtype)
    if SYNTHETIC_MODE:
        assert uniform_probs_ptr is not None
        assert synthetic_conditional_rates_ptr is not None
        uniform_RS = drafts.table(uniform_probs_ptr, fill=2.0)
        accepted_RS = (uniform_RS < synthetic_conditional_rates_ptr[:max_spec_len]) & (
            draft_RS >= 0
        )
        best_RS = torch.where(accepted_RS, draft_RS, best_RS)
    else:
        accepted_RS = draft_RS == best_RS
    rows_R = drafts.every_row() if is_greedy_ptr is None else is_greedy_ptr
    drafts.emit(output_token_ids_ptr, best_RS, accepted_RS, bonus_token_ids_ptr, rows_R)


def accept_randomly(
    output_token_ids_ptr: torch.Tensor,
    cu_num_draft_tokens_ptr: torch.Tensor,
    draft_token_ids_ptr: torch.Tensor,
    draft_probs_ptr: torch.Tensor | None,
    target_probs_ptr: torch.Tensor,
    bonus_token_ids_ptr: torch.Tensor,
    recovered_token_ids_ptr: torch.Tensor,
    uniform_probs_ptr: torch.Tensor,
    is_greedy_ptr: torch.Tensor,
    max_spec_len: int,
    vocab_size: int,
    synthetic_conditional_rates_ptr: torch.Tensor | None,
    NO_DRAFT_PROBS: bool,
    SYNTHETIC_MODE: bool,
) -> None:
    """Accept a draft with probability target / draft; replace the first rejected one.

    Args:
        output_token_ids_ptr: int32 `[R, S + 1]`, holds -1; written for random requests.
        cu_num_draft_tokens_ptr: int32 `[R]`, running sum, the request's included.
        draft_token_ids_ptr: int32 `[T]`; -1 is always rejected.
        draft_probs_ptr: float32 `[T, V]`; none where drafts are certain.
        target_probs_ptr: float32 `[T, V]`.
        bonus_token_ids_ptr: int64 `[R]` or `[R, 1]`, emitted when no draft is rejected.
        recovered_token_ids_ptr: int32 `[T]`, what replaces a rejected draft.
        uniform_probs_ptr: float64 `[T]`.
        is_greedy_ptr: bool `[R]`.
        max_spec_len: S.
        vocab_size: V.
        synthetic_conditional_rates_ptr: float32 `[S]` in synthetic mode.
        NO_DRAFT_PROBS: drafts are certain.
        SYNTHETIC_MODE: accept at given rates instead.
    """
    drafts = _Drafts(cu_num_draft_tokens_ptr, max_spec_len)
    draft_RS = drafts.table(draft_token_ids_ptr, fill=-1)
    uniform_RS = drafts.table(uniform_probs_ptr, fill=2.0)
    if SYNTHETIC_MODE:
        assert synthetic_conditional_rates_ptr is not None
        accepted_RS = uniform_RS < synthetic_conditional_rates_ptr[:max_spec_len]
    else:
        chosen_T1 = draft_token_ids_ptr.clamp_min(0).to(torch.int64)[:, None]
        target_T = target_probs_ptr.gather(1, chosen_T1).squeeze(1)
        if NO_DRAFT_PROBS or draft_probs_ptr is None:
            draft_T = torch.ones_like(target_T)
        else:
            draft_T = draft_probs_ptr.gather(1, chosen_T1).squeeze(1)
        ratio_T = torch.where(draft_T > 0, target_T / draft_T, -1.0)
        accepted_RS = drafts.table(ratio_T, fill=-1.0) >= uniform_RS
    accepted_RS &= draft_RS >= 0
    recovered_RS = drafts.table(recovered_token_ids_ptr, fill=-1).to(draft_RS.dtype)
    token_RS = torch.where(accepted_RS, draft_RS, recovered_RS)
    drafts.emit(output_token_ids_ptr, token_RS, accepted_RS, bonus_token_ids_ptr, ~is_greedy_ptr)


def expand_to_drafts(
    output_ptr: torch.Tensor,
    input_ptr: torch.Tensor,
    cu_num_tokens_ptr: torch.Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int,
) -> None:
    """Repeat each request's value for its draft tokens.

    Args:
        output_ptr: `[T]`, written.
        input_ptr: `[R]`.
        cu_num_tokens_ptr: int32 `[R]`, running sum, the request's included.
        replace_from: value to replace on the way.
        replace_to: its replacement.
        MAX_NUM_TOKENS: most drafts of a request; irrelevant here.
    """
    request_T = _request_of_drafts(cu_num_tokens_ptr, output_ptr.shape[0])
    value_T = input_ptr[request_T]
    output_ptr.copy_(torch.where(value_T == replace_from, replace_to, value_T))


def sample_recovered(
    output_token_ids_ptr: torch.Tensor,
    cu_num_draft_tokens_ptr: torch.Tensor,
    draft_token_ids_ptr: torch.Tensor,
    draft_probs_ptr: torch.Tensor | None,
    target_probs_ptr: torch.Tensor,
    inv_q_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
    NO_DRAFT_PROBS: bool,
    USE_FP64_GUMBEL: bool,
) -> None:
    """Draw the replacement of each draft from what the target has beyond the draft.

    Args:
        output_token_ids_ptr: int32 `[T]`, written.
        cu_num_draft_tokens_ptr: int32 `[R]`, running sum, the request's included.
        draft_token_ids_ptr: int32 `[T]`.
        draft_probs_ptr: float32 `[T, V]`; none where drafts are certain.
        target_probs_ptr: float32 `[T, V]`.
        inv_q_ptr: `[R, V]`, reciprocals of exponential noise.
        vocab_size: V.
        BLOCK_SIZE: tile of the Triton kernel; irrelevant here.
        NO_DRAFT_PROBS: drafts are certain.
        USE_FP64_GUMBEL: whether the noise is float64; the product follows its type.
    """
    if NO_DRAFT_PROBS or draft_probs_ptr is None:
        chosen_T1 = draft_token_ids_ptr.clamp_min(0).to(torch.int64)[:, None]
        rest_TV = target_probs_ptr.scatter(1, chosen_T1, 0.0)
    else:
        rest_TV = (target_probs_ptr - draft_probs_ptr).clamp_min(0)
    request_T = _request_of_drafts(cu_num_draft_tokens_ptr, output_token_ids_ptr.shape[0])
    output_token_ids_ptr.copy_((rest_TV * inv_q_ptr[request_T]).argmax(dim=-1))


class _Drafts:
    """The ragged list of drafts as a table `[R, S]`."""

    def __init__(self, running_sum_R: torch.Tensor, max_drafts: int) -> None:
        start_R = torch.cat((running_sum_R.new_zeros(1), running_sum_R[:-1]))
        self._count_R = running_sum_R - start_R
        self._column_S = torch.arange(max_drafts, device=running_sum_R.device)
        self._present_RS = self._column_S < self._count_R[:, None]
        self._index_RS = start_R[:, None] + self._column_S

    def every_row(self) -> torch.Tensor:
        return torch.ones_like(self._count_R, dtype=torch.bool)

    def table(self, values_T: torch.Tensor, *, fill: float) -> torch.Tensor:
        index_RS = torch.where(self._present_RS, self._index_RS, 0)
        if values_T.shape[0] == 0:
            return values_T.new_full(index_RS.shape, fill)
        return torch.where(self._present_RS, values_T[index_RS], fill).to(values_T.dtype)

    def emit(
        self,
        output_RS1: torch.Tensor,
        token_RS: torch.Tensor,
        accepted_RS: torch.Tensor,
        bonus_R: torch.Tensor,
        rows_R: torch.Tensor,
    ) -> None:
        """Write tokens up to the first rejection, or all and the bonus, for the chosen rows."""
        passed_RS = (accepted_RS | ~self._present_RS).cumprod(dim=1).bool()
        before_RS = torch.cat((torch.ones_like(passed_RS[:, :1]), passed_RS[:, :-1]), dim=1)
        written_RS = before_RS & self._present_RS & rows_R[:, None]
        columns = token_RS.shape[1]
        current_RS = output_RS1[:, :columns]
        current_RS.copy_(torch.where(written_RS, token_RS.to(output_RS1.dtype), current_RS))
        complete_R1 = (passed_RS.all(dim=1) & rows_R)[:, None]
        end_R1 = self._count_R.to(torch.int64)[:, None]
        held_R1 = output_RS1.gather(1, end_R1)
        bonus_R1 = bonus_R.reshape(-1, 1).to(output_RS1.dtype)
        output_RS1.scatter_(1, end_R1, torch.where(complete_R1, bonus_R1, held_R1))


def _request_of_drafts(running_sum_R: torch.Tensor, drafts: int) -> torch.Tensor:
    draft_T = torch.arange(drafts, dtype=running_sum_R.dtype, device=running_sum_R.device)
    return torch.searchsorted(running_sum_R.contiguous(), draft_T, right=True)
