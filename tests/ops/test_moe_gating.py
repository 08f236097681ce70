"""Expert selection: references against other people's routers, bindings against the references."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from ascend_recipes.ops import moe_gating
from ascend_recipes.ops.reference import moe_gating as reference_gating
from ascend_recipes.torchvision_schemas import define_missing_schemas

pytestmark = pytest.mark.ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = ((1, 8, 2), (7, 24, 6), (3, 60, 1), (33, 256, 8), (5, 96, 16), (2, 9, 9))
"""Tokens, experts, chosen experts."""


def logits_of(tokens, experts, dtype):
    """Logits without ties: in 8 bits of mantissa random numbers collide, ranks do not."""
    ranks = torch.stack([torch.randperm(experts) for _ in range(tokens)]).float()
    return ((ranks - experts / 2) * (6.0 / experts)).to(dtype)


def distinct(weights, ids):
    """Weights by expert, so that the order of equal ones does not matter."""
    return torch.zeros(weights.shape[0], 2048).scatter(1, ids.long(), weights.float())


def assert_same_choice(name, found, expected, agree):
    agree(name, found[0].sort(dim=-1).values, expected[0].sort(dim=-1).values)
    assert found[1].dtype == torch.int32
    assert torch.equal(found[1].sort(dim=-1).values, expected[1].sort(dim=-1).values)
    torch.testing.assert_close(distinct(*found), distinct(*expected), rtol=2e-2, atol=2e-3)


# --- references ----------------------------------------------------------------------------------
CONFIG = SimpleNamespace(
    hidden_size=16,
    num_experts=32,
    num_local_experts=32,
    num_experts_per_tok=5,
    n_group=8,
    topk_group=3,
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
    scoring_func="sqrtsoftplus",
    vocab_size=19,
)


@pytest.fixture(scope="module")
def transformers_routers():
    """Routers of transformers, which are not ours, with weights."""
    define_missing_schemas()
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
        DeepseekV4HashRouter,
        DeepseekV4TopKRouter,
    )
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeTopKRouter

    kinds = {
        "softmax": Qwen3_5MoeTopKRouter,
        "sigmoid": DeepseekV3TopkRouter,
        "sqrt_softplus": DeepseekV4TopKRouter,
        "hash": DeepseekV4HashRouter,
    }
    routers = {name: kind(CONFIG) for name, kind in kinds.items()}
    with torch.no_grad():
        for name, router in routers.items():
            torch.nn.init.normal_(router.weight)
            if name in ("sigmoid", "sqrt_softplus"):
                router.e_score_correction_bias.copy_(torch.rand(32) * 0.1)
        table = torch.stack([torch.randperm(32)[:5] for _ in range(19)])
        routers["hash"].tid2eid.copy_(table)
    return routers


@torch.no_grad()
@pytest.mark.parametrize("name", ["softmax", "sigmoid", "sqrt_softplus", "hash"])
def test_gating_references_are_the_routers_of_transformers(name, transformers_routers):
    router, hidden, ids = (
        transformers_routers[name],
        torch.randn(11, 16),
        torch.randint(0, 19, (11,)),
    )
    expected = router(hidden, ids) if name == "hash" else router(hidden)
    logits = F.linear(hidden, router.weight)
    scaled = {"scaling": CONFIG.routed_scaling_factor}
    if name == "softmax":
        found = reference_gating.moe_gate_softmax(logits, top_k=5, renormalize=True)
    elif name == "hash":
        found = reference_gating.moe_gate_hash(logits, ids, router.tid2eid, **scaled)
    else:
        groups = {"groups": 8, "top_groups": 3} if name == "sigmoid" else {}
        found = vars(reference_gating)[f"moe_gate_{name}"](
            logits, bias_G=router.e_score_correction_bias, top_k=5, **groups, **scaled
        )
    torch.testing.assert_close(distinct(*found), distinct(*expected[1:]), rtol=1e-5, atol=1e-6)


# --- bindings ------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "experts", "top_k"), SIZES)
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(
    "binding",
    [
        moe_gating.moe_gate_softmax_npu,
        moe_gating.moe_gate_softmax_custom,
        moe_gating.moe_gate_softmax_plain_npu,
    ],
)
def test_softmax_bindings(tokens, experts, top_k, renormalize, dtype, binding, reference, agree):
    logits = logits_of(tokens, experts, dtype)
    options = {"top_k": top_k, "renormalize": renormalize, "scaling": 1.5}
    expected = reference("moe_gate_softmax")(logits, **options)
    assert_same_choice("moe_gate_softmax", binding(logits, **options), expected, agree)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [None, 0.0, 0.3])
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "groups", "top_groups"),
    [(1, 8, 2, 1, 1), (7, 24, 6, 4, 2), (3, 60, 1, 5, 1), (33, 256, 8, 8, 4), (5, 96, 16, 1, 1)],
)
@pytest.mark.parametrize(
    "binding", [moe_gating.moe_gate_sigmoid_npu, moe_gating.moe_gate_sigmoid_custom]
)
def test_sigmoid_bindings(
    tokens, experts, top_k, groups, top_groups, bias, dtype, binding, reference, agree
):
    logits = logits_of(tokens, experts, dtype)
    options = {
        "bias_G": None if bias is None else torch.rand(experts) * bias,
        "top_k": top_k,
        "groups": groups,
        "top_groups": top_groups,
        "scaling": 2.5,
    }
    expected = reference("moe_gate_sigmoid")(logits, **options)
    found = binding(logits, **options)
    assert_same_choice("moe_gate_sigmoid", found, expected, agree)
    total = found[0].float().sum(dim=-1)
    torch.testing.assert_close(total, torch.full_like(total, 2.5), rtol=1e-2, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [None, 0.3])
@pytest.mark.parametrize(("tokens", "experts", "top_k"), SIZES)
def test_sqrt_softplus_binding(tokens, experts, top_k, bias, dtype, reference, agree):
    logits = logits_of(tokens, experts, dtype)
    bias_G = None if bias is None else torch.rand(experts) * bias
    options = {"bias_G": bias_G, "top_k": top_k, "scaling": 1.5}
    expected = reference("moe_gate_sqrt_softplus")(logits, **options)
    found = moe_gating.moe_gate_sqrt_softplus_npu(logits, **options)
    assert_same_choice("moe_gate_sqrt_softplus", found, expected, agree)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
@pytest.mark.parametrize(("tokens", "experts", "top_k"), SIZES)
def test_hash_binding(tokens, experts, top_k, integer, dtype, reference, agree):
    table = torch.stack([torch.randperm(experts)[:top_k] for _ in range(19)]).to(integer)
    logits, ids = logits_of(tokens, experts, dtype), torch.randint(0, 19, (tokens,)).to(integer)
    found = moe_gating.moe_gate_hash_npu(logits, ids, table, scaling=1.5)
    expected = reference("moe_gate_hash")(logits, ids, table, scaling=1.5)
    assert torch.equal(found[1], expected[1]), "the order of the table is kept"
    agree("moe_gate_hash", found[0], expected[0])


# --- conventions ---------------------------------------------------------------------------------
def test_bias_chooses_but_does_not_weigh():
    logits = torch.zeros(1, 8)
    bias = torch.tensor([0.0, 0, 0, 5, 0, 0, 9, 0])
    weights, ids = moe_gating.moe_gate_sigmoid_custom(logits, bias_G=bias, top_k=2)
    assert ids.tolist() == [[6, 3]]
    assert weights.tolist() == [[0.5, 0.5]]


def test_a_group_is_worth_its_two_best_experts():
    """Group 0 holds the best expert, group 1 the best pair: noaux-tc takes group 1."""
    logits = torch.tensor([[5.0, -9, -9, 4, 4, -9]])
    options = {"bias_G": None, "top_k": 2, "groups": 2, "top_groups": 1}
    assert moe_gating.moe_gate_sigmoid_npu(logits, **options)[1].tolist() == [[3, 4]]
    by_largest = torch.ops.npu.npu_moe_gating_top_k(
        logits, 2, k_group=1, group_count=2, group_select_mode=0, norm_type=1
    )
    assert by_largest[1][0, 0] == 0


def test_the_operator_leaves_softmax_weights_and_normalizes_sigmoid_ones():
    logits = torch.randn(3, 8)
    plain = torch.ops.npu.npu_moe_gating_top_k(logits, 2, norm_type=0)[0].sum(dim=-1)
    assert bool((plain < 0.99).all())
    scaled = torch.ops.npu.npu_moe_gating_top_k(logits, 2, norm_type=1, routed_scaling_factor=2.5)[
        0
    ]
    torch.testing.assert_close(scaled.sum(dim=-1), torch.full((3,), 2.5))


def test_unwanted_scores_are_poison():
    logits = torch.randn(3, 8)
    without = torch.ops.npu.npu_moe_gating_top_k(logits, 2)[2]
    wanted = torch.ops.npu.npu_moe_gating_top_k(logits, 2, out_flag=True)[2]
    assert bool(without.isnan().all())
    torch.testing.assert_close(wanted, logits.softmax(dim=-1))


def test_finished_rows_name_no_expert_and_rows_are_numbered_slot_by_slot():
    logits = torch.randn(3, 8)
    finished = torch.tensor([False, True, False])
    _, ids, rows = torch.ops.npu.npu_moe_gating_top_k_softmax(logits, finished, 2)
    assert ids[1].tolist() == [8, 8]
    assert rows.tolist() == [[0, 3], [1, 4], [2, 5]]
