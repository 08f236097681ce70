"""What a block drafter must show, whatever the hardware of the plan."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ascend_recipes.plan import PlannedLaunch
from tests.vllm.conftest import TINY, Engine, tiny_checkpoint
from tests.vllm.following import following
from tests.vllm.near_markov import write_near_markov
from tests.vllm.oracle import prompt_of
from tests.vllm.oracle_block_draft import BlockDraftOracle
from tests.vllm.zeroing import REFUSED_AS_ZEROS, effects_of_zeros

NUM_TOKENS = 200
LEAST = 50
"""Drafts of each kind, accepted and rejected, that a comparison must have seen."""

GAIN = 2.0
"""Of embeddings in checkpoints of recipes as they are: some drafts are accepted, and what attention
and experts add still decides most tokens."""

LOGIT_TOLERANCE = 1e-3
DRAFT_TOLERANCE = 1e-4

ONLY_DRAFTS = {"draft_block_attention"}
"""Operations whose zeros change no token: the drafter alone calls them."""


def drafts_of(engine: Engine) -> tuple[int, int]:
    """Accepted and rejected drafts so far, by vLLM's own counters."""
    proposed = engine.counter("vllm:spec_decode_num_draft_tokens")
    accepted = engine.counter("vllm:spec_decode_num_accepted_tokens")
    return int(accepted), int(proposed - accepted)


@contextmanager
def engine_as_published(
    engine_of: Callable[..., Any],
    plan: Callable[..., PlannedLaunch],
    folder: Path,
    *words: str,
) -> Iterator[Engine]:
    """A recipe as it is, over a checkpoint whose drafter is sometimes right.

    Args:
        engine_of: the fixture.
        plan: the fixture.
        folder: where the checkpoint is written.
        words: the recipe and its overrides.
    """
    checkpoint = write_near_markov(tiny_checkpoint(plan(*TINY, *words)), folder, GAIN)
    with engine_of(*words, f"checkpoint.path={checkpoint}") as engine:
        yield engine


def assert_the_recipe_drafts(engine: Engine) -> None:
    """Nothing but sizes is relaxed, and what runs can be repeated and is drafted for.

    Args:
        engine: as `engine_as_published` starts it.
    """
    plan = engine.planned.plan
    assert plan.relaxed == ("shape.small",)
    assert (plan.drafter.kind, plan.engine["dtype"]) == ("dspark", "bfloat16")
    prompts = [prompt_of(length, seed=length) for length in (3, 60)]
    first = engine.generate(prompts, max_tokens=12, logits=False)
    again = engine.generate(prompts, max_tokens=12, logits=False)
    assert [answer["tokens"] for answer in first] == [answer["tokens"] for answer in again]
    assert min(drafts_of(engine)) > 0
    assert sum(engine.replay_counts().values()) > 0
    engine.generate([prompt_of(5, seed=1)], max_tokens=2, temperature=1.0, top_k=5)
    (calls,) = engine.record_calls()
    assert set(calls) == set(plan.operations)
    assert {name for name, count in calls.items() if count == 0} == set()


def assert_zeros_change_tokens_or_drafts(engine: Engine, seed: int) -> None:
    """Every operation of the plan changes tokens; one changes drafts only, some refuse zeros.

    Args:
        engine: as for `assert_the_recipe_drafts`.
        seed: of a prompt whose answer is not what embeddings alone decide.
    """
    # Longer than what the indexer selects.
    effects = effects_of_zeros(engine, prompt_of(150, seed=seed))
    assert effects.nothing == set()
    assert effects.drafts == ONLY_DRAFTS
    assert effects.refused == REFUSED_AS_ZEROS


def compare_blocks(
    oracle: BlockDraftOracle,
    context_SH: Tensor,
    tokens: list[int],
    known: int,
    rounds: Sequence[Any],
    tape_of: Callable[[int, int], dict[str, Any]] | None = None,
) -> None:
    """Compare blocks in turn; each begins behind the drafts that the oracle sees accepted.

    Args:
        oracle: the plain module.
        context_SH: its context of the tokens.
        tokens: prompt and answer.
        known: length of the prompt.
        rounds: logits of each block.
        tape_of: keys of a block and its context, by number of the block and place.
    """
    compared = rejected = 0
    for number, rows in enumerate(rounds):
        if known >= len(tokens):
            break
        logits = torch.tensor(rows)
        with following([tape_of(number, known)]) if tape_of else nullcontext():
            expected, drafts = oracle.drafts_after(context_SH[:known], tokens[known], len(logits))
        assert (logits - expected).abs().max().item() < DRAFT_TOLERANCE
        following_tokens = tokens[known + 1 : known + 1 + len(drafts)]
        right = [draft == token for draft, token in zip(drafts, following_tokens, strict=False)]
        accepted = [*right, False].index(False)
        rejected += len(right) - accepted
        # Another choice of drafts than the oracle's would put the next round elsewhere.
        known += accepted + 1
        compared += 1
    assert compared > 10
    assert compared == len(rounds) or known >= len(tokens)
    assert rejected > 0
