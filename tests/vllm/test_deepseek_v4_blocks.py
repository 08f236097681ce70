"""Drafts of DeepSeek-V4's block drafter: how many are accepted, and that they change nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ascend_recipes.plan import PlannedLaunch
from tests.vllm.block_drafts import (
    LEAST,
    LOGIT_TOLERANCE,
    NUM_TOKENS,
    assert_the_recipe_drafts,
    assert_zeros_change_tokens_or_drafts,
    compare_blocks,
    drafts_of,
    engine_as_published,
)
from tests.vllm.conftest import FLOAT32, RAW, TINY, Engine, tiny_checkpoint
from tests.vllm.near_markov import write_near_markov
from tests.vllm.oracle import dense, prompt_of
from tests.vllm.oracle_block_draft import BlockDraftOracle
from tests.vllm.oracle_deepseek_v4 import assert_matches, oracle_logits, oracle_model

pytestmark = pytest.mark.vllm

COUNT = 5
WORDS = (
    *("recipe=deepseek_v4_a3_dspark", "attention=dsa", "quant=none"),
    *("checkpoint.variant=bf16_dspark", *FLOAT32, RAW, f"drafter.num_draft_tokens={COUNT}"),
    *("cache.precision=float", "cache.prefix_caching=false", "scheduler.async_scheduling=false"),
)
PUBLISHED = ("recipe=deepseek_v4_a3_dspark", RAW, "scheduler.max_num_seqs=2")

PROMPTS = [prompt_of(length, seed=length) for length in (40, 150)]
NUM_COMPARED = 60


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


@pytest.fixture(scope="module")
def as_published(
    engine_of: Callable[..., Any], plan: Callable[..., PlannedLaunch], scratch: Path
) -> Iterator[Engine]:
    """The recipe's own dtypes, int8 weights and indexer, graphs and caches: fewer requests."""
    with engine_as_published(engine_of, plan, scratch / "published", *PUBLISHED) as engine:
        yield engine


def test_drafts_change_no_token(drafting: Engine, checkpoint: Path, scratch: Path):
    answers = drafting.generate(PROMPTS, max_tokens=NUM_TOKENS)
    accepted, rejected = drafts_of(drafting)
    assert min(accepted, rejected) >= LEAST
    drafting.record_calls()
    (receipt,) = [item for item in drafting.receipts() if item.effective is not None]
    assert receipt.drafts.proposed == accepted + rejected
    assert sum(receipt.drafts.accepted) == accepted
    assert len(receipt.drafts.accepted) == COUNT
    assert receipt.drafts.accepted[1] > 0
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        # What is equal to the greedy choice of transformers is equal to that without drafts.
        expected = oracle_logits(
            checkpoint, prompt, answer["tokens"], rounding="float", scratch=scratch
        )
        assert answer["tokens"] == expected.argmax(-1).tolist()
        actual = dense(answer["logits"], expected.shape[-1])
        assert (actual - expected).abs().max().item() < LOGIT_TOLERANCE


def test_draft_logits(drafting: Engine, checkpoint: Path, scratch: Path):
    prompt = prompt_of(140, seed=7)
    drafting.record_draft_logits()
    (answer,) = drafting.generate([prompt], max_tokens=NUM_COMPARED, logits=False)
    rounds = drafting.take_draft_logits()
    oracle = BlockDraftOracle(oracle_model(checkpoint, "float", scratch), checkpoint)
    tokens = prompt + answer["tokens"]
    compare_blocks(oracle, oracle.context(tokens), tokens, len(prompt), rounds)


def test_the_recipe_drafts_with_nothing_relaxed_but_sizes(as_published: Engine):
    assert_the_recipe_drafts(as_published)


def test_zeroing_any_binding_changes_tokens_or_drafts(as_published: Engine):
    assert_zeros_change_tokens_or_drafts(as_published, seed=901)


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
