"""Long and shared passes of transformers' DeepSeek-V4, whose indexer rounds what an engine rounded.

Long sequences run over transformers' own cache, the tape cut at the same tokens. Requests that
shared steps are told apart on their tape by the order in which vLLM keeps them.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy
import torch
from torch import Tensor

from tests.vllm.choices import RATIO
from tests.vllm.conftest import Engine
from tests.vllm.following import following
from tests.vllm.oracle_deepseek_v4 import CHUNK, oracle_model

KEYS = "write_indexer_keys"
"""All blocks so far are scored, of the rest only what the tokens of a pass brought."""

Tape = dict[str, numpy.ndarray]


@torch.no_grad()
def exact_logits(
    engine: Engine, prompt: list[int], tokens: list[int], tape: Tape, scratch: Path
) -> Tensor:
    """Logits before each generated token, float32 `[tokens, vocabulary]`."""
    model = oracle_model(Path(engine.planned.plan.model.checkpoint), "int8", scratch)
    sequence, rows, cache = prompt + tokens[:-1], [], None
    for first in range(0, len(sequence), CHUNK):
        end = min(first + CHUNK, len(sequence))
        chunk = torch.tensor([sequence[first:end]])
        with following([cut(tape, first, end)]):
            output = model(input_ids=chunk, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0])
    return torch.cat(rows)[len(prompt) - 1 :].float()


def cut(tape: Tape, first: int, end: int) -> Tape:
    """What a pass over some tokens of a request rounds: their queries, and all keys so far."""
    return {
        key: rows[: end // RATIO] if KEYS in key else rows[first:end] for key, rows in tape.items()
    }


def separated(tape: Tape, steps: list[dict[str, tuple[int, bool]]]) -> list[Tape]:
    """A tape for each request, in the order in which they came.

    Args:
        tape: of all requests together.
        steps: `step_trace` of the same run.
    """
    parts: dict[str, dict[str, list[numpy.ndarray]]] = {}
    done: dict[str, int] = defaultdict(int)
    places = dict.fromkeys(tape, 0)
    for batch in batches(steps):
        for name, count in batch:
            begin, end = done[name], done[name] + count
            done[name] = end
            own = parts.setdefault(name, {key: [] for key in tape})
            for key, rows in tape.items():
                taken = end // RATIO - begin // RATIO if KEYS in key else count
                own[key].append(rows[places[key] : places[key] + taken])
                places[key] += taken
    assert places == {key: len(rows) for key, rows in tape.items()}
    return [{key: numpy.concatenate(rows) for key, rows in own.items()} for own in parts.values()]


def batches(steps: list[dict[str, tuple[int, bool]]]) -> Iterator[list[tuple[str, int]]]:
    """Requests of each step with their tokens, in the order of their rows.

    New ones come last; into the place of one that is gone moves the last.
    """
    order: list[str] = []
    for step in steps:
        gone = [index for index, name in enumerate(order) if name not in step]
        for index in gone:
            while order and order[-1] not in step:
                order.pop()
            if index < len(order):
                order[index] = order.pop()
        order += [name for name in step if name not in order]
        yield [(name, step[name][0]) for name in order]
