"""DeepSeek-V4 with the 8-bit indexer of A2 and A3, in the shapes of Flash and of Pro.

Rounding turns with the last bit of float32, and another block then moves a logit by tenths. So the
oracle rounds what the engine rounded, after it has found its own numbers equal.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.choices import RATIO, choosing
from tests.vllm.conftest import FLOAT32, RAW, Engine
from tests.vllm.exact import exact_logits, separated
from tests.vllm.oracle import dense, prompt_of
from tests.vllm.oracle_deepseek_v4 import TOLERANCE, oracle_model
from tests.vllm.taping import INT8_INDEXER

pytestmark = pytest.mark.vllm

WORDS = (
    *("quant=none", "checkpoint.variant=bf16", *FLOAT32, RAW, "drafter=none", "graph=none"),
    *("scheduler.max_num_batched_tokens=96", "scheduler.async_scheduling=false"),
)
SHAPES = {
    "flash": ("recipe=deepseek_v4_a3",),
    "pro": ("recipe=deepseek_v4_pro_a3_2n", "cache.block_size=64"),
}
LENGTHS = (1, 3, 127, 128, 129, 515, 1500)
MIXED = (5, 300, 17, 129, 1, 400)


@pytest.fixture(scope="module", params=SHAPES)
def engine(engine_of: Callable[..., Any], request: pytest.FixtureRequest) -> Iterator[Engine]:
    """int8 indexer, float32 otherwise, chunks of 96 tokens; blocks of 32 tokens, of Pro 64."""
    with engine_of(*SHAPES[request.param], *WORDS) as host:
        yield host


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exact")


def assert_exact(
    engine: Engine, prompt: list[int], answer: dict[str, Any], tape: Any, scratch: Path
) -> None:
    """Tokens equal, logits close, no choice a tie, and of long prompts a quarter is chosen."""
    model = oracle_model(Path(engine.planned.plan.model.checkpoint), "int8", scratch)
    with choosing(model) as choices:
        expected = exact_logits(engine, prompt, answer["tokens"], tape, scratch)
    assert answer["tokens"] == expected.argmax(-1).tolist()
    actual = dense(answer["logits"], expected.shape[-1])
    assert (actual - expected).abs().max().item() < TOLERANCE
    if len(prompt) >= 4 * RATIO * choices.top_k:
        assert choices.most_seen >= 4 * choices.top_k
        assert choices.gaps


def test_the_recipe_rounds_its_indexer(engine: Engine):
    assert engine.planned.plan.relaxed == ("dtype.float32", "shape.small")
    config = engine.planned.resolved.config
    ratios = config["compress_ratios"]
    assert ratios.count(4) >= 3
    assert ratios.count(128) >= 2
    assert (config["index_n_heads"], config["num_hash_layers"]) == (64, 3)
    assert 4 * 4 * config["index_topk"] <= 515


@pytest.mark.parametrize("length", LENGTHS)
def test_prompt_in_chunks(engine: Engine, length: int, scratch: Path):
    prompt = prompt_of(length, seed=length)
    answer, (tape,) = engine.generate_taped(prompt, INT8_INDEXER, max_tokens=4)
    assert_exact(engine, prompt, answer, tape, scratch)


def test_requests_share_steps(engine: Engine, scratch: Path):
    prompts = [prompt_of(length, seed=200 + length) for length in MIXED]
    answers, (tape,) = engine.generate_taped_together(prompts, INT8_INDEXER, max_tokens=8)
    steps = engine.step_trace()
    assert any(len({prefilling for _, prefilling in step.values()}) == 2 for step in steps)
    tapes = separated(tape, steps)
    for prompt, answer, own in zip(prompts, answers, tapes, strict=True):
        assert_exact(engine, prompt, answer, own, scratch)
