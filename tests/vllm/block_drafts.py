"""What a block drafter must show, whatever the hardware of the plan."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.vllm.conftest import Engine
from tests.vllm.following import following
from tests.vllm.oracle import dense, prompt_of
from tests.vllm.oracle_block_draft import BlockDraftOracle
from tests.vllm.oracle_deepseek_v4 import oracle_logits, oracle_model

NUM_TOKENS = 200
NUM_COMPARED = 60
LEAST = 50
"""Drafts of each kind, accepted and rejected, that a comparison must have seen."""

LOGIT_TOLERANCE = 1e-3
DRAFT_TOLERANCE = 1e-4

ONLY_DRAFTS = {"draft_block_attention"}
"""Operations whose zeros change no token: the drafter alone calls them."""


def drafts_of(engine: Engine) -> tuple[int, int]:
    """Accepted and rejected drafts so far, by vLLM's own counters."""
    proposed = engine.counter("vllm:spec_decode_num_draft_tokens")
    accepted = engine.counter("vllm:spec_decode_num_accepted_tokens")
    return int(accepted), int(proposed - accepted)


def assert_drafts_change_no_token(
    engine: Engine, checkpoint: Path, scratch: Path, lengths: tuple[int, ...] = (5, 40, 150)
) -> None:
    """Tokens and logits of long generations are those of transformers, which knows no drafts.

    What is equal to its greedy choice is equal to what the engine would give without drafts.
    """
    prompts = [prompt_of(length, seed=length) for length in lengths]
    answers = engine.generate(prompts, max_tokens=NUM_TOKENS)
    assert min(drafts_of(engine)) >= LEAST
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = oracle_logits(
            checkpoint, prompt, answer["tokens"], rounding="float", scratch=scratch
        )
        assert answer["tokens"] == expected.argmax(-1).tolist()
        actual = dense(answer["logits"], expected.shape[-1])
        assert (actual - expected).abs().max().item() < LOGIT_TOLERANCE


def assert_draft_logits(engine: Engine, checkpoint: Path, scratch: Path) -> None:
    """Every block's logits are those of a plain module, and so is the next block's place."""
    prompt = prompt_of(140, seed=7)
    engine.record_draft_logits()
    (answer,) = engine.generate([prompt], max_tokens=NUM_COMPARED, logits=False)
    oracle = BlockDraftOracle(oracle_model(checkpoint, "float", scratch), checkpoint)
    tokens = prompt + answer["tokens"]
    compare_blocks(oracle, oracle.context(tokens), tokens, len(prompt), engine.take_draft_logits())


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
