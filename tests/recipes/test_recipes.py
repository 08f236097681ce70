"""Every shipped recipe and preset composes, validates, resolves and plans without findings."""

from pathlib import Path

import pytest
import yaml

from ascend_recipes.compose import recipe_names
from ascend_recipes.paths import data_root
from ascend_recipes.planning.scale import TINY_PLAN_FIELDS, differing_fields
from ascend_recipes.registry.load import load_registry

ENTRIES = recipe_names()
NAMES = [entry.name for entry in ENTRIES]
PRESETS = sorted(
    path
    for path in (data_root() / "recipes").glob("*/*.yaml")
    if path.parent.name not in ("recipe", "scale", "site")
)


@pytest.mark.parametrize("name", NAMES)
def test_recipe_plans_without_findings(name, findings):
    assert findings(f"recipe={name}") == ()


@pytest.mark.parametrize("entry", ENTRIES, ids=NAMES)
def test_recipe_is_short_and_named_after_model_and_hardware(entry):
    assert len(entry.path.read_text(encoding="utf-8").splitlines()) <= 40
    row = load_registry().models[entry.model]
    # `deepseek_v4` is the short name of the smallest member; others carry the row's whole key.
    assert entry.name.startswith((entry.model, row.family))
    assert f"_{entry.hardware}" in entry.name
    assert entry.about and load_registry().hardware[entry.hardware]


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_preset_says_what_it_is_and_states_one_section(path: Path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert isinstance(yaml.safe_load(text), dict)


def test_the_recipe_that_this_project_is_named_for_exists():
    assert "deepseek_v4_a3" in NAMES


def runnable(plan):
    """Recipes that the native runtime could start, were it not for missing evidence."""
    for name in NAMES:
        planned = plan(f"recipe={name}")
        if {item.id for item in planned.blockers} <= {"runtime.unverified"}:
            yield name


def test_tiny_plan_differs_from_the_real_one_in_listed_fields_only(plan):
    names = list(runnable(plan))
    assert "qwen3_5_27b_a2" in names
    for name in names:
        real = plan(f"recipe={name}").plan
        tiny = plan(f"recipe={name}", "scale=tiny", "device=emulated").plan
        assert differing_fields(real, tiny) <= TINY_PLAN_FIELDS


def test_the_comparison_of_scales_can_fail(plan):
    real = plan().plan
    other = plan("scale=tiny", "device=emulated", "drafter=mtp").plan
    assert not differing_fields(real, other) <= TINY_PLAN_FIELDS


CHOICES = sorted(
    f"{path.parent.name}={path.stem}" for path in PRESETS if path.parent.name != "device"
)


@pytest.mark.parametrize("choice", CHOICES)
def test_any_preset_over_a_recipe_plans_or_is_refused_in_words(findings, choice):
    """Tried on the recipe with most of its own: roles, a heterogeneous cache, drafter, experts."""
    for finding in findings("recipe=deepseek_v4_a3_pd", choice):
        assert finding.message
        assert finding.id.partition(".")[0] not in ("compose", "internal")
