"""DeepSeek-V4-Pro's shape through its own recipe: no window layers, two C128 layers first."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.choices import assert_chooses_and_matches
from tests.vllm.conftest import FLOAT32, RAW, Engine
from tests.vllm.oracle import prompt_of

pytestmark = pytest.mark.vllm

WORDS = (
    *("recipe=deepseek_v4_pro_a3_2n", "quant=none", "checkpoint.variant=bf16", *FLOAT32, RAW),
    *("cache.precision=float", "scheduler.max_num_batched_tokens=96"),
    *("scheduler.async_scheduling=false", "drafter.num_draft_tokens=2"),
    *("scheduler.max_model_len=2048", "+extra_args.num_gpu_blocks_override=60"),
)
LENGTHS = (1, 3, 127, 128, 129, 515, 1500)
MIXED = (5, 300, 17, 129, 1, 400)
NUM_GROWING = 100
"""Tokens that make six short requests outgrow the blocks."""
SEEDS = {1500: 4500}
"""Seeds of prompts whose selected blocks are no near ties; 3000 and the length elsewhere."""


@pytest.fixture(scope="module")
def pro(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """float32, chunks of 96 tokens, two drafts a step, too few blocks for six growing requests."""
    with engine_of(*WORDS) as engine:
        yield engine


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pro")


def test_shape_is_that_of_pro(pro: Engine):
    config = pro.planned.resolved.config
    published = pro.planned.resolved.model.config
    assert (
        config["compress_ratios"][:5] == published["compress_ratios"][:5] == [128, 128, 4, 128, 4]
    )
    assert config["compress_ratios"].count(4) >= 3
    assert config["routed_scaling_factor"] == 2.5
    assert config["index_n_heads"] == 64
    assert config["num_hash_layers"] == 3
    assert pro.planned.plan.cache.block_size == 128


@pytest.mark.parametrize("length", LENGTHS)
def test_prompt_in_chunks_with_drafts(pro: Engine, length: int, scratch: Path):
    prompt = prompt_of(length, seed=SEEDS.get(length, 3000 + length))
    (answer,) = pro.generate([prompt], max_tokens=6)
    assert_chooses_and_matches(pro, prompt, answer, "float", scratch)
    steps = [step for step in pro.step_trace() if any(p for _, p in step.values())]
    assert len(steps) == -(-length // 96)


def test_requests_share_steps_with_drafts(pro: Engine, scratch: Path):
    prompts = [prompt_of(length, seed=3000 + length) for length in MIXED]
    answers = pro.generate(prompts, max_tokens=8)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_chooses_and_matches(pro, prompt, answer, "float", scratch)
    kinds = [{prefilling for _, prefilling in step.values()} for step in pro.step_trace()]
    assert any(len(kind) == 2 for kind in kinds)
    assert pro.counter("vllm:spec_decode_num_draft_tokens") > 0


def test_preempted_requests_with_drafts(pro: Engine, scratch: Path):
    prompts = [prompt_of(length, seed=length) for length in range(1, 7)]
    before = pro.counter("vllm:num_preemptions")
    answers = pro.generate(prompts, max_tokens=NUM_GROWING)
    assert pro.counter("vllm:num_preemptions") > before
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_chooses_and_matches(pro, prompt, answer, "float", scratch)


def test_every_planned_binding_is_called(pro: Engine):
    # One draft is judged greedily, one by chance.
    for temperature in (0.0, 1.0):
        pro.generate([prompt_of(40, seed=1)], max_tokens=2, temperature=temperature, top_k=5)
    (calls,) = pro.record_calls()
    assert set(calls) == set(pro.planned.plan.operations)
    assert [name for name, count in calls.items() if count == 0] == []
