"""Attention of a block of drafts: a window before it and the whole block, both caches."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.ops.draft_block import draft_block_attention_torch
from ascend_recipes.ops.latent_cache import (
    unpack_latent_rows,
    write_latent_rows_epilog,
    write_latent_rows_scatter,
)
from ascend_recipes.ops.reference.draft_block import draft_block_attention
from ascend_recipes.ops.reference.latent_cache import unpacked_row

pytestmark = pytest.mark.ops

BATCHES = [[1], [5, 3, 7], [128, 129, 131], [0, 300], [515, 1, 127, 64]]
"""Tokens of each request before its block."""
COUNTS = [1, 2, 5, 7, 15]
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 3e-3}


class Case:
    """Paged keys of requests with a block each; whatever nobody may see is NaN (or junk bytes)."""

    def __init__(self, before, count, *, dtype=torch.float32, dim=32, packed=False, window=128):
        self.before, self.count, self.window, self.dim = before, count, window, dim
        self.lengths = torch.tensor([start + count for start in before], dtype=torch.int32)
        self.query = torch.randn(len(before) * count, 3, dim).to(dtype)
        self.sinks = torch.randn(3)
        self.keys = [torch.randn(start + count, dim).to(dtype) for start in before]
        rows, columns = 16, max(self.lengths.tolist()) // 16 + 2
        self.table = (torch.randperm(columns * len(before)) + 1).view(len(before), -1).int()
        width = 640 if packed else dim
        blocks = self.table.numel() + 1
        if packed:
            self.cache = torch.full((blocks, rows, width), 255, dtype=torch.uint8)
        else:
            self.cache = torch.full((blocks, rows, width), torch.nan, dtype=dtype)
        write = write_latent_rows_epilog if packed else write_latent_rows_scatter
        for request, part in enumerate(self.keys):
            place = torch.arange(max(0, before[request] - window), len(part))
            slots = self.table[request, place // rows].long() * rows + place % rows
            write(part[place], self.cache, slots)

    def attend(self, function):
        return function(
            self.query,
            self.cache,
            window_table_RV=self.table,
            kv_lengths_R=self.lengths,
            sinks_N=self.sinks,
            scale=self.dim**-0.5,
            window=self.window,
        )

    def expected(self):
        """PyTorch's own attention over a mask, the sink as a key whose value is zero."""
        parts = []
        for request, keys in enumerate(self.keys):
            query = self.query[request * self.count :][: self.count].double().transpose(0, 1)
            seen = keys[max(0, self.before[request] - self.window) :].double()
            score = query @ seen.T * self.dim**-0.5
            score = torch.cat(
                (score, self.sinks.double()[:, None, None].expand(-1, self.count, 1)), -1
            )
            values = torch.cat((seen, seen.new_zeros(1, self.dim)))
            parts.append((score.softmax(-1) @ values).transpose(0, 1))
        return torch.cat(parts)


@pytest.mark.parametrize("dtype", list(BOUNDS), ids=str)
@pytest.mark.parametrize(("before", "count"), list(zip(BATCHES, COUNTS, strict=True)))
def test_reference_and_binding_equal_plain_attention(before, count, dtype):
    torch.manual_seed(count)
    case = Case(before, count, dtype=dtype)
    for function in (draft_block_attention, draft_block_attention_torch):
        out = case.attend(function)
        assert out.dtype == dtype
        assert (out.double() - case.expected()).abs().max() < BOUNDS[dtype]


@pytest.mark.parametrize("count", COUNTS)
def test_packed_rows(count):
    torch.manual_seed(count)
    case = Case([3, 140, 260], count, dtype=torch.bfloat16, dim=512, packed=True)
    ours, reference = case.attend(draft_block_attention_torch), case.attend(draft_block_attention)
    assert (ours.float() - reference.float()).abs().max() < BOUNDS[torch.bfloat16]


def test_unpacking_equals_the_reference_row_by_row():
    case = Case([60], 4, dtype=torch.bfloat16, dim=512, packed=True)
    rows = case.cache[case.table[0, 0]]
    expected = torch.stack([unpacked_row(row, 512) for row in rows])
    assert torch.equal(unpack_latent_rows(rows, 512), expected)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    before=st.lists(st.integers(0, 200), min_size=1, max_size=4),
    count=st.integers(1, 8),
    window=st.sampled_from([1, 16, 128]),
)
def test_any_batch(before, count, window):
    torch.manual_seed(0)
    case = Case(before, count, window=window)
    assert (case.attend(draft_block_attention_torch).double() - case.expected()).abs().max() < 1e-5


def test_every_draft_sees_the_whole_block_and_no_key_before_the_window():
    torch.manual_seed(0)
    case = Case([200], 4)
    usual = case.attend(draft_block_attention_torch)
    rows = case.cache.shape[1]

    def changed(place):
        cache = case.cache.clone()
        cache[case.table[0, place // rows].long(), place % rows] += 3.0
        saved, case.cache = case.cache, cache
        try:
            return (case.attend(draft_block_attention_torch) - usual).abs().amax(dim=(1, 2)) > 1e-4
        finally:
            case.cache = saved

    assert changed(203).all()
    assert changed(200).all()
    assert changed(72).all()
    assert not changed(71).any()
