"""DeepSeek-V4's block drafter on A5: over float weights, and as its checkpoint is published.

How many rows share a product moves the last bits of each, so that a float8 key of a step with
drafts can round otherwise than that of a single token: tokens of rounded caches are equal to those
without drafts where the same numbers are rounded (`block_drafts.standing`), and of float caches as
they are.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ascend_recipes.plan import PlannedLaunch
from tests.vllm.block_drafts import (
    LEAST,
    LOGIT_TOLERANCE,
    NUM_TOKENS,
    ONLY_DRAFTS,
    assert_draft_logits,
    assert_drafts_change_no_token,
    drafts_of,
    standing,
)
from tests.vllm.conftest import FLOAT32, RAW, TINY, Engine, tiny_checkpoint
from tests.vllm.following import following
from tests.vllm.near_markov import write_near_markov
from tests.vllm.oracle import prompt_of
from tests.vllm.oracle_a5 import a5_logits, difference
from tests.vllm.zeroing import REFUSED_AS_ZEROS, effects_of_zeros

pytestmark = pytest.mark.vllm

RECIPE = "recipe=deepseek_v4_a5_dspark"
FLOATS = (
    *(RECIPE, "quant=none", "checkpoint.variant=bf16_dspark", *FLOAT32, RAW),
    *("drafter.num_draft_tokens=5", "graph=none", "cache.prefix_caching=false"),
    "scheduler.async_scheduling=false",
)
PUBLISHED = (RECIPE, RAW, "scheduler.max_num_seqs=2")

GAIN = 2.0
"""Some drafts are accepted, and what attention and experts add still decides most tokens."""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks_a5")


@pytest.fixture(scope="module")
def checkpoint(plan: Callable[..., PlannedLaunch], scratch: Path) -> Path:
    return write_near_markov(tiny_checkpoint(plan(*TINY, *FLOATS)), scratch / "near_markov")


@pytest.fixture(scope="module")
def floats(engine_of: Callable[..., Any], checkpoint: Path) -> Iterator[Engine]:
    """A5's operators over float caches and a float indexer."""
    with engine_of(*FLOATS, "cache.precision=float", f"checkpoint.path={checkpoint}") as engine:
        yield engine


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
    source = tiny_checkpoint(plan(*TINY, *PUBLISHED))
    checkpoint = write_near_markov(source, scratch / "published", GAIN)
    with engine_of(*PUBLISHED, f"checkpoint.path={checkpoint}") as engine:
        yield engine


def test_drafts_change_no_token(floats: Engine, checkpoint: Path, scratch: Path):
    assert_drafts_change_no_token(floats, checkpoint, scratch, lengths=(150,))


def test_draft_logits(floats: Engine, checkpoint: Path, scratch: Path):
    assert_draft_logits(floats, checkpoint, scratch)


def test_drafts_change_no_token_of_rounded_caches(rounded: Engine, scratch: Path):
    prompt = prompt_of(40, seed=40)
    answer, tapes = rounded.generate_taped(prompt, max_tokens=NUM_TOKENS)
    assert min(drafts_of(rounded)) >= LEAST
    with following(standing(tapes, rounded, prompt, answer)):
        expected = a5_logits(rounded, prompt, answer["tokens"], "cache", scratch)
    assert answer["tokens"] == expected.argmax(-1).tolist()
    assert difference(answer, expected).max() < LOGIT_TOLERANCE


def test_the_recipe_drafts_with_nothing_relaxed_but_sizes(as_published: Engine):
    plan = as_published.planned.plan
    assert plan.relaxed == ("shape.small",)
    assert (plan.drafter.kind, plan.engine["dtype"]) == ("dspark", "bfloat16")
    prompts = [prompt_of(length, seed=length) for length in (3, 60)]
    first = as_published.generate(prompts, max_tokens=12, logits=False)
    again = as_published.generate(prompts, max_tokens=12, logits=False)
    assert [answer["tokens"] for answer in first] == [answer["tokens"] for answer in again]
    assert min(drafts_of(as_published)) > 0
    assert sum(as_published.replay_counts().values()) > 0


def test_every_planned_binding_is_called(as_published: Engine):
    as_published.generate([prompt_of(5, seed=1)], max_tokens=2, temperature=1.0, top_k=5)
    (calls,) = as_published.record_calls()
    assert set(calls) == set(as_published.planned.plan.operations)
    assert {name for name, count in calls.items() if count == 0} == set()


def test_zeroing_any_binding_changes_tokens_or_drafts(as_published: Engine):
    # Longer than what the indexer selects, and not what embeddings alone decide.
    effects = effects_of_zeros(as_published, prompt_of(150, seed=905))
    assert effects.nothing == set()
    assert effects.drafts == ONLY_DRAFTS
    assert effects.refused == REFUSED_AS_ZEROS
