"""`pytest --recipes DIR`: every recipe of a folder becomes five tests.

`compose`, `validate`, `rules` and `plan` are the light stages of `ascend-run`; `golden` compares
the plan with the one recorded in `DIR/golden/`, where that folder exists. A stage that fails is
one failure: the stages after it are skipped, because there is nothing to test them on.
"""

from __future__ import annotations

import difflib
import io
import os
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ascend_recipes.errors import Finding, RecipeError, Severity

if TYPE_CHECKING:
    from ascend_recipes.compose import Composition
    from ascend_recipes.plan import PlannedLaunch
    from ascend_recipes.resolve import ResolvedRecipe
    from ascend_recipes.schema.recipe import Recipe


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plugin."""
    group = parser.getgroup("ascend_recipes", "recipes for vLLM on Ascend NPUs")
    group.addoption(
        "--recipes",
        action="append",
        default=[],
        metavar="DIR",
        help="test the recipes in DIR/recipe (a folder as --config-dir takes it)",
    )
    group.addoption(
        "--recipes-strict", action="store_true", help="a warning of a rule is a failure too"
    )
    group.addoption(
        "--update-plans", action="store_true", help="record the plans of --recipes in DIR/golden"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Have the folders collected, wherever they are."""
    for folder in _folders(config):
        if not (folder / "recipe").is_dir():
            raise pytest.UsageError(f"--recipes {folder}: there is no folder {folder / 'recipe'}")
        if not any(folder.is_relative_to(_path_of(arg)) for arg in config.args):
            config.args.append(str(folder))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> RecipeFile | None:
    """Take the recipe files below the folders that were named."""
    if file_path.suffix == ".yaml":
        for folder in _folders(parent.config):
            if file_path.parent == folder / "recipe":
                return RecipeFile.from_parent(parent, path=file_path)
    return None


class RecipeFile(pytest.File):
    """A recipe, and what each stage made of it; a stage runs once."""

    failed_at = ""
    """First stage that failed."""

    @property
    def root(self) -> Path:
        """Folder that holds recipes and presets."""
        return self.path.parents[1]

    def collect(self) -> Iterator[pytest.Item]:
        """One test a stage."""
        for stage in _STAGES:
            if stage != "golden" or self.golden.parent.is_dir() or _updates(self.config):
                yield RecipeStage.from_parent(self, name=stage)

    @property
    def golden(self) -> Path:
        """Where the plan is recorded."""
        return self.root / "golden" / f"{self.path.stem}.plan.json"

    @cached_property
    def composition(self) -> Composition:
        """The merged tree."""
        from ascend_recipes.compose import compose_recipe

        return compose_recipe([f"recipe={self.path.stem}"], [self.root])

    @cached_property
    def recipe(self) -> Recipe:
        """The validated recipe."""
        from ascend_recipes.validate import validate_recipe

        return validate_recipe(self.composition)

    @cached_property
    def resolved(self) -> ResolvedRecipe:
        """The recipe after the rules."""
        from ascend_recipes.registry.load import load_registry
        from ascend_recipes.resolve import resolve_recipe

        return resolve_recipe(self.recipe, load_registry((self.root,)), self.composition.source)

    @cached_property
    def planned(self) -> PlannedLaunch:
        """The plan with its reasons."""
        from ascend_recipes.plan import plan_launch

        return plan_launch(self.resolved)

    def told(self) -> tuple[Finding, ...]:
        """All that is said of the recipe: what an earlier stage hides too, with fixes that hold."""
        from ascend_recipes.offering import hold_fixes
        from ascend_recipes.trial import Bench

        words, bench = [f"recipe={self.path.stem}"], Bench((self.root,))
        return hold_fixes(bench, words, bench(words))


class RecipeStage(pytest.Item):
    """One stage of one recipe."""

    def runtest(self) -> None:
        """Run the stage; a mistake in the recipe is a failure without a traceback."""
        file = self.parent
        assert isinstance(file, RecipeFile)
        if file.failed_at:
            pytest.skip(f"{file.failed_at} failed")
        try:
            _STAGES[self.name](file)
        except RecipeError:
            file.failed_at = self.name
        # Outside, because pytest would show the error that is being handled too.
        if file.failed_at:
            pytest.fail(_text(file.told()), pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Name in reports: the recipe and the stage."""
        return self.path, None, f"{self.path.stem}: {self.name}"


def _check_rules(file: RecipeFile) -> None:
    # Remarks fail nothing, here as in `ascend-run check --strict`.
    findings = [item for item in file.resolved.findings if item.severity is Severity.WARNING]
    if not findings:
        return
    if file.config.getoption("--recipes-strict"):
        said = {(item.id, item.at) for item in findings}
        told = tuple(item for item in file.told() if (item.id, item.at) in said)
        pytest.fail(_text(told), pytrace=False)
    for finding in findings:
        source = finding.source
        here = source is not None and Path(source.origin).resolve() == file.path
        line = source.line if source is not None and here else None
        warning = pytest.PytestWarning(f"{finding.id}: {finding.message}")
        warnings.warn_explicit(warning, None, filename=str(file.path), lineno=line or 1)


def _compare_golden(file: RecipeFile) -> None:
    text = file.planned.plan.to_json()
    if _updates(file.config):
        file.golden.parent.mkdir(exist_ok=True)
        beside = file.golden.with_suffix(".new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(file.golden)
    elif not file.golden.is_file():
        pytest.fail(f"no plan is recorded in {file.golden}: {_recording(file)}", pytrace=False)
    elif (recorded := file.golden.read_text(encoding="utf-8")) != text:
        lines = difflib.unified_diff(
            recorded.splitlines(), text.splitlines(), "recorded", "now", n=1, lineterm=""
        )
        told = f"the plan has changed: review, then {_recording(file)}"
        pytest.fail("\n".join([told, *lines]), pytrace=False)


def _recording(file: RecipeFile) -> str:
    return f"pytest --recipes {os.path.relpath(file.root)} --update-plans"


_STAGES: dict[str, Callable[[RecipeFile], object]] = {
    "compose": lambda file: file.composition,
    "validate": lambda file: file.recipe,
    "rules": _check_rules,
    "plan": lambda file: file.planned,
    "golden": _compare_golden,
}


def _folders(config: pytest.Config) -> list[Path]:
    return [Path(folder).resolve() for folder in config.getoption("--recipes")]


def _path_of(argument: str) -> Path:
    return Path(argument.partition("::")[0]).resolve()


def _updates(config: pytest.Config) -> bool:
    return bool(config.getoption("--update-plans"))


def _text(findings: tuple[Finding, ...]) -> str:
    from ascend_recipes.cli.console import PlainConsole
    from ascend_recipes.cli.render import render_finding

    stream = io.StringIO()
    console = PlainConsole(stream)
    for finding in findings:
        console.print(render_finding(finding))
    return stream.getvalue()
