"""Weights reckoned from architecture facts equal the headers of a checkpoint, number by number.

The checkpoints are those that `scale=tiny` writes: every structural feature of the published ones,
under the published names, in the model's own dtype.
"""

import math
from collections import Counter

import pytest

from ascend_recipes.memory.headers import component_of, read_checkpoint, read_tensors
from ascend_recipes.memory.views import role_views
from ascend_recipes.memory.weights import counted_parts, plan_weights
from ascend_recipes.tiny import ensure_tiny_checkpoint

pytestmark = pytest.mark.ops

RECIPES = {
    "qwen3_6_27b_w8a8_a3": "model with recurrent states and a drafter",
    "deepseek_v4_a3": "compressed context, experts, residual streams and a drafter",
    "deepseek_v4_pro_a3_2n": "the larger one",
}


@pytest.fixture(params=RECIPES, ids=RECIPES.get)
def tiny(request, plan, tmp_path):
    resolved = plan(f"recipe={request.param}", "scale=tiny", "device=emulated").resolved
    folder = ensure_tiny_checkpoint(
        tmp_path,
        family=resolved.model.family,
        model=dict(resolved.model.config),
        seed=0,
        dtype=resolved.recipe.checkpoint.dtype,
    )
    return role_views(resolved)[0], folder


def test_parameters_are_those_of_the_headers(tiny):
    view, folder = tiny
    stored = Counter()
    for path in folder.glob("*.safetensors"):
        for name, tensor in read_tensors(path).items():
            stored[component_of(name)] += math.prod(tensor.shape)
    counted = Counter()
    for part in counted_parts(view):
        named = part.component if part.component in ("experts", "drafter") else "layers"
        counted[named] += part.parameters
    # The vision tower is loaded by vllm_ascend only, and is not counted from the architecture.
    stored.pop("vision", None)
    assert counted == stored
    assert counted["drafter"] > 0


def test_bytes_are_those_of_the_headers(tiny):
    view, folder = tiny
    sizes = read_checkpoint(folder)
    vision = sum(size for name, size in sizes.tensors.items() if component_of(name) == "vision")
    assert plan_weights(view).source == "architecture"
    assert plan_weights(view).checkpoint_bytes == sizes.total - vision
    assert plan_weights(view, sizes).source == "safetensors headers"
    assert plan_weights(view, sizes).checkpoint_bytes == sizes.total
