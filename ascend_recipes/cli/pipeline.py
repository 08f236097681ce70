"""Runs the light stages for one set of override words.

Imports stand inside the functions: `list` needs no schema, a usage error needs no Hydra, and the
cold start of `ascend-run plan` is a promise.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.words import check_no_sweep, fit_for_hydra

if TYPE_CHECKING:
    from ascend_recipes.compose import Composition
    from ascend_recipes.plan import PlannedLaunch


StageHook = Callable[[str], None]


def check_recipe(words: Sequence[str], config_dirs: Sequence[Path]) -> None:
    """Compose and validate, to see whether the words hold together.

    Raises:
        RecipeError: every finding of the stage that stopped.
    """
    from ascend_recipes.validate import validate_recipe

    validate_recipe(composed(words, config_dirs))


@contextmanager
def _without_collection() -> Iterator[None]:
    """Thousands of small objects are made here that all stay: looking for garbage costs a tenth."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_without_collection()
def planned_launch(
    words: Sequence[str],
    config_dirs: Sequence[Path],
    *,
    on_stage: StageHook = lambda _: None,
) -> PlannedLaunch:
    """Compose, validate, resolve and plan.

    Args:
        words: Override words as typed, `recipe=…` among them.
        config_dirs: Further folders with recipes and presets.
        on_stage: Told when composing and when planning begins.

    Raises:
        RecipeError: every finding of the stage that stopped.
    """
    return planned_with_composition(words, config_dirs, on_stage=on_stage)[1]


def planned_with_composition(
    words: Sequence[str],
    config_dirs: Sequence[Path],
    *,
    on_stage: StageHook = lambda _: None,
) -> tuple[Composition, PlannedLaunch]:
    """As `planned_launch`, with the merged tree that knows who set each value.

    Raises:
        RecipeError: every finding of the stage that stopped.
    """
    on_stage("compose")
    composition = composed(words, config_dirs)
    on_stage("plan")
    from dataclasses import replace

    from ascend_recipes.trial import Bench

    bench = Bench(tuple(config_dirs))
    bench.keep(words, composition)
    trial = bench(words)
    found = trial.findings
    if found:
        from ascend_recipes.offering import hold_fixes

        found = hold_fixes(bench, words, trial)
    if trial.planned is None:
        raise RecipeError(found, trial.error.exit_code if trial.error else ExitCode.FINDINGS)
    return composition, replace(trial.planned, findings=found)


def composed(words: Sequence[str], config_dirs: Sequence[Path]) -> Composition:
    """Merge what the words name, for commands that also look at what is refused later.

    Raises:
        RecipeError: an unknown recipe or preset, a word that cannot be read, or a sweep.
    """
    check_no_sweep(words)
    from ascend_recipes.compose import compose_recipe

    return compose_recipe([fit_for_hydra(word) for word in words], config_dirs)
