"""Golden plans: a change of a plan is read in review as a diff."""

from pathlib import Path

import pytest

from ascend_recipes.compose import recipe_names

FOLDER = Path(__file__).parent
NAMES = [entry.name for entry in recipe_names()]
MAX_LINES = 150


@pytest.mark.parametrize("name", NAMES)
def test_plan_matches_golden(name, plan, request):
    text = plan(f"recipe={name}").plan.to_json()
    path = FOLDER / f"{name}.plan.json"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "review, then pytest --update-golden"
    assert len(text.splitlines()) <= MAX_LINES


def test_no_golden_plan_without_a_recipe():
    assert sorted(path.name for path in FOLDER.glob("*.json")) == sorted(
        f"{name}.plan.json" for name in NAMES
    )


@pytest.mark.parametrize("name", NAMES)
def test_golden_plan_names_no_machine(name):
    text = (FOLDER / f"{name}.plan.json").read_text(encoding="utf-8")
    assert str(Path.home()) not in text
    assert str(FOLDER.parents[1]) not in text
