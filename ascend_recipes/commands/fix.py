"""`fix`: the smallest set of changes that makes a refused configuration acceptable."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ascend_recipes.commands.changes import Change, changes_for, field_owner, value_at
from ascend_recipes.commands.derived import derived_text
from ascend_recipes.commands.search import (
    Judge,
    Search,
    Trial,
    applied,
    is_error,
    without_repeats,
)
from ascend_recipes.errors import Finding, RecipeError, Severity
from ascend_recipes.findings import finding
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.documentation import field_text
from ascend_recipes.words import split_override


@dataclass(frozen=True)
class Step:
    """A change of the proposal, and what it means."""

    change: Change
    path: str
    before: Json
    after: Json
    cost: str
    """What the user gives up, in words."""
    returns: tuple[str, ...]
    """Findings that come back without this change."""

    def to_json(self) -> dict[str, Json]:
        """The object of the document."""
        return {
            "change": self.change.text,
            "at": self.path,
            "before": self.before,
            "after": self.after,
            "cost": self.cost,
            "returns": list(self.returns),
        }


@dataclass(frozen=True)
class Proposal:
    """The nearest configuration that is acceptable."""

    recipe: str
    found: tuple[Finding, ...]
    """What is wrong with the configuration as typed."""
    steps: tuple[Step, ...]
    words: tuple[str, ...]
    """The whole command line of the acceptable configuration."""
    planned: PlannedLaunch
    trials: int

    def to_json(self) -> dict[str, Json]:
        """The body of the document."""
        return {
            "recipe": self.recipe,
            "digest": self.planned.plan.digest,
            "found": [dict(item.to_json()) for item in self.found],
            "steps": [step.to_json() for step in self.steps],
            "words": list(self.words),
            "trials": self.trials,
        }


def propose_fix(
    words: Sequence[str], config_dirs: Sequence[Path], *, strict: bool = False
) -> Proposal:
    """Search for the nearest acceptable configuration.

    Args:
        words: The command line, `recipe=…` among it.
        config_dirs: Further folders with recipes and presets.
        strict: Warnings must go too.

    Raises:
        RecipeError: nothing that we know to try helps; the findings themselves.
    """
    judge = Judge(tuple(config_dirs), _is_doubtful if strict else is_error)
    start = judge(words, ())
    search = Search(judge, words, lambda trial: changes_for(trial.findings[0], trial.tree, words))
    needed = search.run(start)
    if needed is None:
        raise _no_fix(start)
    return _proposal(judge, words, start, needed)


def derived_recipe(proposal: Proposal) -> str:
    """Text of a recipe that says the same as the proposal's command line.

    Raises:
        RecipeError: the proposal takes a key away that a file of the user's holds.
    """
    remark = f"{proposal.recipe}, changed so that every rule accepts it."
    return derived_text(proposal.words, remark, {})


def _is_doubtful(item: Finding) -> bool:
    return item.severity in (Severity.ERROR, Severity.WARNING)


def _proposal(
    judge: Judge, words: Sequence[str], start: Trial, changes: tuple[Change, ...]
) -> Proposal:
    kept, added = applied(words, changes)
    trial = judge(kept, added)
    assert trial.planned is not None
    steps = tuple(_step(judge, words, trial, changes, change) for change in changes)
    recipe = next(str(value) for key, value in map(split_override, words) if key == "recipe")
    words = without_repeats(kept + added)
    return Proposal(recipe, start.findings, steps, words, trial.planned, judge.trials)


def _step(
    judge: Judge, words: Sequence[str], after: Trial, changes: tuple[Change, ...], change: Change
) -> Step:
    fewer = tuple(item for item in changes if item is not change)
    without = judge(*applied(words, fewer))
    path = split_override((*change.words, change.dropped)[0])[0].lstrip("~")
    old, new = value_at(without.tree, path), value_at(after.tree, path)
    returns = tuple(dict.fromkeys(item.id for item in without.findings))
    return Step(change, path, old, new, _cost(path, old, new, after.tree), returns)


def _cost(path: str, old: Json, new: Json, tree: dict[str, Json]) -> str:
    """What a change means: the field's text, and by how much it moves."""
    owner = field_owner(path, tree)
    text = field_text(owner, path.rpartition(".")[2]).rstrip(".") if owner else ""
    if isinstance(old, bool) or not isinstance(old, int | float) or not old:
        return text
    return f"{text}: {(new / old - 1) * 100:+.0f} %" if isinstance(new, int | float) else text


def _no_fix(start: Trial) -> RecipeError:
    return RecipeError((finding("fix.none_found"), *start.findings))
