"""DeepSeek-V4 from the published float8 and float4 weights, through A5's own recipe.

Weights are opened by transformers' reader of the format. Where the engine rounds, the oracle rounds
the same numbers after it has found its own equal (`oracle_a5.following`); a long generation is
compared without that, on a model whose best token wins by more than the rest can move.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ascend_recipes.plan import PlannedLaunch
from tests.vllm.conftest import FLOAT32, RAW, TINY, Engine, tiny_checkpoint
from tests.vllm.near_markov import write_near_markov
from tests.vllm.oracle import prompt_of, read_tensors
from tests.vllm.oracle_a5 import a5_logits, difference, following
from tests.vllm.oracle_a5_draft import NativeDraftOracle
from tests.vllm.origins import assert_classes_are_ours
from tests.vllm.zeroing import REFUSED_AS_ZEROS, effects_of_zeros

pytestmark = pytest.mark.vllm

RECIPE = "recipe=deepseek_v4_a5"
DRAFTS = 3
WORDS = (RECIPE, *FLOAT32, RAW, f"drafter.num_draft_tokens={DRAFTS}", "graph=none")

NAMES = Path(__file__).with_name("deepseek_v4_native_names.txt")
TOLERANCE = 1e-3
DRAFT_TOLERANCE = 1e-4
NUM_GREEDY = 200
DRAFTED = ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")
"""vLLM's counters of what was proposed, and what of it was accepted."""

FORMAT = {
    *("mx_quant", "mx_matmul", "grouped_mx_projection"),
    *("grouped_mx_w4a8_matmul", "swiglu_mx_quant"),
}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


@pytest.fixture(scope="module")
def engine(
    engine_of: Callable[..., Any], plan: Callable[..., PlannedLaunch], scratch: Path
) -> Iterator[Engine]:
    """The recipe's formats, numbers in float32, the next token mostly a function of the last."""
    source = tiny_checkpoint(plan(*TINY, *WORDS))
    checkpoint = write_near_markov(source, scratch / "near_markov", gain=6.0)
    with engine_of(*WORDS, f"checkpoint.path={checkpoint}") as host:
        yield host


@pytest.fixture(scope="module")
def recording(engine: Engine) -> Engine:
    """As `engine`, whose logits of drafts can be taken."""
    engine.record_draft_logits()
    return engine


@pytest.fixture(scope="module")
def as_published(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """The recipe's own dtypes, drafter, graphs and caches: only sizes are relaxed."""
    with engine_of(RECIPE, RAW) as host:
        yield host


def checkpoint_of(engine: Engine) -> Path:
    return Path(engine.planned.plan.model.checkpoint)


def test_tensors_are_named_and_stored_as_published(plan: Callable[..., PlannedLaunch]):
    lines = NAMES.read_text(encoding="utf-8").splitlines()
    published = dict(line.split() for line in lines if not line.startswith("#"))
    tensors = read_tensors(tiny_checkpoint(plan(*TINY, RECIPE)), "")
    stored = {
        re.sub(r"experts\.\d+", "experts.E", re.sub(r"(layers|mtp)\.\d+", r"\1.N", name)): str(
            tensor.dtype
        ).removeprefix("torch.")
        for name, tensor in tensors.items()
    }
    assert stored == published


@pytest.mark.parametrize("length", [1, 3, 129])
def test_logits(engine: Engine, length: int, scratch: Path):
    prompt = prompt_of(length, seed=length)
    answer, tape = engine.generate_taped(prompt, max_tokens=1)
    with following(tape):
        expected = a5_logits(engine, prompt, answer["tokens"], "native", scratch)
    assert answer["tokens"] == expected.argmax(-1).tolist()
    assert difference(answer, expected).max() < TOLERANCE


@pytest.mark.parametrize(
    "layers",
    [
        ("layers.1.attn.wo_a", "layers.2.attn.wo_a"),
        ("layers.4.ffn.experts.0.w1", "layers.4.ffn.experts.1.w1"),
        ("layers.4.ffn.shared_experts.w1", "layers.4.ffn.shared_experts.w3"),
    ],
)
def test_swapped_scales_are_found(engine: Engine, layers: tuple[str, ...], scratch: Path):
    prompt = prompt_of(8, seed=8)
    answer, tape = engine.generate_taped(prompt, max_tokens=1)
    with following(tape):
        a5_logits(engine, prompt, answer["tokens"], "native", scratch)
    with pytest.raises(AssertionError, match=r"\d\.\w+\.\d: "), following(tape):
        a5_logits(engine, prompt, answer["tokens"], "native", scratch, layers)


@pytest.mark.parametrize("length", [1, 3, 129])
def test_draft_logits(recording: Engine, length: int, scratch: Path):
    prompt = prompt_of(length, seed=length)
    recording.take_draft_logits()
    answer, tapes, passes = recording.generate_drafts_taped(prompt, max_tokens=1)
    actual = torch.tensor(recording.take_draft_logits()).squeeze(1)
    oracle = NativeDraftOracle(checkpoint_of(recording), scratch)
    with following(tapes):
        streams = oracle.target_streams(prompt)
    expected = oracle.drafts_behind(prompt + answer["tokens"], streams, passes)
    assert actual.shape == (DRAFTS, expected.shape[-1])
    assert (actual - expected).abs().max() < DRAFT_TOLERANCE
    assert recording.drafts() == [[expected.argmax(-1).tolist()]]


def test_swapped_scales_of_the_drafter_are_found(recording: Engine, scratch: Path):
    prompt = prompt_of(8, seed=8)
    answer, tapes, passes = recording.generate_drafts_taped(prompt, max_tokens=1)
    wrong = NativeDraftOracle(checkpoint_of(recording), scratch, ("e_proj", "h_proj"))
    with following(tapes):
        streams = wrong.target_streams(prompt)
    with pytest.raises(AssertionError, match=r"\d\.\w+\.\d: "):
        wrong.drafts_behind(prompt + answer["tokens"], streams, passes)


def test_greedy_tokens_with_drafts(engine: Engine, scratch: Path):
    prompt = prompt_of(24, seed=24)
    before = [engine.counter(name) for name in DRAFTED]
    (answer,) = engine.generate([prompt], max_tokens=NUM_GREEDY)
    expected = a5_logits(engine, prompt, answer["tokens"], "native", scratch)
    best = expected.topk(2).values
    # Otherwise equal tokens would be luck.
    assert (best[:, 0] - best[:, 1] > 2 * difference(answer, expected)).all()
    assert answer["tokens"] == expected.argmax(-1).tolist()
    assert len(set(answer["tokens"])) > NUM_GREEDY // 4
    proposed, accepted = (
        engine.counter(name) - count for name, count in zip(DRAFTED, before, strict=True)
    )
    assert min(accepted, proposed - accepted) >= 50


def test_layers_and_experts_are_ours(as_published: Engine):
    assert_classes_are_ours(as_published)
    (receipt,) = [item for item in as_published.receipts() if item.effective is not None]
    assert receipt.effective.quantization == "deepseek_v4_fp8"
    assert "ascend_recipes.moe.microscaled:MicroscaledExperts" in receipt.effective.layer_classes
    assert set(receipt.bindings) >= FORMAT
    assert {"grouped_projection", "grouped_matmul"}.isdisjoint(receipt.bindings)


def test_recipe_runs_with_nothing_relaxed_but_sizes(as_published: Engine):
    assert as_published.planned.plan.relaxed == ("shape.small",)
    prompts = [prompt_of(length, seed=length) for length in (3, 60, 129)]
    first = as_published.generate(prompts, max_tokens=8)
    again = as_published.generate(prompts, max_tokens=8)
    assert [answer["tokens"] for answer in first] == [answer["tokens"] for answer in again]
    assert as_published.counter("vllm:spec_decode_num_draft_tokens") > 0
    assert sum(as_published.replay_counts().values()) > 0


def test_every_planned_binding_is_called(as_published: Engine):
    as_published.generate([prompt_of(40, seed=1)], max_tokens=3, temperature=1.0, top_k=5)
    (calls,) = as_published.record_calls()
    assert set(calls) == set(as_published.planned.plan.operations)
    assert [name for name, count in calls.items() if count == 0] == []


def test_zeroing_any_binding_changes_the_tokens(as_published: Engine):
    # Longer than what the indexer selects, so that its choice matters.
    effects = effects_of_zeros(as_published, prompt_of(150, seed=900))
    assert effects.nothing | effects.drafts == set()
    assert effects.refused == REFUSED_AS_ZEROS
