"""Quantized weights split over two ranks: each has its part, scales included."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from ascend_recipes.errors import RecipeError
from ascend_recipes.torchvision_schemas import define_missing_schemas

pytestmark = pytest.mark.vllm

RANKS = 2
EXPERTS, HIDDEN, INNER = 4, 256, 128


@contextmanager
def rank(number: int, *, by_expert: bool = False) -> Iterator[None]:
    """What layers ask of vLLM while they are built on one of two ranks."""
    define_missing_schemas()
    parallel = SimpleNamespace(data_parallel_size=1, enable_expert_parallel=by_expert)
    config = SimpleNamespace(parallel_config=parallel)
    experts, linear = "ascend_recipes.moe.experts", "vllm.model_executor.layers.linear"
    with ExitStack() as stack:
        for module in (experts, linear):
            for name, value in (("world_size", RANKS), ("rank", number)):
                function = f"{module}.get_tensor_model_parallel_{name}"
                stack.enter_context(patch(function, lambda value=value: value))
        stack.enter_context(patch(f"{experts}.get_current_vllm_config", lambda: config))
        yield


def layer(kind: str, *sizes: object, number: int) -> torch.nn.Module:
    with rank(number):
        from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
        from vllm.model_executor.layers import linear

        from ascend_recipes.models.deepseek_v4.quantization import PublishedFormat

        with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
            return getattr(linear, kind)(*sizes, bias=False, quant_config=PublishedFormat())


def stored(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight and scales of which no two are equal."""
    scale = torch.arange(rows * columns // 128**2).view(rows // 128, columns // 128)
    return torch.randn(rows, columns).to(torch.float8_e4m3fn), (2.0 ** (scale - 4)).to(
        torch.float8_e8m0fnu
    )


def value(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Numbers `[N, K]` of a weight and its scales in blocks."""
    return weight.float() * scale.float().repeat_interleave(128, 0).repeat_interleave(128, 1)


def finished(module: torch.nn.Module) -> torch.Tensor:
    """Numbers `[N, K]` as the operator takes them: bytes `[K / 64, N, 2]` beside `[K, N]`."""
    module.quant_method.process_weights_after_loading(module)
    exponent_NK = module.weight_scale.transpose(0, 1).flatten(1).float() - 127
    return module.weight.t().float() * (2.0**exponent_NK).repeat_interleave(32, 1)


@pytest.mark.parametrize("number", range(RANKS))
def test_inputs_of_a_row_split(number: int):
    module = layer("RowParallelLinear", 512, 256, number=number)
    weight, scale = stored(256, 512)
    module.weight.weight_loader(module.weight, weight)
    module.scale.weight_loader(module.scale, scale)
    assert torch.equal(finished(module), value(weight, scale)[:, 256 * number :][:, :256])


@pytest.mark.parametrize("number", range(RANKS))
def test_outputs_of_a_merged_split(number: int):
    module = layer("MergedColumnParallelLinear", 256, [256, 256], number=number)
    parts = [stored(256, 256) for _ in range(2)]
    for shard, (weight, scale) in enumerate(parts):
        module.weight.weight_loader(module.weight, weight, shard)
        module.scale.weight_loader(module.scale, scale, shard)
    expected = [value(*part)[128 * number :][:128] for part in parts]
    assert torch.equal(finished(module), torch.cat(expected))


@pytest.mark.parametrize("number", range(RANKS))
def test_parts_that_end_inside_a_block(number: int):
    # As of the shared expert of a tiny model, or of sixteen ranks' of Pro.
    gate_up = layer("MergedColumnParallelLinear", 256, [128, 128], number=number)
    down = layer("RowParallelLinear", 128, 256, number=number)
    parts = [stored(128, 256) for _ in range(2)]
    for shard, (weight, scale) in enumerate(parts):
        gate_up.weight.weight_loader(gate_up.weight, weight, shard)
        gate_up.scale.weight_loader(gate_up.scale, scale, shard)
    weight, scale = stored(256, 128)
    down.weight.weight_loader(down.weight, weight)
    down.scale.weight_loader(down.scale, scale)
    expected = [value(*part)[64 * number :][:64] for part in parts]
    assert torch.equal(finished(gate_up), torch.cat(expected))
    assert torch.equal(finished(down), value(weight, scale)[:, 64 * number :][:, :64])


def test_less_than_a_pair_of_scales_is_refused():
    with pytest.raises(AssertionError, match="32 inputs are no whole pairs of 32"):
        layer("RowParallelLinear", 64, 256, number=0)


@pytest.mark.parametrize("by_expert", [False, True])
@pytest.mark.parametrize("number", range(RANKS))
def test_experts(number: int, by_expert: bool):
    sizes = {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}
    tensors = {
        (expert, part, leaf): torch.randint(0, 120, (rows, columns // divisor), dtype=torch.int8)
        for expert in range(EXPERTS)
        for part, (rows, columns) in sizes.items()
        for leaf, divisor in (("weight", 2), ("scale", 32))
    }
    with rank(number, by_expert=by_expert):
        from ascend_recipes.moe.microscaled import MicroscaledExperts

        module = MicroscaledExperts(
            num_experts=EXPERTS, hidden_size=HIDDEN, intermediate_size=INNER, limit=10.0
        )
    for key, tensor in tensors.items():
        module.load(*key, tensor)
    assert module.missing() == []
    module.finish_loading()
    own = range(2 * number, 2 * number + 2) if by_expert else range(EXPERTS)
    inner = slice(None) if by_expert else slice(64 * number, 64 * number + 64)
    for leaf, divisor in (("weight", 2), ("scale", 32)):
        rows = (
            slice(None)
            if by_expert
            else slice(64 // divisor * number, 64 // divisor * (number + 1))
        )
        for index, expert in enumerate(own):
            gate, up, down = (tensors[expert, part, leaf] for part in sizes)
            expected = {"gate_up": torch.cat((gate[inner], up[inner])), "down": down[:, rows]}
            for part, bits in expected.items():
                found = module.get_parameter(f"{part}_{leaf}")[index]
                lying = found.t() if leaf == "weight" else found.transpose(0, 1).flatten(1)
                assert torch.equal(lying, bits.view(torch.uint8)), (expert, part, leaf)


def int4_tensors() -> dict[tuple[int, str, str], torch.Tensor]:
    """Tensors of experts: two outputs in a byte, biases for 16 parts of the inputs of `down`."""
    tensors = {}
    for expert in range(EXPERTS):
        for part, rows, columns, parts in (
            ("gate", INNER, HIDDEN, 1),
            ("up", INNER, HIDDEN, 1),
            ("down", HIDDEN, INNER, 16),
        ):
            weight = torch.randint(-128, 128, (rows // 2, columns), dtype=torch.int8)
            tensors[expert, part, "weight"] = weight
            tensors[expert, part, "weight_scale"] = torch.rand(rows, 1)
            tensors[expert, part, "weight_offset"] = torch.zeros(rows, 1)
            tensors[expert, part, "scale_bias"] = torch.randn(rows, parts)
    return tensors


@pytest.mark.parametrize("by_expert", [False, True])
@pytest.mark.parametrize("number", range(RANKS))
def test_int4_experts(number: int, by_expert: bool):
    tensors = int4_tensors()
    with rank(number, by_expert=by_expert):
        from ascend_recipes.moe.experts import Int4Experts

        module = Int4Experts(
            num_experts=EXPERTS, hidden_size=HIDDEN, intermediate_size=INNER, limit=10.0
        )
    for key, tensor in tensors.items():
        module.load(*key, tensor)
    assert module.missing() == []
    own = range(2 * number, 2 * number + 2) if by_expert else range(EXPERTS)
    part = slice(None) if by_expert else slice(INNER // 2 * number, INNER // 2 * (number + 1))
    pairs = slice(None) if by_expert else slice(INNER // 4 * number, INNER // 4 * (number + 1))
    biases = slice(None) if by_expert else slice(8 * number, 8 * (number + 1))
    for index, expert in enumerate(own):
        gate, up, down = (
            {leaf: tensors[expert, name, leaf] for leaf in module.leaves}
            for name in ("gate", "up", "down")
        )
        expected = {
            "gate_up_weight": torch.cat((gate["weight"][pairs], up["weight"][pairs])).t(),
            "down_weight": down["weight"][:, part].t(),
            "down_weight_scale": down["weight_scale"].flatten(),
            "down_scale_bias": down["scale_bias"][:, biases].sum(1),
        }
        for leaf in ("weight_scale", "scale_bias"):
            both = torch.cat((gate[leaf][part], up[leaf][part]))
            expected[f"gate_up_{leaf}"] = both.flatten()
        for name, numbers in expected.items():
            assert torch.equal(module.get_parameter(name)[index], numbers), (expert, name)


def test_other_blocks_are_refused():
    define_missing_schemas()
    from ascend_recipes.models.deepseek_v4.native_format import METHOD, QUANTIZATION
    from ascend_recipes.models.deepseek_v4.quantization import PublishedFormat

    section = QUANTIZATION | {"quant_method": METHOD}
    assert PublishedFormat.from_config(section).get_name() == METHOD
    with pytest.raises(RecipeError, match=r"weight_block_size is stored as \[64, 64\]"):
        PublishedFormat.from_config(section | {"weight_block_size": [64, 64]})
