"""DeepSeek-V4's published, W4A8 and W8A8 weights on two ranks, in processes of their own.

Experts lie on one rank each, as in every recipe, or each rank has a part of every expert. The
oracle follows the tapes of both ranks (`tests.vllm.following`): what they round must together be
what the whole model rounds, and logits the same. A long generation is compared without that, on a
model whose best token wins by more than the rest can move.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from ascend_recipes.plan import PlannedLaunch
from tests.vllm.conftest import FLOAT32, RAW, TINY, Engine, tiny_checkpoint
from tests.vllm.following import following
from tests.vllm.near_markov import write_near_markov
from tests.vllm.oracle import prompt_of
from tests.vllm.oracle_a5 import a5_logits, difference
from tests.vllm.oracle_ranks import RANKS, logits_of_ranks
from tests.vllm.taping import FLOAT8, MODELSLIM

pytestmark = pytest.mark.vllm

NUM_GREEDY = 64
EXPERTS, INNER = 16, 128
"""Of the tiny model."""


@dataclass(frozen=True)
class Format:
    """Weights of a checkpoint, and who runs them."""

    recipe: str
    experts: str
    rounding: tuple[str, ...]
    tolerance: float


FORMATS = {
    "published": Format("deepseek_v4_pro_a5_2n", "microscaled:MicroscaledExperts", FLOAT8, 1e-3),
    "w4a8": Format("deepseek_v4_pro_a3_2n", "experts:Int4Experts", MODELSLIM, 2e-3),
    "w8a8": Format("deepseek_v4_a3", "experts:Int8Experts", MODELSLIM, 2e-3),
}
SPLITS = {"by_expert": (), "in_parts": ("parallel.ep=false",)}
CASES = [
    ("published", "by_expert"),
    ("w4a8", "by_expert"),
    ("w4a8", "in_parts"),
    ("w8a8", "by_expert"),
]
"""What recipes do, and parts of experts where a bias is split too; how weights of the other pairs
are split, `test_split_weights` holds."""


@dataclass(frozen=True)
class Case:
    format: str
    split: str
    engine: Engine
    scratch: Path

    def logits(self, prompt: list[int], tokens: list[int]) -> Tensor:
        """Logits of the oracle before each generated token."""
        if self.format == "published":
            return a5_logits(self.engine, prompt, tokens, "native", self.scratch)
        return logits_of_ranks(self.engine, prompt, tokens, self.scratch)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two_ranks")


@pytest.fixture(
    scope="module",
    params=CASES,
    ids=["-".join(case) for case in CASES],
)
def case(
    request: pytest.FixtureRequest,
    engine_of: Callable[..., Any],
    plan: Callable[..., PlannedLaunch],
    scratch: Path,
) -> Iterator[Case]:
    """The recipe's formats, caches, drafter and graphs; the next token follows from the last."""
    name, split = request.param
    words = (f"recipe={FORMATS[name].recipe}", *FLOAT32, RAW)
    checkpoint = scratch / name
    if not checkpoint.exists():
        write_near_markov(tiny_checkpoint(plan(*TINY, *words)), checkpoint, gain=10.0)
    words += (*SPLITS[split], f"parallel.tp={RANKS}", f"checkpoint.path={checkpoint}")
    with engine_of(*words, core_process=True) as engine:
        yield Case(name, split, engine, scratch)


@pytest.mark.parametrize("length", [1, 129])
def test_logits(case: Case, length: int):
    prompt, facts = prompt_of(length, seed=length), FORMATS[case.format]
    answer, tapes = case.engine.generate_taped(prompt, facts.rounding, max_tokens=1)
    assert len(tapes) == RANKS
    with following(tapes):
        expected = case.logits(prompt, answer["tokens"])
    assert answer["tokens"] == expected.argmax(-1).tolist()
    assert difference(answer, expected).max() < facts.tolerance


def test_greedy_tokens(case: Case):
    prompt = prompt_of(24, seed=24)
    (answer,) = case.engine.generate([prompt], max_tokens=NUM_GREEDY)
    expected = case.logits(prompt, answer["tokens"])
    best = expected.topk(2).values
    # Otherwise equal tokens would be luck.
    assert (best[:, 0] - best[:, 1] > 2 * difference(answer, expected)).all()
    assert answer["tokens"] == expected.argmax(-1).tolist()
    assert len(set(answer["tokens"])) > NUM_GREEDY // 4


def test_both_ranks_have_their_part_and_call_every_binding(case: Case):
    if case.split == "by_expert":
        own = EXPERTS // RANKS
        expected = [[[own * rank, own, INNER]] for rank in range(RANKS)]
    else:
        expected = [[[0, EXPERTS, INNER // RANKS]]] * RANKS
    assert case.engine.expert_shares() == expected
    for calls in case.engine.record_calls():
        assert set(calls) == set(case.engine.planned.plan.operations)
        assert [name for name, count in calls.items() if count == 0] == []
    receipts = [item for item in case.engine.receipts() if item.effective is not None]
    assert sorted(item.rank for item in receipts) == list(range(RANKS))
    experts = f"ascend_recipes.moe.{FORMATS[case.format].experts}"
    layers = case.engine.planned.resolved.config["num_hidden_layers"]
    assert [item.effective.layer_classes[experts] for item in receipts] == [layers] * RANKS
