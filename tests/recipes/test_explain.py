"""Every leaf of every golden plan says where it comes from, and the place exists."""

from functools import cache
from pathlib import Path

import pytest

from ascend_recipes.commands.explain import PLAN, RECIPE, explain, schema_source
from ascend_recipes.compose import recipe_names
from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.paths import PACKAGE, data_root
from ascend_recipes.planning.ledger import plan_leaves
from ascend_recipes.schema.plan import LaunchPlan
from tests.conftest import composed_plan_of as planned
from tests.registry.test_rows import defines

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = [entry.name for entry in recipe_names()]


@cache
def length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def exists(layer: str) -> bool:
    """Whether a layer is a line of a file, a function of ours, or the command line."""
    place, _, rest = layer.rpartition(":")
    if place.startswith(("ascend_recipes.", "ascend_recipes:")):
        return defines(layer)
    file = next((root / place for root in (data_root(), PACKAGE) if (root / place).is_file()), None)
    return file is not None and rest.isdigit() and 1 <= int(rest) <= length(file)


@pytest.mark.parametrize("name", NAMES)
def test_every_leaf_of_the_golden_plan_has_a_source_that_exists(name):
    golden = LaunchPlan.model_validate_json((GOLDEN / f"{name}.plan.json").read_text())
    explained = {item.key: item for item in explain(*planned(f"recipe={name}"))}
    leaves = dict(plan_leaves(golden))
    assert set(leaves) == set(explained)
    for key, item in explained.items():
        assert item.value == leaves[key], key
        assert item.layers and item.because, key
        missing = [layer for layer in item.layers if not exists(layer)]
        assert missing == [], f"{key}: {missing}"


def test_a_line_of_a_recipe_states_the_value_that_it_is_the_source_of():
    for item in explain(*planned("recipe=deepseek_v4_a3_pd")):
        last = item.layers[-1]
        if last.startswith("recipes/") and "." in item.key:
            place, _, line = last.rpartition(":")
            text = (data_root() / place).read_text(encoding="utf-8").splitlines()[int(line) - 1]
            assert text.strip() and not text.startswith("#"), (item.key, last)


def test_the_check_of_places_can_fail():
    assert exists("recipes/serve.yaml:1")
    assert not exists("recipes/serve.yaml:9999")
    assert not exists("recipes/nowhere.yaml:1")
    assert not exists("schema default")
    assert exists("ascend_recipes.plan:plan_launch")
    assert not exists("ascend_recipes.plan:no_such_rule")


def test_a_recipe_value_shows_its_layers_and_what_follows():
    found = explain(*planned("recipe=qwen3_5_27b_a2", "scheduler.max_num_seqs=7"), "scheduler")
    item = next(entry for entry in found if entry.key == "scheduler.max_num_seqs")
    assert item.part == RECIPE
    assert [layer.partition(":")[0] for layer in item.layers] == [
        "ascend_recipes/schema/serving.py",
        "recipes/scheduler/balanced.yaml",
        "recipes/recipe/qwen3_5_27b_a2.yaml",
        "command line",
    ]
    assert "engine.max_num_seqs" in item.follows


def test_a_key_may_name_a_part_of_the_plan_and_of_the_recipe():
    found = explain(*planned("recipe=qwen3_5_27b_a2"), "graph")
    assert {item.part for item in found} == {PLAN, RECIPE}


def test_unknown_key_suggests_the_closest():
    with pytest.raises(RecipeError) as caught:
        explain(*planned("recipe=qwen3_5_27b_a2"), "engine.max_num_sqs")
    assert caught.value.exit_code is ExitCode.USAGE
    assert "engine.max_num_seqs" in caught.value.findings[0].fix


def test_a_default_is_the_line_of_its_field_in_the_schema():
    recipe = planned("recipe=qwen3_5_27b_a2")[1].resolved.recipe
    source = schema_source("cache.memory_fraction", recipe)
    text = Path(source.origin).read_text(encoding="utf-8").splitlines()[(source.line or 1) - 1]
    assert text.strip().startswith("memory_fraction:")
