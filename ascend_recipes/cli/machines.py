"""What of a machine does not fit a recipe, for commands that take `--installed`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ascend_recipes.errors import Finding, Source
from ascend_recipes.machine import InstalledVersions, read_installed, this_machine
from ascend_recipes.offering import Offer
from ascend_recipes.paths import display_path
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules import check_installed
from ascend_recipes.trial import Bench, Trial
from ascend_recipes.yaml_files import leaf_lines

HERE = "here"
"""Word that stands for the machine that this runs on."""


@dataclass(frozen=True)
class _Machine:
    """Judges words as the stages do, and then beside what a machine has."""

    bench: Bench
    installed: InstalledVersions

    def __call__(self, words: Sequence[str], added: Sequence[str] = ()) -> Trial:
        trial = self.bench(words, added)
        if trial.planned is None:
            return trial
        misfits = check_installed(trial.planned.resolved, self.installed)
        return replace(trial, findings=(*trial.findings, *misfits))


def machine_findings(
    planned: PlannedLaunch, place: str, words: Sequence[str], config_dirs: Iterable[Path] = ()
) -> tuple[Finding, ...]:
    """Every finding over the recipe and a machine, each with where its value stands.

    A fix is offered if it removes its finding, here too, and adds no error.

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
    misfits = tuple(check_installed(planned.resolved, installed))
    judge = _Machine(Bench(tuple(config_dirs)), installed)
    offer = Offer(judge, tuple(words), (*planned.findings, *misfits))
    return tuple(_located(map(offer.hold, misfits), planned.resolved, path))


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
