"""Calculators: properties over their whole range, and the numbers that the sources state."""

from itertools import combinations, pairwise
from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_recipes.planning.capture import stock_capture_sizes
from ascend_recipes.planning.capture_sets import (
    CaptureDemand,
    capture_demand,
    legal_sizes,
    propose_sizes,
    worst_padding,
)
from ascend_recipes.planning.degrees import (
    dispatch_groups,
    fine_grained_groups,
    hash_tokens,
    legal_dcp,
    legal_dp,
    legal_ep,
    legal_redundant,
    legal_tp,
    prefix_alignment,
)
from ascend_recipes.planning.dispatch import (
    ExpertLayout,
    communication_method,
    expert_layout,
    fused_window_mib,
    token_capacity,
    window_mib,
)
from ascend_recipes.planning.streams import StreamDemand, stream_budget
from ascend_recipes.planning.topology import group_ranks
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.plan import GroupPlan

DEMANDS = st.builds(
    CaptureDemand,
    largest_batch=st.integers(1, 600),
    query_length=st.integers(1, 16),
    split_over=st.sampled_from([1, 2, 4, 8, 16]),
    max_sizes=st.sampled_from([None, 2, 4]),
)


@given(DEMANDS)
def test_proposed_sizes_are_legal_and_reach_the_largest_batch(demand):
    sizes = propose_sizes(demand)
    assert list(sizes) == sorted(set(sizes)) == list(legal_sizes(sizes, demand))
    assert all(s % demand.query_length == 0 and s % demand.split_over == 0 for s in sizes)
    assert sizes[-1] == demand.largest
    assert demand.max_sizes is None or len(sizes) <= demand.max_sizes
    if demand.largest < demand.needed:
        assert demand.largest + demand.stride > demand.cap
    if demand.max_sizes is None:
        assert worst_padding(sizes, demand) <= 2


@given(st.integers(1, 12), st.integers(1, 4), st.integers(2, 4))
def test_no_smaller_set_pads_as_little(batch, query, factor):
    demand = CaptureDemand(largest_batch=batch, query_length=query)
    proposed = propose_sizes(demand, factor)
    steps = [n * query for n in range(1, batch)]
    for count in range(len(proposed) - 1):
        for chosen in combinations(steps, count):
            assert worst_padding((*chosen, demand.largest), demand) > factor


@given(DEMANDS, st.sets(st.integers(-5, 600)))
def test_legal_sizes_keep_exactly_the_multiples(demand, sizes):
    kept = set(legal_sizes(sizes, demand))
    assert kept == {s for s in sizes if s > 0 and s % demand.stride == 0}


def test_limits_of_generations():
    piecewise = propose_sizes(CaptureDemand(largest_batch=128, query_length=4, max_sizes=4))
    assert len(piecewise) <= 4
    assert piecewise[-1] == 512
    assert len(propose_sizes(CaptureDemand(largest_batch=16, max_sizes=2))) == 2


def test_demands_of_recipes(plan):
    base = capture_demand(plan("drafter=mtp3").resolved)
    assert (base.largest_batch, base.query_length, base.stride) == (32, 4, 4)
    split = capture_demand(plan("recipe=glm_5_2_w4a8_a3").resolved)
    assert (split.stride, split.max_sizes) == (8, None)
    assert capture_demand(plan("recipe=qwen3_5_27b_w8a8_310p").resolved).max_sizes == 2
    words = ("recipe=qwen3_8_27b_w8a8_mxfp8_a5", "graph=piecewise")
    assert capture_demand(plan(*words).resolved).max_sizes == 4


def test_experts_of_recipes(plan):
    flash = expert_layout(plan("recipe=deepseek_v4_a3").resolved)
    assert (flash.experts, flash.ep, flash.top_k, flash.hidden) == (256, 16, 6, 4096)
    capacity = token_capacity(flash, 128, LIMITS)
    assert communication_method(flash, 128, capacity, LIMITS).method == "mc2"
    assert window_mib(flash, capacity // flash.tp) < 1024
    latent = expert_layout(plan("recipe=kimi_k3_w4a8_a3_4n").resolved)
    assert (latent.experts, latent.hidden, latent.top_k, latent.ep) == (896, 3584, 16, 64)
    assert expert_layout(plan().resolved).experts == 0


def test_stream_formula_of_old_drivers():
    both = StreamDemand(layers=64, dp=2, tp=2)
    assert stream_budget(both).max_sizes == (1800 - 80) // 65 // 5
    vector = StreamDemand(
        layers=61,
        draft_layers=1,
        dp=4,
        tp=4,
        moe=True,
        expert_parallel=True,
        side_stream=True,
        vector_expansion=True,
    )
    assert stream_budget(vector).max_sizes == 1800 // 64 // 6
    assert "HDK 25.5.1" in stream_budget(both).holds_for


@given(st.integers(1, 100), st.integers(0, 5), st.booleans(), st.booleans())
def test_more_layers_never_allow_more_graphs(layers, drafts, context, vector):
    def most(count):
        return stream_budget(
            StreamDemand(
                layers=count,
                draft_layers=drafts,
                tp=2,
                context_parallel=context,
                vector_expansion=vector,
            )
        ).max_sizes

    assert most(layers + 1) <= most(layers)


LIMITS = load_registry().runtimes["vllm_ascend"].exchange


def experts(**changes) -> ExpertLayout:
    values = {"hardware": "a3", "experts": 256, "top_k": 8, "hidden": 7168, "ep": 64, "tp": 1}
    return ExpertLayout(**(values | changes))


@pytest.mark.parametrize(
    ("layout", "tokens", "mib"),
    [
        (experts(experts=896, hidden=3584, top_k=16), 1, 14),
        (experts(experts=896, hidden=3584, top_k=16), 512, 6832),
        (experts(experts=384), 160, 1775),
        (experts(experts=384), 64, 710),
        (experts(), 160, 1195),
        (experts(experts=128, hidden=2048, ep=2), 512, 608),
    ],
)
def test_windows_of_the_sources(layout, tokens, mib):
    assert abs(window_mib(layout, tokens) - mib) <= 1


def test_windows_of_other_operators():
    a2 = experts(hardware="a2", ep=32)
    assert window_mib(a2, 256) == 2 * 256 * 32 * 8 * 7168 * 2 // 2**20 + 4
    assert window_mib(a2, 256, hierarchical=True) < window_mib(a2, 256)
    assert fused_window_mib(experts(), 512) == -(-512 * 7168 * 8 * 3 // 2**20) + 10


@given(st.integers(1, 511), st.sampled_from(["a2", "a3", "a5"]), st.booleans())
def test_windows_grow_with_tokens(tokens, hardware, hierarchical):
    layout = experts(hardware=hardware)
    assert window_mib(layout, tokens, hierarchical=hierarchical) <= window_mib(
        layout, tokens + 1, hierarchical=hierarchical
    )


METHODS = [
    ({"experts": 0}, 1, "none"),
    ({"ep": 1}, 1, "allgather"),
    ({"lora": True}, 1, "alltoall"),
    ({"hardware": "a2", "ep": 8}, 1, "allgather"),
    ({"hardware": "a2", "ep": 32}, 1, "mc2"),
    ({"hardware": "a2", "ep": 32}, 10**6, "allgather"),
    ({"hardware": "a2", "experts": 512, "ep": 16}, 1, "allgather"),
    ({}, 1, "mc2"),
    ({}, 10**6, "alltoall"),
    ({"fused": True, "ep": 32}, 10**6, "fused_mc2"),
    ({"fused": True, "ep": 64}, 1, "mc2"),
    (
        {"fused": True, "wide": True, "intermediate": 2048, "quantization": "w8a8"},
        10**6,
        "fused_mc2",
    ),
    ({"fused": True, "wide": True, "intermediate": 512, "quantization": "w8a8"}, 1, "mc2"),
    ({"fused": True, "wide": True, "intermediate": 2048, "quantization": "bf16"}, 1, "mc2"),
    ({"hardware": "a5"}, 1, "mc2"),
    ({"hardware": "a5", "ep": 8}, 10**6, "allgather"),
    ({"hardware": "a5"}, 10**6, "alltoall"),
    ({"hardware": "310p"}, 1, "allgather"),
]


@pytest.mark.parametrize(("changes", "tokens", "method"), METHODS, ids=str)
def test_communication_methods(changes, tokens, method):
    layout = experts(**changes)
    choice = communication_method(layout, tokens, token_capacity(layout, 512, LIMITS), LIMITS)
    assert choice.method == method
    assert choice.because
    assert choice.runtime == "vllm_ascend"


@given(st.integers(1, 10**5), st.integers(1, 32), st.booleans(), st.booleans())
def test_capacity_is_bounded_per_rank(tokens, tp, fused, wide):
    capacity = token_capacity(experts(tp=tp, fused=fused, wide=wide), tokens, LIMITS)
    assert capacity % tp == 0
    assert capacity // tp <= (4096 if fused and wide else 512)
    assert capacity >= min(tokens, 512)


@given(st.lists(st.integers(1, 128), min_size=1, max_size=3), st.integers(1, 64))
def test_tensor_parallel_sizes_divide_every_head(heads, dies):
    legal = legal_tp(heads, dies)
    assert legal[0] == 1
    for n in range(1, dies + 1):
        assert (n in legal) == all(count % n == 0 for count in heads)


def test_degrees_of_the_sheets():
    assert legal_tp([24, 16, 48], 16) == (1, 2, 4, 8)
    assert legal_dp(16, 4) == (1, 2, 3, 4)
    assert legal_ep(256, 16) == (1, 2, 4, 8, 16)
    assert legal_redundant(896, 64, 128) == (0, 64, 128)
    assert legal_dcp("hybrid", 8, 4) == (1, 2)
    assert legal_dcp("hybrid", 4, 4) == (1,)
    assert legal_dcp("sfa", 16, 64) == (1, 16)
    assert legal_dcp("mla", 8, 96) == (1, 2, 4, 8)
    assert legal_dcp("dsa", 8, 1) == (1,)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=5))
def test_prefixes_end_where_blocks_of_every_group_end(blocks):
    alignment = prefix_alignment(blocks)
    assert all(alignment % block == 0 for block in blocks)
    assert all(block % hash_tokens(blocks) == 0 for block in blocks)
    assert alignment * gcd(*blocks) <= prefix_alignment([alignment, 1]) * max(blocks)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
def test_dispatch_groups_are_the_expert_groups_of_a_stage(tp, pp, dp):
    groups = dispatch_groups(tp=tp, dp=dp, pp=pp)
    expert = GroupPlan(axis="ep", size=tp * dp, count=pp, ranks="")
    assert groups == group_ranks(expert, tp=tp, pp=pp, dp=dp)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_fine_grained_groups_are_neighbours_along_data_parallelism(size, parts, tp):
    dp = size * parts
    groups = fine_grained_groups(size, tp=tp, dp=dp)
    assert sorted(rank for group in groups for rank in group) == list(range(tp * dp))
    assert all({rank % tp for rank in group} == {group[0] % tp} for group in groups)
    assert all(b - a == tp for group in groups for a, b in pairwise(group))


def test_fine_grained_groups_divide_the_replicas():
    with pytest.raises(ValueError, match="do not divide"):
        fine_grained_groups(3, tp=1, dp=4)


@pytest.mark.parametrize(
    ("seqs", "query", "step", "expected"),
    [
        (12, 1, 8192, (1, 2, 4, 8)),
        (16, 1, 8192, (1, 2, 4, 8, 16)),
        (12, 4, 8192, (4, 8, 16, 24, 32, 40, 48)),
        (5, 3, 8192, (3, 6, 9)),
        (12, 1, 6, (1, 2, 4, 6)),
        (1, 1, 8192, (1,)),
    ],
)
def test_the_stock_ladder_may_end_below_the_largest_batch(seqs, query, step, expected):
    assert stock_capture_sizes(seqs, query, step) == expected


def test_the_stock_ladder_ends_at_the_cap():
    assert stock_capture_sizes(1024, 1, 8192)[-2:] == (496, 512)
    assert max(stock_capture_sizes(264, 3, 8192)) == 498
