"""DeepSeek-V4-Pro in ModelSlim's W4A8 form, through its own recipe: int4 experts, int8 layers.

The int4 product goes through halves inside the operator and comes out as bfloat16, so its results
are compared to that; int8 layers, whole passes and long generations, as in the tests of W8A8.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from ascend_recipes.plan import PlannedLaunch
from tests.vllm.conftest import FLOAT32, RAW, TINY, Engine, tiny_checkpoint
from tests.vllm.near_markov import write_near_markov
from tests.vllm.oracle import dense, prompt_of
from tests.vllm.oracle_deepseek_v4 import oracle_logits, oracle_model, tie_margins
from tests.vllm.oracle_int8 import Int8Layers, swapped

pytestmark = pytest.mark.vllm

WORDS = ("recipe=deepseek_v4_pro_a3_2n", *FLOAT32, RAW)
NUM_GREEDY = 64

LINEAR_TOLERANCE = 1e-5
LOGIT_TOLERANCE = 2e-3
TIE_MARGIN = 2.5e-5
"""Least distance to a half, in int8 steps: three last places of a float32 of 127."""
ONE_TOKEN_PROMPTS = 48
EXPERTS = re.compile(r"layers\.\d+\.ffn\.experts")
EXPERT_TOLERANCE = 1.6e-2
"""Of the largest result of a layer: that of the operator's contract for bfloat16."""

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
        checkpoint_of(engine), prompt, answer["tokens"], rounding="w8a8", scratch=scratch
    )
    best = expected.topk(2).values
    error = (dense(answer["logits"], expected.shape[-1]) - expected).abs().amax(-1)
    # Otherwise equal tokens would be luck.
    assert (best[:, 0] - best[:, 1] > 2 * error).all()
    assert answer["tokens"] == expected.argmax(-1).tolist()
    assert len(set(answer["tokens"])) > NUM_GREEDY // 4


def test_every_quantized_product(engine: Engine, products: Products):
    layers = Int8Layers(checkpoint_of(engine))
    assert products.keys() == layers.names
    compared = {"experts": 0, "linear": 0}
    for name, calls in products.items():
        kind = "experts" if name.endswith(".experts") else "linear"
        tolerance = EXPERT_TOLERANCE if kind == "experts" else LINEAR_TOLERANCE
        for inputs, output in calls:
            expected, usable = layers.apply(name, inputs)
            error = (torch.from_numpy(output) - expected)[usable].abs()
            assert (error < tolerance * expected.abs().max()).all(), name
            compared[kind] += int(usable.sum())
    assert min(compared.values()) > 100


def test_logits_where_the_experts_give_what_the_operator_gave(
    engine: Engine, products: Products, scratch: Path
):
    """Halves inside the operator cost more than the bound: the oracle takes its results on.

    Each result is first compared with the oracle's own.
    """
    seen = {name: len(calls) for name, calls in engine.take_products().items()}
    assert seen.keys() == products.keys()
    prompts = [prompt_of(1, seed=seed) for seed in range(ONE_TOKEN_PROMPTS)]
    answers = [engine.generate([prompt], max_tokens=1)[0] for prompt in prompts]
    given = {
        name: [torch.from_numpy(output) for _, output in calls[seen[name] :]]
        for name, calls in engine.take_products().items()
        if EXPERTS.fullmatch(name)
    }
    assert {len(calls) for calls in given.values()} == {ONE_TOKEN_PROMPTS}
    checkpoint, compared = checkpoint_of(engine), 0
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        results = {name: calls[number] for name, calls in given.items()}
        with (
            tie_margins() as margins,
            following_experts(checkpoint, scratch, results, margins) as errors,
        ):
            expected = oracle_logits(
                checkpoint, prompt, answer["tokens"], rounding="w8a8", scratch=scratch
            )
        if min(margins) < TIE_MARGIN:
            continue
        compared += 1
        assert max(errors) < EXPERT_TOLERANCE
        assert answer["tokens"] == expected.argmax(-1).tolist()
        error = (dense(answer["logits"], expected.shape[-1]) - expected).abs().max()
        assert error < LOGIT_TOLERANCE
    assert compared >= 6, compared


@contextmanager
def following_experts(
    checkpoint: Path, scratch: Path, results: dict[str, torch.Tensor], margins: list[float]
) -> Iterator[list[float]]:
    """Experts of the oracle give the engine's results; yields how far their own are from them.

    What they round themselves changes nothing behind them: it does not count among the margins.
    """
    model, errors = oracle_model(checkpoint, "w8a8", scratch), []
    modules = {
        f"layers.{index}.ffn.experts": layer.mlp.experts
        for index, layer in enumerate(model.model.layers)
    }
    own = {name: module.forward for name, module in modules.items()}

    def following(name: str) -> Callable[..., torch.Tensor]:
        def forward(*inputs: torch.Tensor) -> torch.Tensor:
            known = len(margins)
            expected, result = own[name](*inputs), results[name]
            del margins[known:]
            errors.append(((result - expected).abs().max() / expected.abs().max()).item())
            return result

        return forward

    for name, module in modules.items():
        module.forward = following(name)
    try:
        yield errors
    finally:
        for name, module in modules.items():
            module.forward = own[name]


def test_swapped_scales_are_found(engine: Engine, products: Products):
    first, second = (f"layers.4.ffn.experts.{number}.w2" for number in (0, 1))
    wrong = Int8Layers(checkpoint_of(engine), swapped(first, second))
    inputs, output = products["layers.4.ffn.experts"][0]
    expected, usable = wrong.apply("layers.4.ffn.experts", inputs)
    error = (torch.from_numpy(output) - expected)[usable].abs()
    assert error.max() > 2 * EXPERT_TOLERANCE * expected.abs().max()


def test_experts_are_ours_and_int4(engine: Engine):
    (receipt,) = [item for item in engine.receipts() if item.effective is not None]
    assert receipt.effective.quantization == "ascend"
    assert "ascend_recipes.moe.experts:Int4Experts" in receipt.effective.layer_classes
    assert "ascend_recipes.moe.experts:Int8Experts" not in receipt.effective.layer_classes
    used = {name for name in receipt.bindings if "int4" in name}
    assert used == {"grouped_int4_matmul", "grouped_int4_matmul_swiglu_quant"}
