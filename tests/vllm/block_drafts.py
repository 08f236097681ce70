"""What a block drafter must show, whatever the hardware of the plan."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.vllm.conftest import Engine
from tests.vllm.oracle import dense, prompt_of
from tests.vllm.oracle_block_draft import BlockDraftOracle
from tests.vllm.oracle_deepseek_v4 import oracle_logits

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
    rounds = [torch.tensor(rows) for rows in engine.take_draft_logits()]
    count = engine.planned.plan.drafter.num_draft_tokens
    oracle = BlockDraftOracle(checkpoint, scratch)
    tokens, known = prompt + answer["tokens"], len(prompt)
    context = oracle.context(tokens)
    compared = rejected = 0
    for logits in rounds:
        if known >= len(tokens):
            break
        expected, drafts = oracle.drafts_after(context[:known], tokens[known], count)
        assert logits.shape == expected.shape
        assert (logits - expected).abs().max().item() < DRAFT_TOLERANCE
        following = tokens[known + 1 : known + 1 + count]
        right = torch.tensor(following) == torch.tensor(drafts[: len(following)])
        accepted = int(right.long().cumprod(0).sum())
        rejected += len(following) - accepted
        # Another choice of drafts than the oracle's would put the next round elsewhere.
        known += accepted + 1
        compared += 1
    assert known >= len(tokens)
    assert compared > 10
    assert rejected > 0


def standing(
    tapes: Sequence[dict[str, Any]], engine: Engine, prompt: list[int], answer: dict[str, Any]
) -> list[dict[str, Any]]:
    """Tapes of the last `generate_taped` without what belonged to rejected drafts.

    A rejected draft's row is written again by the token that stands there.
    """
    tokens = prompt + answer["tokens"]
    spans = spans_of(engine, len(prompt), tokens)
    ratios = json.loads((Path(engine.planned.plan.model.checkpoint) / "config.json").read_text())[
        "compress_ratios"
    ]
    return [
        {
            key: _standing_rows(rows, spans, _ratio(key, ratios), len(tokens) - 1)
            for key, rows in tape.items()
        }
        for tape in tapes
    ]


def spans_of(engine: Engine, num_prompt: int, tokens: list[int]) -> list[range]:
    """Positions that each step of the only request ran over, drafts included."""
    spans, start = [], 0
    for step, drafts in zip(engine.step_trace(), [[[]], *engine.drafts()], strict=False):
        ((count, _),) = step.values()
        spans.append(range(start, start + count))
        if start + count <= num_prompt:
            start += count
            continue
        right = [
            draft == token for draft, token in zip(drafts[0], tokens[start + 1 :], strict=False)
        ]
        accepted = [*right[: count - 1], False].index(False)
        start += 1 + accepted
    return spans


def _ratio(key: str, ratios: list[int]) -> int:
    """How many tokens a row on the tape stands for."""
    layer, operation, call = key.split(".")
    compressed = operation == "write_indexer_keys" or (operation, call) == (
        "write_latent_rows",
        "1",
    )
    return ratios[int(layer)] if compressed else 1


def _standing_rows(rows: Any, spans: list[range], ratio: int, length: int) -> Any:
    places = [place for span in spans for place in span if (place + 1) % ratio == 0]
    assert len(places) == len(rows)
    last = {place: number for number, place in enumerate(places) if place < length}
    return rows[[last[place] for place in sorted(last)]]
