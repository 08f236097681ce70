"""DeepSeek-V4 in real vLLM on the emulated device, against transformers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.choices import assert_chooses_and_matches
from tests.vllm.conftest import FLOAT32, RAW, Engine
from tests.vllm.oracle import dense, prompt_of
from tests.vllm.oracle_deepseek_v4 import (
    TOLERANCE,
    assert_matches,
    oracle_logits,
    oracle_model,
    stretched_windows,
)
from tests.vllm.origins import assert_classes_are_ours

pytestmark = pytest.mark.vllm

RECIPE = "recipe=deepseek_v4_a3"
UNQUANTIZED = ("quant=none", "checkpoint.variant=bf16")

ROOM = ("scheduler.max_model_len=8192", "cache.memory_bytes=1073741824")
"""For a prefix of 128 blocks."""

LENGTHS = (1, 3, 127, 128, 129, 515, 1500)
MIXED = (5, 300, 17, 129, 1, 400)
SEEDS = {515: 1515}
"""Seeds of prompts whose selected blocks are no near ties; the length itself elsewhere."""


@pytest.fixture(scope="module")
def floats(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """float32 indexer and caches, chunks of 96 tokens, prefix caching."""
    words = (
        *(RECIPE, *UNQUANTIZED, *FLOAT32, RAW, "drafter=none", "cache.precision=float"),
        *("scheduler.max_num_batched_tokens=96", "scheduler.async_scheduling=false", *ROOM),
    )
    with engine_of(*words) as engine:
        yield engine


@pytest.fixture(scope="module")
def drafting(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """The recipe's int8 indexer, drafter and prefix caching over float weights."""
    with engine_of(RECIPE, *UNQUANTIZED, *FLOAT32, RAW, *ROOM) as engine:
        yield engine


@pytest.fixture(scope="module")
def two_ranks_of_experts(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """float32, heads and experts split over two worker processes."""
    words = (RECIPE, *UNQUANTIZED, *FLOAT32, RAW, "drafter=none", "cache.precision=float")
    with engine_of(*words, "parallel.tp=2", core_process=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def crowded(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """float32 with the drafter, and too few blocks for six growing requests."""
    words = (
        *(RECIPE, *UNQUANTIZED, *FLOAT32, RAW, "cache.precision=float"),
        *("cache.prefix_caching=false", "scheduler.max_num_batched_tokens=32"),
        *("scheduler.max_model_len=512", "+extra_args.num_gpu_blocks_override=100"),
    )
    with engine_of(*words) as engine:
        yield engine


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("oracle")


@pytest.mark.parametrize("length", LENGTHS)
def test_float_prompt_in_chunks(floats: Engine, length: int, scratch: Path):
    prompt = prompt_of(length, seed=SEEDS.get(length, length))
    (answer,) = floats.generate([prompt], max_tokens=6)
    assert_chooses_and_matches(floats, prompt, answer, "float", scratch)
    steps = [step for step in floats.step_trace() if any(p for _, p in step.values())]
    assert len(steps) == -(-length // 96)


def test_float_requests_share_steps(floats: Engine, scratch: Path):
    prompts = [prompt_of(length, seed=200 + length) for length in MIXED]
    answers = floats.generate(prompts, max_tokens=8)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_chooses_and_matches(floats, prompt, answer, "float", scratch)
    kinds = [{prefilling for _, prefilling in step.values()} for step in floats.step_trace()]
    assert any(len(kind) == 2 for kind in kinds)


def test_window_layers_rotate_as_the_official_model_does(floats: Engine, scratch: Path):
    # vllm-ascend stretches the rotation of layers without compression too.
    prompt = prompt_of(129, seed=129)
    (answer,) = floats.generate([prompt], max_tokens=6)
    assert_matches(floats, prompt, answer, "float", scratch)
    checkpoint = Path(floats.planned.plan.model.checkpoint)
    with stretched_windows(oracle_model(checkpoint, "float", scratch)):
        stretched = oracle_logits(
            checkpoint, prompt, answer["tokens"], rounding="float", scratch=scratch
        )
    actual = dense(answer["logits"], stretched.shape[-1])
    assert (actual - stretched).abs().max().item() > 10 * TOLERANCE


def test_warm_prefix(floats: Engine):
    # Hits come in multiples of 128 blocks of 32 tokens.
    assert_warm_equals_cold(floats, prompt_of(4200, seed=4200))


def test_our_classes_are_everywhere(floats: Engine):
    assert_classes_are_ours(floats)


def test_every_planned_binding_is_called(floats: Engine):
    floats.generate([prompt_of(40, seed=1)], max_tokens=2, temperature=1.0, top_k=5)
    (calls,) = floats.record_calls()
    assert set(calls) == set(floats.planned.plan.operations)
    assert [name for name, count in calls.items() if count == 0] == []


def test_receipt_says_window_block_and_relaxations(floats: Engine):
    (receipt,) = [item for item in floats.receipts() if item.effective is not None]
    assert receipt.effective.prefix_retention == 4096
    assert receipt.effective.block_size == floats.planned.plan.cache.block_size
    assert receipt.relaxed == ("cache.float32", "dtype.float32", "shape.small")
    assert receipt.effective.model_class == (
        "ascend_recipes.models.deepseek_v4.model:AscendDeepseekV4ForCausalLM"
    )


@pytest.mark.parametrize("length", [3, 129, 200])
def test_int8_indexer_with_drafts(drafting: Engine, length: int, scratch: Path):
    prompt = prompt_of(length, seed=2000 + length)
    (answer,) = drafting.generate([prompt], max_tokens=8)
    assert_matches(drafting, prompt, answer, "int8", scratch)
    assert drafting.counter("vllm:spec_decode_num_draft_tokens") > 0


def test_graphs_with_padding_requests(drafting: Engine, scratch: Path):
    # Three requests of two tokens each run in the graph of four.
    prompts = [prompt_of(length, seed=2000 + length) for length in (3, 60, 129)]
    answers = drafting.generate(prompts, max_tokens=8)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_matches(drafting, prompt, answer, "int8", scratch)
    assert drafting.replay_counts()[8] > 0


def test_warm_prefix_with_drafts(drafting: Engine):
    # One more block than without drafts: what the drafter reads of the last one is computed anew.
    assert_warm_equals_cold(drafting, prompt_of(4400, seed=4400))


def assert_warm_equals_cold(engine: Engine, prompt: list[int]) -> None:
    (cold,) = engine.generate([prompt], max_tokens=4)
    (warm,) = engine.generate([prompt], max_tokens=4)
    assert (cold["cached"], warm["cached"]) == (0, 4096)
    assert warm["tokens"] == cold["tokens"]
    size = engine.planned.resolved.config["vocab_size"]
    error = (dense(warm["logits"], size) - dense(cold["logits"], size)).abs().max().item()
    assert error < TOLERANCE


def test_two_ranks(two_ranks_of_experts: Engine, scratch: Path):
    engine = two_ranks_of_experts
    prompts = [prompt_of(length, seed=length) for length in (1, 129, 300)]
    answers = engine.generate(prompts, max_tokens=4)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_matches(engine, prompt, answer, "float", scratch)
    assert sorted(item.rank for item in engine.receipts() if item.rank is not None) == [0, 1]


def test_preempted_requests_with_drafts(crowded: Engine, scratch: Path):
    prompts = [prompt_of(length, seed=length) for length in range(1, 7)]
    answers = crowded.generate(prompts, max_tokens=120)
    assert crowded.counter("vllm:num_preemptions") > 0
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_matches(crowded, prompt, answer, "float", scratch)
