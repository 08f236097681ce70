"""DeepSeek-V4 in ModelSlim's W8A8 form, against transformers with fake-quantized layers.

An activation at a half is rounded by the last bit of float32, and one int8 step moves a logit by
tenths, through every rounding behind it. So the oracle of whole passes rounds the engine's numbers,
after it has found its own equal (`following`); layers are compared by themselves too, on the inputs
that they really had, and a long generation on a model whose best token wins by more than the rest
can move.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ascend_recipes.plan import PlannedLaunch
from tests.vllm.conftest import FLOAT32, RAW, TINY, Engine, tiny_checkpoint
from tests.vllm.following import following
from tests.vllm.near_markov import write_near_markov
from tests.vllm.oracle import dense, prompt_of, read_tensors
from tests.vllm.oracle_deepseek_v4 import assert_matches, oracle_logits
from tests.vllm.oracle_int8 import Int8Layers, swapped
from tests.vllm.origins import assert_classes_are_ours
from tests.vllm.taping import MODELSLIM
from tests.vllm.zeroing import REFUSED_AS_ZEROS, effects_of_zeros

pytestmark = pytest.mark.vllm

RECIPE = "recipe=deepseek_v4_a3"
INT4_RECIPE = "recipe=deepseek_v4_pro_a3_2n"

NAMES = Path(__file__).with_name("deepseek_v4_names.txt")

LENGTHS = (1, 3, 127, 129, 515)

PRODUCT_TOLERANCE = 1e-5
"""Of the largest result of a layer; its inputs are the engine's own."""

LINEAR_KINDS = {
    *("attn.wq_a", "attn.wq_b", "attn.wkv", "attn.wo_b", "indexer.wq_b"),
    *("shared_experts.gate_up_proj", "shared_experts.w2"),
}
DRAFTER_KINDS = {"e_proj", "h_proj"}

NUM_GREEDY = 64


@pytest.fixture(scope="module")
def quantized(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """The recipe's formats, numbers in float32."""
    with engine_of(RECIPE, *FLOAT32, RAW) as engine:
        yield engine


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("int8")


@pytest.fixture(scope="module")
def predictable(
    engine_of: Callable[..., Any], plan: Callable[..., PlannedLaunch], scratch: Path
) -> Iterator[Engine]:
    """As `quantized`, the next token mostly a function of the last."""
    words = (RECIPE, *FLOAT32, RAW, "drafter=none", "graph=none")
    source = tiny_checkpoint(plan(*TINY, *words))
    checkpoint = write_near_markov(source, scratch / "near_markov", gain=6.0)
    with engine_of(*words, f"checkpoint.path={checkpoint}") as engine:
        yield engine


@pytest.fixture(scope="module")
def products(quantized: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """Inputs and output of every quantized layer, by its name in the checkpoint."""
    quantized.record_products()
    quantized.generate([prompt_of(40, seed=40)], max_tokens=2)
    return quantized.take_products()


def checkpoint_of(engine: Engine) -> Path:
    return Path(engine.planned.plan.model.checkpoint)


@pytest.mark.parametrize(("recipe", "int4"), [(RECIPE, False), (INT4_RECIPE, True)])
def test_tensors_have_the_published_names(
    plan: Callable[..., PlannedLaunch], recipe: str, int4: bool
):
    lines = NAMES.read_text(encoding="utf-8").splitlines()
    stored = dict(line.split() for line in lines if not line.startswith("#"))
    int8 = {name for name, kind in stored.items() if kind == "int8"}
    expected = {
        *stored,
        *(f"{name}_{leaf}" for name in int8 for leaf in ("scale", "offset")),
    }
    if int4:
        routed = {name for name in int8 if ".ffn.experts." in name}
        expected |= {name.replace(".weight", ".scale_bias") for name in routed}
    checkpoint = tiny_checkpoint(plan(*TINY, recipe, *FLOAT32, RAW))
    tensors = read_tensors(checkpoint, "")
    numbered = {re.sub(r"(layers|mtp)\.\d+", r"\1.N", name): name for name in tensors}
    names = {re.sub(r"experts\.\d+", "experts.E", short): name for short, name in numbered.items()}
    assert names.keys() == expected
    for short, name in names.items():
        assert (tensors[name].dtype == torch.int8) == (short in int8), name


@pytest.mark.parametrize("length", LENGTHS)
def test_logits(predictable: Engine, length: int, scratch: Path):
    prompt = prompt_of(length, seed=length)
    answer, tape = predictable.generate_taped(prompt, MODELSLIM, max_tokens=4)
    with following(tape):
        assert_matches(predictable, prompt, answer, "modelslim", scratch)


def test_every_quantized_product(quantized: Engine, products: dict[str, list[tuple[Any, ...]]]):
    layers = Int8Layers(checkpoint_of(quantized))
    kinds = {name.partition(".")[2].removeprefix("0.") for name in products}
    for kind in LINEAR_KINDS | DRAFTER_KINDS | {"ffn.experts"}:
        assert any(name.endswith(kind) for name in kinds), kind
    assert products.keys() == layers.names
    compared = numbers = 0
    for name, calls in products.items():
        for inputs, output in calls:
            expected, usable = layers.apply(name, inputs)
            numbers += expected.numel()
            compared += int(usable.expand_as(expected).sum())
            error = (torch.from_numpy(output) - expected).abs() * usable
            assert error.max() < PRODUCT_TOLERANCE * expected.abs().max(), name
    assert compared > 0.8 * numbers


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("layers.2.attn.wq_a", "layers.3.attn.wq_a"),
        ("layers.4.ffn.experts.0.w1", "layers.4.ffn.experts.1.w1"),
        ("layers.5.ffn.shared_experts.w1", "layers.5.ffn.shared_experts.w3"),
    ],
)
def test_swapped_scales_are_found(
    quantized: Engine, products: dict[str, list[tuple[Any, ...]]], first: str, second: str
):
    wrong = Int8Layers(checkpoint_of(quantized), swapped(first, second))
    names = {wrong.layer_of(first), wrong.layer_of(second)}
    for name in names:
        inputs, output = products[name][0]
        expected, usable = wrong.apply(name, inputs)
        error = (torch.from_numpy(output) - expected).abs() * usable
        assert error.max() > 100 * PRODUCT_TOLERANCE * expected.abs().max(), name


def test_greedy_tokens(predictable: Engine, scratch: Path):
    prompt = prompt_of(24, seed=24)
    (answer,) = predictable.generate([prompt], max_tokens=NUM_GREEDY)
    expected = oracle_logits(
        checkpoint_of(predictable), prompt, answer["tokens"], rounding="modelslim", scratch=scratch
    )
    best = expected.topk(2).values
    error = (dense(answer["logits"], expected.shape[-1]) - expected).abs().amax(-1)
    # Otherwise equal tokens would be luck.
    assert (best[:, 0] - best[:, 1] > 2 * error).all()
    assert answer["tokens"] == expected.argmax(-1).tolist()
    assert len(set(answer["tokens"])) > NUM_GREEDY // 4


def test_quantized_layers_are_ours(quantized: Engine):
    assert_classes_are_ours(quantized)
    (receipt,) = [item for item in quantized.receipts() if item.effective is not None]
    assert receipt.effective.quantization == "ascend"
    assert "ascend_recipes.moe.experts:Int8Experts" in receipt.effective.layer_classes


def test_zeroing_any_binding_changes_the_tokens(quantized: Engine):
    # Longer than what the indexer selects, so that its choice matters.
    effects = effects_of_zeros(quantized, prompt_of(150, seed=900))
    assert effects.nothing | effects.drafts == set()
    assert effects.refused == REFUSED_AS_ZEROS
