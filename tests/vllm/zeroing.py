"""What becomes of tokens and drafts when one operation of a plan after another gives zeros."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tests.vllm.conftest import Engine

GREEDY = {"max_tokens": 6, "logits": False}
SAMPLED = {**GREEDY, "temperature": 1.0, "top_k": 1, "seed": 5}
"""The best tokens again, through what samples and through what judges drafts by chance."""

Effect = Literal["tokens", "drafts", "nothing", "refused"]
Outcome = tuple[list[int], list[list[list[int]]]]
"""Tokens, and what was proposed at each step."""


@dataclass(frozen=True)
class Effects:
    """Operations of a plan by what their zeros change; each is in one set."""

    tokens: frozenset[str]
    drafts: frozenset[str]
    """Not the tokens: what only the drafter calls."""
    nothing: frozenset[str]
    refused: frozenset[str]
    """An emulated operator does not take the zeros."""


def effects_of_zeros(engine: Engine, prompt: list[int]) -> Effects:
    """Generate without each operation of the plan, sampled and greedily, and watch the drafts.

    Args:
        engine: its core in the host's process, deterministic.
        prompt: longer than what the indexer selects, if its choice is to matter.
    """
    expected = [(style, _outcome(engine, prompt, style)) for style in (SAMPLED, GREEDY)]
    found: dict[Effect, set[str]] = {"tokens": set(), "drafts": set(), "nothing": set()}
    found["refused"] = set()
    for name in engine.planned.plan.operations:
        found[_effect(engine, name, prompt, expected)].add(name)
    for style, outcome in expected:
        assert _outcome(engine, prompt, style) == outcome
    return Effects(**{effect: frozenset(names) for effect, names in found.items()})


def _outcome(engine: Engine, prompt: list[int], style: Mapping[str, Any]) -> Outcome:
    (answer,) = engine.generate([prompt], **style)
    return answer["tokens"], engine.drafts()


def _effect(
    engine: Engine,
    name: str,
    prompt: list[int],
    expected: list[tuple[Mapping[str, Any], Outcome]],
) -> Effect:
    """Ways of sampling are tried until one changes the tokens."""
    effect: Effect = "nothing"
    for style, (tokens, drafts) in expected:
        answers = engine.generate_without(name, [prompt], **style)
        if answers is None:
            return "refused"
        if answers[0]["tokens"] != tokens:
            return "tokens"
        if engine.drafts() != drafts:
            effect = "drafts"
    return effect
