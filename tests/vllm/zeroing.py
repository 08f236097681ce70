"""What becomes of tokens and drafts when one operation of a plan after another gives zeros."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from tests.vllm.conftest import Engine

FIRST = {"max_tokens": 1, "logits": False, "temperature": 1.0, "top_k": 1, "seed": 5}
"""The best token, through what samples: most zeros are seen in it."""
SAMPLED = {**FIRST, "max_tokens": 6}
"""Through what judges drafts by chance too."""
GREEDY = {**SAMPLED, "temperature": 0.0, "top_k": 0}
STYLES = (FIRST, SAMPLED, GREEDY)

REFUSED_AS_ZEROS = {
    "compressor_metadata",
    "lightning_indexer_metadata",
    "moe_init_routing",
    "sparse_attention_metadata",
}
"""Of DeepSeek-V4. What these give is read by another operator, which refuses zeros: rows written
twice, no work."""

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
    """Generate without each operation of the plan until tokens change, and watch the drafts.

    Args:
        engine: its core in the host's process, deterministic.
        prompt: longer than what the indexer selects, if its choice is to matter.
    """

    @cache
    def expected(style: int) -> Outcome:
        return _outcome(engine, prompt, STYLES[style])

    untouched = expected(STYLES.index(SAMPLED))
    found: dict[Effect, set[str]] = {"tokens": set(), "drafts": set(), "nothing": set()}
    found["refused"] = set()
    for name in engine.planned.plan.operations:
        found[_effect(engine, name, prompt, expected)].add(name)
    assert _outcome(engine, prompt, SAMPLED) == untouched
    return Effects(**{effect: frozenset(names) for effect, names in found.items()})


def _outcome(engine: Engine, prompt: list[int], style: Mapping[str, Any]) -> Outcome:
    (answer,) = engine.generate([prompt], **style)
    return answer["tokens"], engine.drafts()


def _effect(
    engine: Engine, name: str, prompt: list[int], expected: Callable[[int], Outcome]
) -> Effect:
    """Ways to generate are tried until one changes the tokens."""
    effect: Effect = "nothing"
    for number, style in enumerate(STYLES):
        tokens, drafts = expected(number)
        answers = engine.generate_without(name, [prompt], **style)
        if answers is None:
            return "refused"
        if answers[0]["tokens"] != tokens:
            return "tokens"
        if engine.drafts() != drafts:
            effect = "drafts"
    return effect
