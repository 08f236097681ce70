"""Positions of tokens in the paged cache.

Legend: T tokens (padded), R requests, M blocks a request may have.
"""

import torch


def compute_slot_mapping(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc_ptr: torch.Tensor,
    positions_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    slot_mapping_ptr: torch.Tensor,
    KV_CACHE_BLOCK_SIZE: int,
    TOTAL_CP_WORLD_SIZE: int,
    TOTAL_CP_RANK: int,
    CP_KV_CACHE_INTERLEAVE_SIZE: int,
    PAD_ID: int,
    BLOCK_SIZE: int,
) -> None:
    """Fill the slot of every token; slots of padding and of other context ranks get `PAD_ID`.

    Parameter names are those of the kernel `ComputeSlotMappingKernel`, which vLLM passes by
    name. A slot is `block * block_size + offset`; under context parallelism the tokens of a
    virtual block are dealt to the ranks in runs of the interleave size.

    Args:
        num_tokens: scheduled tokens.
        max_num_tokens: length up to which the slots are written.
        query_start_loc_ptr: int32 `[R + 1]`, first token of each request.
        positions_ptr: int64 `[num_tokens]`, position of each token in its sequence.
        block_table_ptr: int32 `[R', M]` with R' >= R.
        block_table_stride: M.
        slot_mapping_ptr: int64 `[>= max_num_tokens]`, written.
        KV_CACHE_BLOCK_SIZE: tokens of one block on one rank.
        TOTAL_CP_WORLD_SIZE: context-parallel ranks.
        TOTAL_CP_RANK: this rank.
        CP_KV_CACHE_INTERLEAVE_SIZE: tokens of one run.
        PAD_ID: slot of a token that is not cached here.
        BLOCK_SIZE: tile of the Triton kernel; irrelevant here.
    """
    slot_mapping_ptr[num_tokens:max_num_tokens].fill_(PAD_ID)
    if num_tokens == 0:
        return
    token_T = torch.arange(num_tokens, dtype=torch.int32, device=positions_ptr.device)
    request_T = torch.searchsorted(query_start_loc_ptr[1:].contiguous(), token_T, right=True)
    position_T = positions_ptr[:num_tokens]
    virtual_block = KV_CACHE_BLOCK_SIZE * TOTAL_CP_WORLD_SIZE
    column_T = position_T // virtual_block
    offset_T = position_T % virtual_block
    run_T = offset_T // CP_KV_CACHE_INTERLEAVE_SIZE
    local_offset_T = (
        run_T // TOTAL_CP_WORLD_SIZE * CP_KV_CACHE_INTERLEAVE_SIZE
        + offset_T % CP_KV_CACHE_INTERLEAVE_SIZE
    )
    flat_table = block_table_ptr.reshape(-1)
    block_T = flat_table[request_T * block_table_stride + column_T].to(torch.int64)
    slot_T = block_T * KV_CACHE_BLOCK_SIZE + local_offset_T
    is_local_T = run_T % TOTAL_CP_WORLD_SIZE == TOTAL_CP_RANK
    slot_mapping_ptr[:num_tokens] = torch.where(is_local_T, slot_T, PAD_ID)
