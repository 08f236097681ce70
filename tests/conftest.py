"""Fixtures that every lane shares. Imports nothing heavy."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from ascend_recipes.compose import Composition, compose_recipe
from ascend_recipes.errors import Finding, RecipeError
from ascend_recipes.plan import PlannedLaunch, plan_launch
from ascend_recipes.registry.load import load_registry
from ascend_recipes.resolve import resolve_recipe
from ascend_recipes.validate import validate_recipe

BASE = "qwen3_5_27b_a2"


SWEEPS = (
    *("cluster/", "export/", "image/"),
    *("patching/test_patches_command", "patching/test_peers", "patching/test_report"),
    *("recipes/test_explain", "recipes/test_generated", "rendering/test_accepted"),
    *("golden/test_exports", "lint/test_hooks", "rendering/test_round_trip"),
    *("rules/test_cases", "rules/test_examples", "rules/test_fixes", "rules/test_texts"),
    *("rules/test_no_false_alarms", "unit/test_documents", "unit/test_fix", "unit/test_inspecting"),
    *("unit/test_launch_process", "unit/test_launch_session", "unit/test_pytest_plugin"),
    *("unit/test_setup", "unit/test_transpose", "unit/test_explain_arguments"),
)
"""What walks over all recipes and cases or starts processes, by the beginning of its path here:
`make fast` leaves it to `make test`."""


LONG = ("vllm/", "serve/")
"""Folders of files that take minutes. They come first: a file runs on one worker, and the other
would wait for one that comes last."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the sweeps, before markers are asked for, and put long files first."""
    here = Path(__file__).parent
    places = {item: item.path.relative_to(here).as_posix() for item in items}
    for item, place in places.items():
        if place.startswith(SWEEPS):
            item.add_marker(pytest.mark.sweep)
    items.sort(key=lambda item: not places[item].startswith(LONG))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden plans")


def plan_of(*overrides: str, config_dirs: tuple[Path, ...] = ()) -> PlannedLaunch:
    """Run the light stages; the base recipe unless one is named."""
    return composed_plan_of(*overrides, config_dirs=config_dirs)[1]


@cache
def composed_plan_of(
    *overrides: str, config_dirs: tuple[Path, ...] = ()
) -> tuple[Composition, PlannedLaunch]:
    """As `plan_of`, with the merged tree; each set of words is planned once."""
    named = any(item.startswith("recipe=") for item in overrides)
    words = overrides if named else (f"recipe={BASE}", *overrides)
    composition = compose_recipe(words, config_dirs)
    try:
        recipe = validate_recipe(composition)
        resolved = resolve_recipe(recipe, load_registry(), composition.source)
        return composition, plan_launch(resolved)
    except RecipeError as error:
        raise composition.locate(error) from None


def findings_of(*overrides: str, config_dirs: tuple[Path, ...] = ()) -> tuple[Finding, ...]:
    """Errors if the configuration is refused, else warnings and remarks."""
    try:
        return plan_of(*overrides, config_dirs=config_dirs).findings
    except RecipeError as error:
        return error.findings


@pytest.fixture(scope="session")
def plan() -> Callable[..., PlannedLaunch]:
    return plan_of


@pytest.fixture(scope="session")
def findings() -> Callable[..., tuple[Finding, ...]]:
    return findings_of
