"""What of a machine does not fit a recipe, for commands that take `--installed`."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ascend_recipes.errors import Finding, Source
from ascend_recipes.machine import InstalledVersions, read_installed, this_machine
from ascend_recipes.paths import display_path
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules import check_installed
from ascend_recipes.yaml_files import leaf_lines

HERE = "here"
"""Word that stands for the machine that this runs on."""


def machine_findings(resolved: ResolvedRecipe, place: str) -> tuple[Finding, ...]:
    """Every finding over the recipe and a machine, each with where its value stands.

    Args:
        resolved: the recipe.
        place: a file that holds what the machine has, or `here`.

    Raises:
        RecipeError: the file cannot be read.
    """
    path = None if place == HERE else Path(place).expanduser()
    installed = this_machine() if path is None else read_installed(path)
    return tuple(_located(resolved, installed, path))


def _located(
    resolved: ResolvedRecipe, installed: InstalledVersions, path: Path | None
) -> Iterator[Finding]:
    for item in check_installed(resolved, installed):
        section, _, field = item.at.partition(".")
        if section != "installed":
            yield replace(item, source=item.source or resolved.source_of(item.at))
        elif path is not None:
            line = leaf_lines(path).get((field,))
            yield replace(item, source=Source(origin=display_path(path), line=line))
        else:
            yield item
