"""DeepSeek-V4's rotary tables: each kind of layer rotates as the row of the model says."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ascend_recipes.registry.load import load_registry
from ascend_recipes.torchvision_schemas import define_missing_schemas

pytestmark = pytest.mark.vllm

RATIOS = {"sliding_attention": 0, "compressed_4": 4, "compressed_128": 128}
POSITIONS = 3000


def frequencies(width: int, base: float, yarn: dict[str, Any] | None) -> torch.Tensor:
    """`[R / 2]` of the YaRN paper (arXiv 2309.00071, section 3.2), bounds rounded outwards."""
    plain = torch.tensor([base ** (-2 * number / width) for number in range(width // 2)])
    if yarn is None:
        return plain
    length = yarn["original_max_position_embeddings"]
    bounds = [
        width * math.log(length / (turns * math.tau)) / (2 * math.log(base))
        for turns in (yarn["beta_fast"], yarn["beta_slow"])
    ]
    low, high = math.floor(bounds[0]), math.ceil(bounds[1])
    stretched = ((torch.arange(width // 2) - low) / (high - low)).clamp(0, 1)
    return plain * (1 - stretched) + plain / yarn["factor"] * stretched


@pytest.mark.parametrize("name", ["deepseek_v4_flash", "deepseek_v4_pro"])
@pytest.mark.parametrize("kind", RATIOS)
def test_each_kind_rotates_as_its_model_says(name: str, kind: str):
    define_missing_schemas()
    from ascend_recipes.models.deepseek_v4.rotary import rotary_table

    row = load_registry().models[name]
    facts, width = row.rotary[kind], row.config["qk_rope_head_dim"]
    config = SimpleNamespace(**row.config, rope_parameters=row.config["rope_scaling"])
    rows = rotary_table(config, ratio=RATIOS[kind], positions=POSITIONS, device=torch.device("cpu"))
    expected = frequencies(
        width, row.config[facts.theta], row.config[facts.scaling] if facts.scaling else None
    )
    angles = (torch.arange(POSITIONS)[:, None] * expected.double()).repeat_interleave(2, dim=-1)
    assert (rows.cosine - angles.cos()).abs().max() < 1e-3
    assert (rows.sine - angles.sin()).abs().max() < 1e-3
