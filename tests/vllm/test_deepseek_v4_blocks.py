"""Drafts of DeepSeek-V4's block drafter: how many are accepted, and that they change nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ascend_recipes.plan import PlannedLaunch
from tests.vllm.block_drafts import (
    ONLY_DRAFTS,
    assert_draft_logits,
    assert_drafts_change_no_token,
    drafts_of,
)
from tests.vllm.conftest import FLOAT32, RAW, TINY, Engine, tiny_checkpoint
from tests.vllm.near_markov import write_near_markov
from tests.vllm.oracle import prompt_of
from tests.vllm.oracle_deepseek_v4 import assert_matches
from tests.vllm.zeroing import REFUSED_AS_ZEROS, effects_of_zeros

pytestmark = pytest.mark.vllm

COUNT = 5
WORDS = (
    *("recipe=deepseek_v4_a3_dspark", "attention=dsa", "quant=none"),
    *("checkpoint.variant=bf16_dspark", *FLOAT32, RAW, f"drafter.num_draft_tokens={COUNT}"),
    *("cache.precision=float", "cache.prefix_caching=false", "scheduler.async_scheduling=false"),
)
BOTH_DRAFTERS = ("deepseek_v4_a3_dspark", "deepseek_v4_a3")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks")


@pytest.fixture(scope="module")
def checkpoint(plan: Callable[..., PlannedLaunch], scratch: Path) -> Path:
    return write_near_markov(tiny_checkpoint(plan(*TINY, *WORDS)), scratch / "near_markov")


@pytest.fixture(scope="module")
def two_ranks(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """The recipe's int8 indexer, graphs, prefix caching and seven drafts over float weights."""
    words = (
        *("recipe=deepseek_v4_a3_dspark", "quant=none", "checkpoint.variant=bf16_dspark"),
        *(*FLOAT32, RAW, "scheduler.max_model_len=8192", "cache.memory_bytes=1073741824"),
    )
    with engine_of(*words, "parallel.tp=2", core_process=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def drafting(engine_of: Callable[..., Any], checkpoint: Path) -> Iterator[Engine]:
    with engine_of(*WORDS, f"checkpoint.path={checkpoint}") as engine:
        yield engine


def test_drafts_change_no_token(drafting: Engine, checkpoint: Path, scratch: Path):
    assert_drafts_change_no_token(drafting, checkpoint, scratch)
    accepted, rejected = drafts_of(drafting)
    drafting.record_calls()
    (receipt,) = [item for item in drafting.receipts() if item.effective is not None]
    assert receipt.drafts.proposed == accepted + rejected
    assert sum(receipt.drafts.accepted) == accepted
    assert len(receipt.drafts.accepted) == COUNT
    assert receipt.drafts.accepted[1] > 0


def test_draft_logits(drafting: Engine, checkpoint: Path, scratch: Path):
    assert_draft_logits(drafting, checkpoint, scratch)


def test_zeroing_any_binding_changes_tokens_or_drafts(
    drafting: Engine, plan: Callable[..., PlannedLaunch]
):
    # Longer than what the indexer selects, and not what an embedding alone decides.
    effects = effects_of_zeros(drafting, prompt_of(150, seed=901))
    assert effects.nothing == set()
    assert effects.drafts == ONLY_DRAFTS
    assert effects.refused == REFUSED_AS_ZEROS
    # What int8 weights and caches add is the same as beside MTP, and zeroed there.
    names = [set(plan(*TINY, f"recipe={name}").plan.operations) for name in BOTH_DRAFTERS]
    assert names[0] - names[1] == ONLY_DRAFTS
    assert not names[1] - names[0]


def test_the_recipe_on_two_ranks(two_ranks: Engine, scratch: Path):
    prompts = [prompt_of(length, seed=2000 + length) for length in (3, 60, 129)]
    answers = two_ranks.generate(prompts, max_tokens=8)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_matches(two_ranks, prompt, answer, "int8", scratch)
    plan = two_ranks.planned.plan
    assert (plan.drafter.kind, plan.engine["speculative_config"]["method"]) == ("dspark", "mtp")
    assert two_ranks.counter("vllm:spec_decode_num_draft_tokens") > 0
    for calls in two_ranks.record_calls():
        assert set(calls) == set(plan.operations)
        assert calls["draft_block_attention"] > 0


def test_warm_prefix(two_ranks: Engine):
    prompt = prompt_of(4400, seed=4400)
    (cold,) = two_ranks.generate([prompt], max_tokens=4)
    (warm,) = two_ranks.generate([prompt], max_tokens=4)
    assert (cold["cached"], warm["cached"]) == (0, 4096)
    assert warm["tokens"] == cold["tokens"]
