"""DeepSeek-V4's block drafter on A5: over float weights, and as its checkpoint is published.

How many rows share a product moves the last bits of each, so that a float8 key of a step with
drafts can round otherwise than that of a single token. Tokens are those without drafts where the
same numbers are rounded: the oracle, which knows no drafts, finds every number of the engine equal
to its own and then rounds the engine's.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from tests.vllm.block_tapes import keys_of_blocks, spans_of, standing
from tests.vllm.conftest import FLOAT32, RAW, TINY, Engine, tiny_checkpoint
from tests.vllm.following import following
from tests.vllm.near_markov import write_near_markov
from tests.vllm.oracle import prompt_of
from tests.vllm.oracle_a5 import a5_logits, a5_model, difference
from tests.vllm.oracle_block_draft import BlockDraftOracle

pytestmark = pytest.mark.vllm

RECIPE = "recipe=deepseek_v4_a5_dspark"
FLOATS = (
    *(RECIPE, "quant=none", "checkpoint.variant=bf16_dspark", *FLOAT32, RAW),
    *("drafter.num_draft_tokens=5", "graph=none", "cache.prefix_caching=false"),
    "scheduler.async_scheduling=false",
)
NUM_BLOCKS = 25
"""Blocks whose logits are compared; each costs the oracle a pass."""

PUBLISHED = (RECIPE, RAW, "scheduler.max_num_seqs=2")


@dataclass(frozen=True)
class Taped:
    """A long generation, and what its engine rounded."""

    prompt: list[int]
    answer: dict[str, Any]
    tapes: list[dict[str, Any]]
    """Of the model, of tokens that stand."""
    spans: list[range]
    """Positions of each step."""
    writes: list[Any]
    """Of the drafter, by step."""
    draft_logits: list[Any]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks_a5")


@pytest.fixture(scope="module")
def checkpoint(plan: Callable[..., PlannedLaunch], scratch: Path) -> Path:
    return write_near_markov(tiny_checkpoint(plan(*TINY, *FLOATS)), scratch / "near_markov")


@pytest.fixture(scope="module")
def rounded(engine_of: Callable[..., Any], checkpoint: Path) -> Iterator[Engine]:
    """float32 but for caches and indexer."""
    with engine_of(*FLOATS, f"checkpoint.path={checkpoint}") as engine:
        yield engine


@pytest.fixture(scope="module")
def as_published(
    engine_of: Callable[..., Any], plan: Callable[..., PlannedLaunch], scratch: Path
) -> Iterator[Engine]:
    """The recipe's own dtypes, float8 and float4 weights, graphs and caches: fewer requests."""
    with engine_as_published(engine_of, plan, scratch / "published", *PUBLISHED) as engine:
        yield engine


@pytest.fixture(scope="module")
def taped(rounded: Engine, checkpoint: Path) -> Taped:
    prompt = prompt_of(40, seed=40)
    rounded.record_draft_logits()
    answer, tapes, writes = rounded.generate_blocks_taped(prompt, max_tokens=NUM_TOKENS)
    tokens = prompt + answer["tokens"]
    spans = spans_of(rounded, len(prompt), tokens)
    config = json.loads((checkpoint / "config.json").read_text())
    tapes = standing(tapes, spans, config["compress_ratios"], len(tokens) - 1)
    return Taped(prompt, answer, tapes, spans, writes, rounded.take_draft_logits())


def test_drafts_change_no_token(rounded: Engine, taped: Taped, scratch: Path):
    assert min(drafts_of(rounded)) >= LEAST
    with following(taped.tapes):
        expected = a5_logits(rounded, taped.prompt, taped.answer["tokens"], "cache", scratch)
    assert taped.answer["tokens"] == expected.argmax(-1).tolist()
    assert difference(taped.answer, expected).max() < LOGIT_TOLERANCE


def test_draft_logits(taped: Taped, checkpoint: Path, scratch: Path):
    oracle = BlockDraftOracle(a5_model(checkpoint, "cache", scratch), checkpoint)
    tokens = taped.prompt + taped.answer["tokens"]
    with following(taped.tapes):
        context = oracle.context(tokens[:-1])
    keys = keys_of_blocks(taped.writes, taped.spans, oracle.number, oracle.window)
    rounds = taped.draft_logits[:NUM_BLOCKS]
    compare_blocks(oracle, context, tokens, len(taped.prompt), rounds, keys)


def test_the_recipe_drafts_with_nothing_relaxed_but_sizes(as_published: Engine):
    assert_the_recipe_drafts(as_published)


def test_zeroing_any_binding_changes_tokens_or_drafts(as_published: Engine):
    assert_zeros_change_tokens_or_drafts(as_published, seed=910)
