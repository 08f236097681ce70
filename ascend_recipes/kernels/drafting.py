"""Positions, slots and next tokens between the steps of a drafter.

Parameter names are those of vLLM's kernels, which it passes by name.

Legend: R requests, M blocks of a request, S sampled tokens of a request (drafts and bonus).
"""

import torch


def advance_draft_step(
    positions_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    seq_lens_ptr: torch.Tensor,
    out_clamped_positions_ptr: torch.Tensor,
    out_slot_mapping_ptr: torch.Tensor,
    block_size: int,
    max_model_len: int,
    n_blocks_per_req: int,
    PAD_ID: int,
    batch_size: int,
) -> None:
    """Move every request to its next position, where the drafter reads its own last token.

    A request at the end of its context gets position 0, length 1 and no slot: its drafts are
    thrown away, but the step must stay legal.

    Args:
        positions_ptr: int64 `[R]`; may be the output as well.
        block_table_ptr: int32 `[R, M]`.
        block_table_stride: elements from one request's blocks to the next.
        seq_lens_ptr: int32 `[R]`, updated.
        out_clamped_positions_ptr: int64 `[R]`, written.
        out_slot_mapping_ptr: int64 `[R + padding]`, written.
        block_size: tokens of a block.
        max_model_len: tokens of the longest context.
        n_blocks_per_req: M.
        PAD_ID: slot of a token that is not cached.
        batch_size: R.
    """
    next_R = positions_ptr[:batch_size] + 1
    beyond_R = next_R >= max_model_len
    position_R = torch.where(beyond_R, 0, next_R)
    column_R = (position_R // block_size).clamp_max(n_blocks_per_req - 1)
    block_R = block_table_ptr[:batch_size].gather(1, column_R[:, None]).squeeze(1)
    slot_R = block_R.to(torch.int64) * block_size + position_R % block_size
    out_slot_mapping_ptr[batch_size:].fill_(PAD_ID)
    out_slot_mapping_ptr[:batch_size] = torch.where(beyond_R, PAD_ID, slot_R)
    length_R = torch.where(beyond_R, 1, seq_lens_ptr[:batch_size] + 1)
    seq_lens_ptr[:batch_size] = length_R.clamp_max(max_model_len)
    out_clamped_positions_ptr[:batch_size] = position_R


def locate_last_accepted(
    cu_num_draft_tokens_ptr: torch.Tensor,
    valid_sampled_tokens_count_ptr: torch.Tensor,
    query_start_loc_gpu_ptr: torch.Tensor,
    token_indices_to_sample_ptr: torch.Tensor,
    num_rejected_tokens_gpu_ptr: torch.Tensor,
    num_reqs: int,
) -> None:
    """Find the token of each request after which the drafter goes on.

    Args:
        cu_num_draft_tokens_ptr: int32 `[R]`, running sum of drafts, the request's included.
        valid_sampled_tokens_count_ptr: int32 `[R]`, accepted drafts and one.
        query_start_loc_gpu_ptr: int32 `[R + 1]`.
        token_indices_to_sample_ptr: int32 `[R]`, written.
        num_rejected_tokens_gpu_ptr: int32 `[R]`, written.
        num_reqs: R.
    """
    drafts_R = _differences(cu_num_draft_tokens_ptr[:num_reqs])
    rejected_R = drafts_R + 1 - valid_sampled_tokens_count_ptr[:num_reqs]
    rejected_R = torch.where(drafts_R > 0, rejected_R, 0)
    last_R = query_start_loc_gpu_ptr[1 : num_reqs + 1] - 1
    token_indices_to_sample_ptr[:num_reqs] = last_R - rejected_R
    num_rejected_tokens_gpu_ptr[:num_reqs] = rejected_R


def pick_next_tokens(
    sampled_token_ids_ptr: torch.Tensor,
    discard_request_mask_ptr: torch.Tensor,
    backup_next_token_ids_ptr: torch.Tensor,
    next_token_ids_ptr: torch.Tensor,
    valid_sampled_tokens_count_ptr: torch.Tensor,
    vocab_size: int,
    num_sampled_tokens_per_req: int,
    num_reqs: int,
    stride_sampled_token_ids: int,
    BLOCK_SIZE_TOKENS: int,
) -> None:
    """Take the last valid sampled token of each request, or its backup where there is none.

    Args:
        sampled_token_ids_ptr: int32 `[R, S]`, -1 after the first rejection.
        discard_request_mask_ptr: bool `[R]`, requests in the middle of their prompt.
        backup_next_token_ids_ptr: int32 `[R]`.
        next_token_ids_ptr: int32 `[R]`, written.
        valid_sampled_tokens_count_ptr: int32 `[R]`, written; 0 for discarded requests.
        vocab_size: ids from here on are invalid.
        num_sampled_tokens_per_req: S.
        num_reqs: R.
        stride_sampled_token_ids: elements of a row.
        BLOCK_SIZE_TOKENS: tile of the Triton kernel; irrelevant here.
    """
    sampled_RS = sampled_token_ids_ptr[:num_reqs, :num_sampled_tokens_per_req]
    valid_RS = (sampled_RS != -1) & (sampled_RS < vocab_size)
    valid_RS &= ~discard_request_mask_ptr[:num_reqs, None]
    order_S = torch.arange(1, num_sampled_tokens_per_req + 1, device=sampled_RS.device)
    last_R = (valid_RS * order_S).amax(dim=1) - 1
    token_R = sampled_RS.gather(1, last_R.clamp_min(0)[:, None]).squeeze(1)
    backup_R = backup_next_token_ids_ptr[:num_reqs]
    next_token_ids_ptr[:num_reqs] = torch.where(last_R >= 0, token_R.to(backup_R.dtype), backup_R)
    valid_sampled_tokens_count_ptr[:num_reqs] = valid_RS.sum(dim=1)


def _differences(running_sum_R: torch.Tensor) -> torch.Tensor:
    return torch.diff(running_sum_R, prepend=running_sum_R.new_zeros(1))
