"""The memory planner counts the very tensors that a checkpoint holds."""

import json
from dataclasses import replace

import pytest

from ascend_recipes import tiny
from ascend_recipes.launch.weight_files import WeightsWanted, family_shapes, weight_findings
from ascend_recipes.memory.headers import component_of, read_checkpoint, read_tensors
from ascend_recipes.memory.views import role_views
from ascend_recipes.memory.weights import plan_weights

pytestmark = pytest.mark.ops

RECIPES = {
    "qwen3_5_27b_a2": ("scale=tiny", "device=emulated", "drafter=mtp"),
    "deepseek_v4_a3": ("checkpoint.variant=bf16", "quant=none"),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_counted_weights_equal_the_headers(recipe, plan, tmp_path):
    resolved = plan(f"recipe={recipe}", *RECIPES[recipe]).resolved
    row = resolved.model
    scale = plan("scale=tiny", "device=emulated").resolved.recipe.scale
    small = {**row.config, **tiny.tiny_family(row.family).TINY_VALUES}
    resolved = replace(
        resolved, recipe=resolved.recipe.model_copy(update={"scale": scale}), config=small
    )
    folder = tiny.ensure_tiny_checkpoint(
        tmp_path, family=row.family, model=dict(row.config), seed=0, dtype="bfloat16"
    )
    files = read_checkpoint(folder)
    (view,) = role_views(resolved)
    alone = replace(view, recipe=view.recipe.model_copy(update={"parallel": _single(view)}))
    tower = sum(size for name, size in files.tensors.items() if component_of(name) == "vision")
    counted, read = plan_weights(alone), plan_weights(alone, files)
    assert counted.checkpoint_bytes == files.total - tower
    assert read.checkpoint_bytes == files.total
    assert read.source == "safetensors headers"
    assert counted.device_bytes == counted.checkpoint_bytes
    for component in ("experts", "drafter"):
        found = [size for name, size in files.tensors.items() if component_of(name) == component]
        assert counted.components.get(component, 0) == sum(found)


def _single(view):
    return type(view.recipe.parallel)(ep=view.recipe.parallel.ep)


@pytest.mark.parametrize("format", ["bf16", "w8a8", "w4a8"])
def test_shapes_told_by_the_family_are_those_of_the_tensors(format, plan, tmp_path):
    """And with them the whole check of weight files finds nothing wrong."""
    row = plan("recipe=deepseek_v4_a3").resolved.model
    folder = tiny.ensure_tiny_checkpoint(
        tmp_path,
        family=row.family,
        model=dict(row.config),
        seed=0,
        dtype="bfloat16",
        quantization=format,
    )
    config = json.loads((folder / "config.json").read_text())
    shapes = family_shapes(row.family, config, drafter="mtp")
    files = [read_tensors(path) for path in folder.glob("*.safetensors")]
    stored = {name: item.shape for headers in files for name, item in headers.items()}
    extra = {name for name in stored if name.endswith(("_scale", "_offset", "scale_bias"))}
    packed = {name for name in shapes if format == "w4a8" and ".experts." in name}
    assert stored.keys() - (extra - shapes.keys()) == shapes.keys()
    plain = shapes.keys() - packed
    assert {name: stored[name] for name in plain} == {name: shapes[name] for name in plain}
    for name in packed:
        # Two outputs share a byte.
        rows, columns = shapes[name]
        assert stored[name] == (rows // 2, columns)
    method = None if format == "bf16" else "ascend"
    wanted = WeightsWanted(format=format, method=method, shapes=shapes)
    assert list(weight_findings(folder, config, wanted)) == []
