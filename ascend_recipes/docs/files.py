"""Every generated file with the text that it should have."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from ascend_recipes.commands.schema import schema_files
from ascend_recipes.compose import compose_recipe, recipe_names
from ascend_recipes.docs.commands import commands_section
from ascend_recipes.docs.deployments import advice_section, deployments_page
from ascend_recipes.docs.errors import errors_page
from ascend_recipes.docs.gallery import gallery_page
from ascend_recipes.docs.log_messages import log_messages_page
from ascend_recipes.docs.output import output_page
from ascend_recipes.docs.reference import reference_page
from ascend_recipes.docs.surface import surface_page
from ascend_recipes.documented.compare import comparisons
from ascend_recipes.plan import PlannedLaunch, plan_launch
from ascend_recipes.registry.load import load_registry
from ascend_recipes.resolve import resolve_recipe
from ascend_recipes.validate import validate_recipe

PlanOf = Callable[..., PlannedLaunch]
"""What a list of override words plans."""


def generated_files(root: Path, plan_of: PlanOf | None = None) -> Iterator[tuple[Path, str]]:
    """Path below a checkout and text of each generated file.

    Args:
        root: Folder of the checkout.
        plan_of: Plans override words; for callers that have planned most of them already.
    """
    plan = plan_of or _planned
    for path, schema in schema_files(root):
        yield path, json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    docs = root / "docs"
    yield docs / "recipe-reference.md", reference_page()
    yield docs / "json-output.md", output_page()
    yield docs / "errors.md", errors_page(load_registry().findings)
    yield docs / "log-messages.md", log_messages_page(load_registry().log_messages)
    names = [entry.name for entry in recipe_names()]
    yield docs / "recipe-gallery.md", gallery_page([plan(f"recipe={name}") for name in names])
    page = deployments_page(load_registry(), lambda words: plan(*words).resolved.recipe)
    commands = commands_section(list(comparisons(load_registry(), plan)))
    rendered = [plan(f"recipe={name}", "runtime=vllm_ascend") for name in names]
    yield docs / "documented-deployments.md", page + advice_section(rendered) + commands
    yield docs / "surface.md", surface_page()


@cache
def _planned(*words: str) -> PlannedLaunch:
    composition = compose_recipe(words)
    recipe = validate_recipe(composition)
    return plan_launch(resolve_recipe(recipe, load_registry(), composition.source))
