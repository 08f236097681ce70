"""Torch code for vLLM's Triton kernels, against loops over the definition."""

import itertools

import pytest
import torch

from ascend_recipes.kernels.slot_mapping import compute_slot_mapping

pytestmark = pytest.mark.vllm


def slots_by_definition(starts, positions, table, block, world, rank, interleave, length):
    slots = [-1] * length
    for request, (start, end) in enumerate(itertools.pairwise(starts)):
        for token in range(start, end):
            position = positions[token]
            column, offset = divmod(position, block * world)
            run, inside = divmod(offset, interleave)
            if run % world == rank:
                local = run // world * interleave + inside
                slots[token] = table[request][column] * block + local
    return slots


@pytest.mark.parametrize(("world", "interleave"), [(1, 1), (2, 1), (2, 16), (4, 8)])
def test_slots(world: int, interleave: int):
    generator = torch.Generator().manual_seed(world * 100 + interleave)
    block, lengths, context = 16, [1, 40, 0, 7], [130, 0, 5, 63]
    table = torch.randperm(4 * 12, generator=generator).view(4, 12).to(torch.int32)
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    positions = torch.cat([torch.arange(c, c + n) for c, n in zip(context, lengths, strict=True)])
    for rank in range(world):
        slots = torch.full((64,), 999, dtype=torch.int64)
        total = sum(lengths)
        compute_slot_mapping(
            total, 60, starts, positions, table, 12, slots, block, world, rank, interleave, -1, 1024
        )
        expected = slots_by_definition(
            starts.tolist(), positions.tolist(), table.tolist(), block, world, rank, interleave, 60
        )
        assert slots[:60].tolist() == expected
        assert slots[60:].tolist() == [999] * 4


def test_a_step_without_tokens_is_all_padding():
    slots = torch.zeros(8, dtype=torch.int64)
    starts = torch.zeros(2, dtype=torch.int32)
    empty = torch.zeros(0, dtype=torch.int64)
    table = torch.zeros(1, 4, dtype=torch.int32)
    compute_slot_mapping(0, 8, starts, empty, table, 4, slots, 16, 1, 0, 1, -1, 1024)
    assert slots.tolist() == [-1] * 8
