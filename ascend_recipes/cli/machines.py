"""What of a machine does not fit a recipe, for commands that take `--installed`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ascend_recipes.errors import Finding, Source
from ascend_recipes.machine import read_installed, this_machine
from ascend_recipes.offering import hold_misfits
from ascend_recipes.paths import display_path
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.yaml_files import leaf_lines

HERE = "here"
"""Word that stands for the machine that this runs on."""


def machine_findings(
    planned: PlannedLaunch, place: str, words: Sequence[str], config_dirs: Iterable[Path] = ()
) -> tuple[Finding, ...]:
    """Every finding over the recipe and a machine, each with where its value stands.

    Args:
        planned: the recipe.
        place: a file that holds what the machine has, or `here`.
        words: the recipe as typed.
        config_dirs: further folders with recipes and presets.

    Raises:
        RecipeError: the file cannot be read.
    """
    path = None if place == HERE else Path(place).expanduser()
    installed = this_machine() if path is None else read_installed(path)
    misfits = hold_misfits(planned, installed, words, config_dirs)
    return tuple(_located(misfits, planned.resolved, path))


def _located(
    misfits: Iterable[Finding], resolved: ResolvedRecipe, path: Path | None
) -> Iterator[Finding]:
    for item in misfits:
        section, _, field = item.at.partition(".")
        if section != "installed":
            yield replace(item, source=item.source or resolved.source_of(item.at))
        elif path is not None:
            line = leaf_lines(path).get((field,))
            yield replace(item, source=Source(origin=display_path(path), line=line))
        else:
            yield item
