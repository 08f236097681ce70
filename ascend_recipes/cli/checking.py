"""Checks every recipe at once, over all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ascend_recipes.cli.pipeline import planned_launch
from ascend_recipes.compose import recipe_names
from ascend_recipes.errors import Finding, RecipeError, Severity


@dataclass(frozen=True)
class Verdict:
    """What checking one recipe said."""

    recipe: str
    digest: str
    """Digest of the plan; empty if the recipe is refused."""
    findings: tuple[Finding, ...]

    @property
    def refused(self) -> bool:
        """Whether there is no plan."""
        return not self.digest

    @property
    def doubtful(self) -> bool:
        """Whether there is a plan with warnings, which `--strict` refuses."""
        warned = any(item.severity is Severity.WARNING for item in self.findings)
        return warned and not self.refused

    def to_json(self) -> dict[str, object]:
        """The object of the document."""
        findings = [item.to_json() for item in self.findings]
        return {"recipe": self.recipe, "digest": self.digest, "findings": findings}


def check_all(
    words: Sequence[str], config_dirs: Sequence[Path], *, workers: int | None = None
) -> list[Verdict]:
    """Plan every recipe with the same overrides: those of the user's folders, or else ours.

    Args:
        words: Overrides that apply to each recipe.
        config_dirs: Further folders with recipes and presets; the recipes in them alone are
            checked, where there are some.
        workers: Processes; as many as there are cores unless given.
    """
    names = names_to_check(config_dirs)
    workers = min(workers or len(os.sched_getaffinity(0)), len(names))
    check = partial(_check, words=tuple(words), config_dirs=tuple(config_dirs))
    if workers < 2:
        return [check(name) for name in names]
    _load_stages()
    # Forked, so that a worker starts with everything imported; this process has one thread.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        return list(pool.map(check, names, chunksize=4))


def names_to_check(config_dirs: Sequence[Path]) -> list[str]:
    """Recipes of a user's folders; where these hold none, every recipe that can be named."""
    entries = recipe_names(config_dirs)
    folders = [folder.resolve() for folder in config_dirs]
    own = [entry for entry in entries if entry.path.parents[1].resolve() in folders]
    return [entry.name for entry in own or entries]


def _check(name: str, *, words: tuple[str, ...], config_dirs: tuple[Path, ...]) -> Verdict:
    try:
        planned = planned_launch((f"recipe={name}", *words), config_dirs)
    except RecipeError as error:
        return Verdict(name, "", error.findings)
    return Verdict(name, planned.plan.digest, planned.findings)


def _load_stages() -> None:
    """Import what every worker needs, before there are workers."""
    from ascend_recipes import plan, resolve, validate

    assert all(module.__name__ for module in (plan, resolve, validate))
