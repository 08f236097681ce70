"""DeepSeek-V4-Pro in ModelSlim's W4A8 form, through its own recipe: int4 experts, int8 layers.

The oracle multiplies as the operator does, through halves and bfloat16. Whole passes, layers and a
long generation are compared as in the tests of W8A8.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ascend_recipes.plan import PlannedLaunch
from tests.vllm.conftest import FLOAT32, RAW, TINY, Engine, tiny_checkpoint
from tests.vllm.following import following
from tests.vllm.near_markov import write_near_markov
from tests.vllm.oracle import dense, prompt_of
from tests.vllm.oracle_deepseek_v4 import assert_matches, oracle_logits
from tests.vllm.oracle_int8 import Int8Layers, swapped
from tests.vllm.taping import MODELSLIM
from tests.vllm.zeroing import REFUSED_AS_ZEROS, effects_of_zeros

pytestmark = pytest.mark.vllm

RECIPE = "recipe=deepseek_v4_pro_a3_2n"
WORDS = (RECIPE, *FLOAT32, RAW)
NUM_GREEDY = 64

LENGTHS = (1, 3, 127, 129, 515)
PRODUCT_TOLERANCE = 1e-5
"""Of the largest result of a layer; its inputs are the engine's own."""

Products = dict[str, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("int4")


@pytest.fixture(scope="module")
def engine(
    engine_of: Callable[..., Any], plan: Callable[..., PlannedLaunch], scratch: Path
) -> Iterator[Engine]:
    """The recipe's formats and drafter, the next token mostly a function of the last."""
    source = tiny_checkpoint(plan(*TINY, *WORDS))
    checkpoint = write_near_markov(source, scratch / "near_markov", gain=10.0)
    with engine_of(*WORDS, f"checkpoint.path={checkpoint}") as host:
        yield host


@pytest.fixture(scope="module")
def as_published(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """The recipe's own dtypes, drafter, graphs and caches: only sizes are relaxed."""
    with engine_of(RECIPE, RAW) as host:
        yield host


@pytest.fixture(scope="module")
def products(engine: Engine) -> Products:
    """Inputs and output of every quantized layer, by its name in the checkpoint."""
    engine.record_products()
    engine.generate([prompt_of(40, seed=40)], max_tokens=2)
    return engine.take_products()


def checkpoint_of(engine: Engine) -> Path:
    return Path(engine.planned.plan.model.checkpoint)


def test_greedy_tokens(engine: Engine, scratch: Path):
    prompt = prompt_of(24, seed=24)
    (answer,) = engine.generate([prompt], max_tokens=NUM_GREEDY)
    expected = oracle_logits(
        checkpoint_of(engine), prompt, answer["tokens"], rounding="modelslim", scratch=scratch
    )
    best = expected.topk(2).values
    error = (dense(answer["logits"], expected.shape[-1]) - expected).abs().amax(-1)
    # Otherwise equal tokens would be luck.
    assert (best[:, 0] - best[:, 1] > 2 * error).all()
    assert answer["tokens"] == expected.argmax(-1).tolist()
    assert len(set(answer["tokens"])) > NUM_GREEDY // 4


@pytest.mark.parametrize("length", LENGTHS)
def test_logits(engine: Engine, length: int, scratch: Path):
    prompt = prompt_of(length, seed=length)
    answer, tape = engine.generate_taped(prompt, MODELSLIM, max_tokens=1)
    with following(tape):
        assert_matches(engine, prompt, answer, "modelslim", scratch)


def test_every_quantized_product(engine: Engine, products: Products):
    layers = Int8Layers(checkpoint_of(engine))
    assert products.keys() == layers.names
    compared = numbers = 0
    for name, calls in products.items():
        for inputs, output in calls:
            expected, usable = layers.apply(name, inputs)
            error = (torch.from_numpy(output) - expected).abs() * usable
            assert error.max() < PRODUCT_TOLERANCE * expected.abs().max(), name
            numbers += expected.numel()
            compared += int(usable.expand_as(expected).sum())
    assert compared > 0.8 * numbers


def test_swapped_scales_are_found(engine: Engine, products: Products):
    first, second = (f"layers.4.ffn.experts.{number}.w2" for number in (0, 1))
    wrong = Int8Layers(checkpoint_of(engine), swapped(first, second))
    inputs, output = products["layers.4.ffn.experts"][0]
    expected, usable = wrong.apply("layers.4.ffn.experts", inputs)
    error = (torch.from_numpy(output) - expected).abs() * usable
    assert error.max() > 100 * PRODUCT_TOLERANCE * expected.abs().max()


def test_experts_are_ours_and_int4(engine: Engine):
    (receipt,) = [item for item in engine.receipts() if item.effective is not None]
    assert receipt.effective.quantization == "ascend"
    assert "ascend_recipes.moe.experts:Int4Experts" in receipt.effective.layer_classes
    assert "ascend_recipes.moe.experts:Int8Experts" not in receipt.effective.layer_classes
    used = {name for name in receipt.bindings if "int4" in name}
    assert used == {"grouped_int4_matmul", "grouped_int4_matmul_swiglu_quant"}


def test_recipe_runs_with_nothing_relaxed_but_sizes(as_published: Engine):
    assert as_published.planned.plan.relaxed == ("shape.small",)
    prompt = prompt_of(40, seed=1)
    as_published.generate([prompt], max_tokens=3, temperature=1.0, top_k=5)
    (calls,) = as_published.record_calls()
    assert set(calls) == set(as_published.planned.plan.operations)
    assert {name for name, count in calls.items() if count == 0} <= {"verify_drafts_greedy"}


def test_zeroing_any_binding_changes_the_tokens(as_published: Engine):
    # Longer than what the indexer selects, so that its choice matters.
    effects = effects_of_zeros(as_published, prompt_of(250, seed=901))
    assert effects.nothing | effects.drafts == set()
    assert effects.refused == REFUSED_AS_ZEROS
