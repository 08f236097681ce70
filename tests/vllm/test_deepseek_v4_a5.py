"""DeepSeek-V4 as A5 rounds it: packed cache rows and a float8 indexer, over float weights.

One value that rounds the other way moves a logit by tenths here, so the oracle rounds what the
engine rounded, after it has found its own numbers equal (`oracle_a5.following`).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.conftest import FLOAT32, RAW, Engine
from tests.vllm.oracle import prompt_of
from tests.vllm.oracle_a5 import a5_logits, difference, following
from tests.vllm.oracle_deepseek_v4 import TOLERANCE, assert_matches, oracle_logits
from tests.vllm.origins import assert_classes_are_ours
from tests.vllm.zeroing import REFUSED_AS_ZEROS, effects_of_zeros

pytestmark = pytest.mark.vllm

WORDS = (
    *("recipe=deepseek_v4_a5", "quant=none", "checkpoint.variant=bf16", *FLOAT32, RAW),
    *("drafter=none", "graph=none", "cache.prefix_caching=false"),
    *("scheduler.max_num_batched_tokens=96", "scheduler.async_scheduling=false"),
)
LENGTHS = (1, 3, 127, 128, 129, 515, 1500)
MIXED = (5, 300, 17, 129)


@pytest.fixture(scope="module")
def engine(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """float32 but for caches and indexer, chunks of 96 tokens."""
    with engine_of(*WORDS) as host:
        yield host


@pytest.fixture(scope="module")
def floats(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """float32 caches and indexer through A5's operators."""
    with engine_of(*WORDS, "cache.precision=float") as host:
        yield host


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a5")


@pytest.mark.parametrize("length", LENGTHS)
def test_prompt_in_chunks(engine: Engine, length: int, scratch: Path):
    prompt = prompt_of(length, seed=length)
    answer, tape = engine.generate_taped(prompt, max_tokens=4)
    with following(tape):
        expected = a5_logits(engine, prompt, answer["tokens"], "cache", scratch)
    assert answer["tokens"] == expected.argmax(-1).tolist()
    assert difference(answer, expected).max() < TOLERANCE


def test_caches_are_rounded_as_nothing_else_is(engine: Engine, scratch: Path):
    # What rounding does is far beyond the tolerance, and so is a value that rounds otherwise.
    prompt = prompt_of(129, seed=129)
    (answer,) = engine.generate([prompt], max_tokens=4)
    checkpoint = Path(engine.planned.plan.model.checkpoint)
    plain = oracle_logits(checkpoint, prompt, answer["tokens"], rounding="float", scratch=scratch)
    rounded = a5_logits(engine, prompt, answer["tokens"], "cache", scratch)
    assert difference(answer, plain).max() > 100 * TOLERANCE
    assert difference(answer, rounded).max() < difference(answer, plain).max() / 2


def test_blocks_are_whole_rows_apart(engine: Engine):
    (receipt,) = [item for item in engine.receipts() if item.effective is not None]
    assert receipt.relaxed == ("dtype.float32", "shape.small")
    bindings = engine.planned.plan.operations
    assert bindings["write_latent_rows"] == "cann_custom.kv_compress_epilog"
    assert bindings["sparse_attention_shared_kv"] == "cann_custom.npu_kv_quant_sparse_attn_sharedkv"
    assert bindings["write_indexer_keys"] == "cann_custom.indexer_compress_epilog_v2"


def test_our_classes_are_everywhere(engine: Engine):
    assert_classes_are_ours(engine)


def test_every_planned_binding_is_called(engine: Engine):
    engine.generate([prompt_of(40, seed=1)], max_tokens=2, temperature=1.0, top_k=5)
    (calls,) = engine.record_calls()
    assert set(calls) == set(engine.planned.plan.operations)
    assert [name for name, count in calls.items() if count == 0] == []


def test_zeroing_any_binding_changes_the_tokens(engine: Engine):
    # Longer than what the indexer selects, so that its choice matters.
    effects = effects_of_zeros(engine, prompt_of(150, seed=900))
    assert effects.nothing | effects.drafts == set()
    assert effects.refused == REFUSED_AS_ZEROS


def test_float_requests_share_steps(floats: Engine, scratch: Path):
    prompts = [prompt_of(length, seed=200 + length) for length in MIXED]
    answers = floats.generate(prompts, max_tokens=6)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_matches(floats, prompt, answer, "float", scratch)
    kinds = [{prefilling for _, prefilling in step.values()} for step in floats.step_trace()]
    assert any(len(kind) == 2 for kind in kinds)
