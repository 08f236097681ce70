"""Tapes of requests that are drafted for: rows by position, so that rejected drafts fall away."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy

from tests.vllm.conftest import Engine


def keys_of_blocks(
    rounds: Sequence[Sequence[Any]], spans: Sequence[range], first: int, window: int
) -> Callable[[int, int], dict[str, Any]]:
    """What the drafter wrote of the window before a block and of it, as `compare_blocks` asks.

    Args:
        rounds: what each proposal wrote.
        spans: positions that the target ran over before it.
        first: number of the drafter's first layer.
        window: keys before the block.
    """

    def tape(number: int, known: int) -> dict[str, Any]:
        stages = len(rounds[number]) // 2
        context: list[dict[int, Any]] = [{} for _ in range(stages)]
        # What stands is written after what was rejected in its place.
        for writes, span in zip(rounds[: number + 1], spans, strict=False):
            for stage in range(stages):
                context[stage] |= dict(zip(span, writes[stage], strict=True))
        places = range(max(0, known - window), known)
        return {
            f"{first + stage}.write_latent_rows.0": numpy.concatenate(
                [[context[stage][place] for place in places], rounds[number][stages + stage]]
            )
            for stage in range(stages)
        }

    return tape


def standing(
    tapes: Sequence[dict[str, Any]], spans: Sequence[range], ratios: Sequence[int], length: int
) -> list[dict[str, Any]]:
    """Tapes of a request without what belonged to rejected drafts.

    A rejected draft's row is written again by the token that stands there.

    Args:
        tapes: of every rank.
        spans: `spans_of` the request.
        ratios: compression ratio of each layer.
        length: tokens that the model ran over, which is all but the last.
    """
    return [
        {
            key: _standing_rows(rows, spans, _ratio(key, ratios), length)
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


def _ratio(key: str, ratios: Sequence[int]) -> int:
    """How many tokens a row on the tape stands for; a layer's second rows are compressed ones."""
    layer, call = key.split(".", 1)
    return ratios[int(layer)] if call in ("write_indexer_keys.0", "write_latent_rows.1") else 1


def _standing_rows(rows: Any, spans: Sequence[range], ratio: int, length: int) -> Any:
    places = [place for span in spans for place in span if (place + 1) % ratio == 0]
    assert len(places) == len(rows)
    last = {place: number for number, place in enumerate(places) if place < length}
    return rows[[last[place] for place in sorted(last)]]
