"""Drafts of DeepSeek-V4's MTP layer: how many are accepted, and that they change nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ascend_recipes.plan import PlannedLaunch
from tests.vllm.conftest import FLOAT32, RAW, TINY, Engine, tiny_checkpoint
from tests.vllm.near_markov import write_near_markov
from tests.vllm.oracle import dense, prompt_of, read_tensors
from tests.vllm.oracle_deepseek_v4 import oracle_logits, oracle_model, stretched_windows
from tests.vllm.oracle_draft import DraftOracle

pytestmark = pytest.mark.vllm

WORDS = (
    *("recipe=deepseek_v4_a3", "quant=none", "checkpoint.variant=bf16", *FLOAT32, RAW),
    *("cache.precision=float", "cache.prefix_caching=false", "scheduler.async_scheduling=false"),
)
PROMPTS = [prompt_of(length, seed=length) for length in (5, 40, 150)]
NUM_TOKENS = 200
NUM_COMPARED = 60
"""Tokens over which draft logits are compared; every one costs the oracle a pass."""

LOGIT_TOLERANCE = 1e-3
DRAFT_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module")
def checkpoint(plan: Callable[..., PlannedLaunch], scratch: Path) -> Path:
    return write_near_markov(tiny_checkpoint(plan(*TINY, *WORDS)), scratch / "near_markov")


@pytest.fixture(scope="module")
def undrafted(engine_of: Callable[..., Any], checkpoint: Path) -> Iterator[list[list[int]]]:
    """Tokens of the prompts without a drafter."""
    with engine_of(*WORDS, "drafter=none", f"checkpoint.path={checkpoint}") as engine:
        answers = engine.generate(PROMPTS, max_tokens=NUM_TOKENS, logits=False)
        yield [answer["tokens"] for answer in answers]


@pytest.fixture(scope="module", params=[1, 3])
def drafting(
    engine_of: Callable[..., Any], checkpoint: Path, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    words = (f"drafter.num_draft_tokens={request.param}", f"checkpoint.path={checkpoint}")
    with engine_of(*WORDS, *words) as engine:
        yield engine


def test_drafts_change_no_token(
    drafting: Engine, undrafted: list[list[int]], checkpoint: Path, scratch: Path
):
    answers = drafting.generate(PROMPTS, max_tokens=NUM_TOKENS)
    assert [answer["tokens"] for answer in answers] == undrafted
    proposed = drafting.counter("vllm:spec_decode_num_draft_tokens")
    accepted = drafting.counter("vllm:spec_decode_num_accepted_tokens")
    assert accepted >= 50
    assert proposed - accepted >= 50
    drafting.record_calls()
    (receipt,) = [item for item in drafting.receipts() if item.effective is not None]
    assert (receipt.drafts.proposed, sum(receipt.drafts.accepted)) == (proposed, accepted)
    assert sorted(receipt.drafts.accepted, reverse=True) == list(receipt.drafts.accepted)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
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
    rows = torch.tensor(drafting.take_draft_logits()).squeeze(1)
    count = drafting.planned.plan.drafter.num_draft_tokens
    target = oracle_model(checkpoint, "float", scratch)
    oracle = DraftOracle(target, read_tensors(checkpoint, "mtp.0."))
    tokens, position, rejected = prompt + answer["tokens"], len(prompt) - 1, 0
    streams = oracle.target_streams(tokens)
    for drafts in rows.view(-1, count, rows.shape[-1]):
        if position + 2 > len(tokens):
            break
        expected = oracle.drafts_after(tokens, streams, position, count)
        assert (drafts - expected).abs().max().item() < DRAFT_TOLERANCE
        following = tokens[position + 2 : position + 2 + count]
        right = (torch.tensor(following) == drafts.argmax(-1)[: len(following)]).long()
        accepted = int(right.cumprod(0).sum())
        rejected += len(following) - accepted
        position += accepted + 1
    assert position + 2 > len(tokens)
    assert rejected > 0
    # As vllm-ascend rotates them, drafts would be others.
    first = len(prompt) - 1
    with stretched_windows(oracle.target):
        stretched = oracle.drafts_after(tokens, streams, first, count)
    assert (rows[:count] - stretched).abs().max().item() > 10 * DRAFT_TOLERANCE
