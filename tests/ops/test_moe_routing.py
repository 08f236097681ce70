"""Routing on one rank: references against plain indexing, bindings against the references."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.ops import moe_routing
from ascend_recipes.ops.reference import moe_routing as reference_routing

pytestmark = pytest.mark.ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CASES = ((1, 8, 1, 4), (7, 33, 2, 8), (3, 64, 6, 24), (13, 16, 8, 9), (5, 130, 3, 64))
"""Tokens, hidden size, experts a token, experts."""


def chosen(tokens, top_k, experts):
    """Distinct experts for each token, unevenly: low numbers are popular."""
    favour = torch.rand(tokens, experts) * torch.linspace(2, 0.1, experts)
    return favour.topk(top_k, dim=1).indices.int()


def indices(case, dtype=torch.float32):
    tokens, width, top_k, experts = case
    return torch.randn(tokens, width).to(dtype), chosen(tokens, top_k, experts)


# --- references ----------------------------------------------------------------------------------
@pytest.mark.parametrize("case", CASES)
def test_init_routing_reference_sorts_stably(case):
    x, ids = indices(case)
    experts, top_k = case[3], case[2]
    rows, index, counts, _ = reference_routing.moe_init_routing(
        x, ids, num_experts=experts, first_expert=0, last_expert=experts
    )
    order = torch.argsort(ids.flatten(), stable=True)
    assert torch.equal(rows, x[order // top_k])
    assert torch.equal(index.long(), torch.argsort(order))
    assert torch.equal(counts, torch.bincount(ids.flatten(), minlength=experts))


@pytest.mark.parametrize("case", CASES)
def test_routed_layer_equals_the_dense_sum(case):
    """Permute, scale each row by its expert, unpermute: Σ w · f_expert(x)."""
    x, ids = indices(case)
    weights = torch.rand(ids.shape)
    rows, places = reference_routing.moe_permute(x, ids)
    owner = ids.flatten().sort(stable=True).values
    y = reference_routing.moe_unpermute(rows * (owner[:, None] + 1), places, weights_TK=weights)
    expected = ((weights * (ids + 1)).sum(dim=1, keepdim=True)) * x
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


def test_re_routing_reference_equals_a_transposition_of_cells():
    counts = torch.tensor([[2, 0, 1], [1, 3, 0]])
    labels = [(rank, expert) for rank in range(2) for expert in range(3)]
    cells = [label for label in labels for _ in range(int(counts[label]))]
    rows = torch.tensor(cells).float()
    moved, _, index, totals = reference_routing.moe_re_routing(rows, counts)
    assert [tuple(row) for row in moved.int().tolist()] == sorted(cells, key=lambda c: (c[1], c[0]))
    assert torch.equal(rows[index.long()], moved)
    assert totals.tolist() == [3, 3, 1]


# --- bindings ------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("share", ["all", "first", "last", "one"])
@pytest.mark.parametrize(
    "binding", [moe_routing.moe_init_routing_npu, moe_routing.moe_init_routing_custom]
)
def test_init_routing_bindings(case, share, quantize, dtype, binding, reference, agree):
    x, ids = indices(case, dtype)
    experts = case[3]
    first, last = {
        "all": (0, experts),
        "first": (0, experts // 2),
        "last": (experts // 2, experts),
        "one": (experts - 1, experts),
    }[share]
    options = {"num_experts": experts, "first_expert": first, "last_expert": last}
    found = binding(x, ids, **options, quantize=quantize)
    expected = reference("moe_init_routing")(x, ids, **options, quantize=quantize)
    used = int(expected[2].sum())
    agree("moe_init_routing", found[0][:used], expected[0][:used])
    for position in (1, 2):
        assert torch.equal(found[position], expected[position])
    if quantize:
        torch.testing.assert_close(found[3][:used], expected[3][:used], rtol=1e-6, atol=0)
        assert bool(found[3][used:].isnan().all())
    else:
        assert bool(found[0][used:].isnan().all()), "rows behind the last must be poison"
        assert bool(found[3].isnan().all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "counts",
    [[[1]], [[2, 0, 1], [1, 3, 0]], [[0, 0], [0, 5]], [[4, 1], [0, 0], [2, 2]], [[0, 0, 0]]],
)
@pytest.mark.parametrize("spare", [0, 3])
def test_re_routing_binding(counts, spare, integer, dtype, reference):
    numbers = torch.tensor(counts).to(integer)
    total = int(numbers.sum()) + spare
    rows = (torch.randn(total, 9) * 50).to(dtype)
    scale = torch.rand(total)
    for scales in (None, scale):
        found = moe_routing.moe_re_routing_npu(rows, numbers, scale_R=scales)
        expected = reference("moe_re_routing")(rows, numbers, scale_R=scales)
        for actual, wanted in zip(found, expected, strict=True):
            assert actual.dtype == wanted.dtype
            torch.testing.assert_close(actual, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_permute_and_unpermute_bindings(case, integer, weighted, dtype, reference, agree):
    x, ids = indices(case, dtype)
    rows, places = moe_routing.moe_permute_npu(x, ids.to(integer))
    expected = reference("moe_permute")(x, ids)
    assert torch.equal(rows, expected[0])
    assert torch.equal(places, expected[1])
    weights = torch.rand(ids.shape).to(dtype) if weighted else None
    y = moe_routing.moe_unpermute_npu(rows, places, weights_TK=weights)
    agree("moe_unpermute", y, reference("moe_unpermute")(rows, places, weights_TK=weights))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_finalize_routing_binding(case, dtype, reference, agree):
    x, ids = indices(case, dtype)
    rows, places = moe_routing.moe_permute_npu(x, ids)
    weights = torch.rand(ids.shape)
    found = moe_routing.moe_finalize_routing_npu(rows, places, weights)
    agree("moe_finalize_routing", found, reference("moe_finalize_routing")(rows, places, weights))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["moe_unpermute", "moe_finalize_routing"])
@pytest.mark.parametrize("share", [(0, 8), (2, 6), (7, 8)])
def test_experts_that_live_elsewhere_contribute_nothing(share, name, dtype, reference, agree):
    """Rows of nobody are NaN; a share without any row at all (few tokens) must give zeros."""
    x, ids = indices((9, 16, 2, 8), dtype)
    rows, index, counts, _ = moe_routing.moe_init_routing_npu(
        x, ids, num_experts=8, first_expert=share[0], last_expert=share[1]
    )
    weights = torch.rand(ids.shape).to(dtype)
    binding, plain = vars(moe_routing)[f"{name}_npu"], reference(name)
    for used in (rows, torch.full_like(rows, torch.nan)):
        here = index if used is rows else torch.full_like(index, -1)
        arguments = (used, here)
        if name == "moe_unpermute":
            found = binding(*arguments, weights_TK=weights)
            agree(name, found, plain(*arguments, weights_TK=weights))
        else:
            found = binding(*arguments, weights)
            agree(name, found, plain(*arguments, weights))
        assert bool(found.isfinite().all())
    owners = ((ids >= share[0]) & (ids < share[1])).any(dim=1)
    assert int(counts.sum()) == int(((ids >= share[0]) & (ids < share[1])).sum())
    assert share != (7, 8) or not bool(owners.all())


def test_finalize_reads_the_index_slot_by_slot():
    """The convention of the vendor's operator; taken token by token the result is another."""
    x, ids = indices((4, 8, 3, 6))
    rows, places = moe_routing.moe_permute_npu(x, ids)
    weights = torch.rand(4, 3)
    right = moe_routing.moe_finalize_routing_npu(rows, places, weights)
    wrong = torch.ops.npu.npu_moe_finalize_routing(
        rows, None, None, None, weights, places, None, 0, 3
    )
    assert not torch.allclose(right, wrong)


def test_addends_and_expert_bias_of_finalize():
    x, ids = indices((4, 8, 3, 6))
    rows, places = moe_routing.moe_permute_npu(x, ids)
    weights, bias = torch.rand(4, 3), torch.randn(6, 8)
    skips = torch.randn(2, 4, 8)
    found = torch.ops.npu.npu_moe_finalize_routing(
        rows, skips[0], skips[1], bias, weights, places.view(4, 3).t().reshape(-1), ids, 0, 3
    )
    expected = sum(
        weights[:, slot, None] * (x + bias[ids[:, slot].long()]) for slot in range(3)
    ) + skips.sum(dim=0)
    torch.testing.assert_close(found, expected)


def test_scatter_index_is_no_gather_index():
    x, ids = indices((5, 8, 2, 6))
    options = {
        "expert_num": 6,
        "expert_tokens_num_type": 1,
        "expert_tokens_num_flag": True,
        "active_expert_range": [0, 6],
    }
    gather, scatter = (
        torch.ops.npu.npu_moe_init_routing_v2(x, ids, row_idx_type=kind, **options)[1].long()
        for kind in (0, 1)
    )
    assert torch.equal(gather[scatter], torch.arange(10))
    assert not torch.equal(gather, scatter)


@pytest.mark.parametrize("active", [-1, 0, 4, 99])
def test_active_rows_bound_what_all_experts_process(active):
    """-1 and 0 mean every row; a positive number keeps the first rows in the order of experts."""
    x, ids = indices((5, 8, 2, 6))
    options = {"expert_num": 6, "expert_tokens_num_type": 1, "expert_tokens_num_flag": True}
    every = torch.ops.npu.npu_moe_init_routing_v2(x, ids, **options)
    rows, index, _, _ = torch.ops.npu.npu_moe_init_routing_v2(x, ids, active_num=active, **options)
    kept = active if active == 4 else 10
    assert torch.equal(rows[:kept], every[0][:kept])
    assert bool(rows[kept:].isnan().all())
    assert torch.equal(index >= 0, every[1] < kept)


@pytest.mark.parametrize("wanted", [None, 0, 4, -3, 99])
def test_permutation_drops_what_is_behind_the_wanted_rows(wanted):
    x, ids = indices((5, 8, 2, 6))
    every, places = moe_routing.moe_permute_npu(x, ids)
    rows, index = torch.ops.npu.npu_moe_token_permute(x, ids, wanted)
    assert torch.equal(rows, every[:wanted] if wanted else every)
    assert torch.equal(index, places)


def test_scales_travel_with_int8_rows():
    x, ids = indices((5, 16, 2, 6))
    q, scale = (x * 20).to(torch.int8), torch.rand(5)
    rows, index, counts, scales = torch.ops.npu.npu_moe_init_routing_v2(
        q, ids, scale=scale, expert_num=6, expert_tokens_num_type=1, expert_tokens_num_flag=True
    )
    for token in range(5):
        for slot in range(2):
            place = int(index[2 * token + slot])
            assert torch.equal(rows[place], q[token])
            assert scales[place] == scale[token]
    assert int(counts.sum()) == 10


# --- round trips ---------------------------------------------------------------------------------
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**31))
def test_permutation_round_trip(tokens, experts, top_k, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, experts, (tokens, top_k), dtype=torch.int32, generator=generator)
    x = torch.randint(-99, 99, (tokens, 3), generator=generator).float()
    rows, places = moe_routing.moe_permute_npu(x, ids)
    assert torch.equal(places.sort().values, torch.arange(tokens * top_k, dtype=torch.int32))
    assert torch.equal(moe_routing.moe_unpermute_npu(rows, places), x.repeat_interleave(top_k, 0))
    ones = torch.ones(tokens, top_k)
    assert torch.equal(moe_routing.moe_unpermute_npu(rows, places, weights_TK=ones), x * top_k)
    routed, index, counts, _ = moe_routing.moe_init_routing_npu(
        x, ids, num_experts=experts, first_expert=0, last_expert=experts
    )
    assert torch.equal(routed, rows)
    assert torch.equal(index, places)
    assert int(counts.sum()) == tokens * top_k
