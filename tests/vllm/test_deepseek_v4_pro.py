"""DeepSeek-V4-Pro's shape through its own recipe: no window layers, two C128 layers first."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.conftest import FLOAT32, RAW, Engine
from tests.vllm.oracle import prompt_of
from tests.vllm.oracle_deepseek_v4 import assert_matches

pytestmark = pytest.mark.vllm

WORDS = (
    *("recipe=deepseek_v4_pro_a3_2n", "quant=none", "checkpoint.variant=bf16", *FLOAT32, RAW),
    *("cache.precision=float", "scheduler.max_num_batched_tokens=96"),
    "scheduler.async_scheduling=false",
)


@pytest.fixture(scope="module")
def pro(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """float32, chunks of 96 tokens, one draft a step."""
    with engine_of(*WORDS) as engine:
        yield engine


def test_shape_is_that_of_pro(pro: Engine):
    config = pro.planned.resolved.config
    published = pro.planned.resolved.model.config
    assert (
        config["compress_ratios"][:5] == published["compress_ratios"][:5] == [128, 128, 4, 128, 4]
    )
    assert config["routed_scaling_factor"] == 2.5
    assert pro.planned.plan.cache.block_size == 128


def test_requests_share_steps_with_drafts(pro: Engine, tmp_path: Path):
    prompts = [prompt_of(length, seed=3000 + length) for length in (1, 128, 129, 300)]
    answers = pro.generate(prompts, max_tokens=8)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_matches(pro, prompt, answer, "float", tmp_path)
    assert pro.counter("vllm:spec_decode_num_draft_tokens") > 0
