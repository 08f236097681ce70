"""`transpose`: the same deployment on another generation of machines, and what that costs.

The search of `fix`, with the hardware held: everything that must change is changed, each change
with the findings that come back without it; what is lost is told apart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascend_recipes.commands.changes import Change, value_at
from ascend_recipes.commands.demands import demands, is_served
from ascend_recipes.commands.derived import derived_text
from ascend_recipes.commands.donors import Donor, documented_by, find_donors
from ascend_recipes.commands.losses import find_losses
from ascend_recipes.commands.search import (
    Judge,
    Search,
    Trial,
    applied,
    cheapest_first,
    is_choice,
    is_error,
    minimal,
    without_repeats,
)
from ascend_recipes.commands.transposing import Options
from ascend_recipes.errors import ExitCode, Finding, RecipeError, Severity
from ascend_recipes.findings import finding
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.base import Json
from ascend_recipes.words import split_override

_MOST_TRIALS = 150
"""For each of two searches; a configuration takes about a twentieth of a second."""


@dataclass(frozen=True)
class Swap:
    """A value that changes, and why."""

    at: str
    before: Json
    after: Json
    returns: tuple[str, ...]
    """Findings that come back without the change that it is part of."""
    documented_by: str
    """Shipped recipe for the generation that says the same; empty if none does."""

    def to_json(self) -> dict[str, Json]:
        """The object of the document."""
        return {
            "at": self.at,
            "before": self.before,
            "after": self.after,
            "returns": list(self.returns),
            "documented_by": self.documented_by,
        }


@dataclass(frozen=True)
class Transposition:
    """A deployment as it can run on another generation."""

    recipe: str
    source: str
    """Generation that the recipe is for."""
    target: str
    donors: tuple[str, ...]
    """Shipped recipes of the same model for the generation, the most similar first."""
    swaps: tuple[Swap, ...]
    losses: tuple[Finding, ...]
    remaining: tuple[Finding, ...]
    """Warnings, and what stops a start, that the recipe did not have."""
    words: tuple[str, ...]
    """The whole command line of the result."""
    before: PlannedLaunch
    planned: PlannedLaunch
    trials: int

    def to_json(self) -> dict[str, Json]:
        """The body of the document."""
        return {
            "recipe": self.recipe,
            "source": self.source,
            "target": self.target,
            "digest": self.planned.plan.digest,
            "donors": list(self.donors),
            "changes": [item.to_json() for item in self.swaps],
            "lost": [dict(item.to_json()) for item in self.losses],
            "remaining": [dict(item.to_json()) for item in self.remaining],
            "words": list(self.words),
            "trials": self.trials,
        }


def transpose(words: Sequence[str], target: str, config_dirs: Sequence[Path]) -> Transposition:
    """Propose the deployment of a command line on another generation of machines.

    Args:
        words: the command line, `recipe=…` among it.
        target: row in `registry/hardware`.
        config_dirs: further folders with recipes and presets.

    Raises:
        RecipeError: no such generation or the recipe's own (exit code 2), a recipe that is refused
            where it is, or nothing that runs on the generation: what remains, and why (3).
    """
    folders = tuple(config_dirs)
    known = load_registry(folders).hardware
    known.file(target)
    start = Judge(folders)(words, ())
    if start.refusal is not None:
        raise start.refusal
    assert start.planned is not None
    source = start.planned.resolved
    if source.recipe.hardware == target:
        others = " | ".join(f"--to {name}" for name in known if name != target)
        same = finding("transpose.same_hardware", at="hardware", fix=others, hardware=target)
        raise RecipeError((same,), ExitCode.USAGE)
    typed = tuple(word for word in words if split_override(word)[0] != "hardware")
    held = (*typed, f"hardware={target}")
    donors = find_donors(source, target, folders)
    options = Options(source, target, donors, held, folders)
    judge = Judge(folders)
    swapped = judge(typed, (held[-1],))
    if not is_served(source, target):
        raise _impossible(source.recipe.hardware, target, swapped)
    judge, changes = _search(start, held, options)
    return _transposition(judge, start, held, changes, options)


def _search(
    start: Trial, held: tuple[str, ...], options: Options
) -> tuple[Judge, tuple[Change, ...]]:
    """Changes that leave no new warning either; failing that, changes that leave no error."""
    assert start.planned is not None
    known = {item.id for item in start.planned.findings}
    folders = options.config_dirs

    def is_new(item: Finding) -> bool:
        return is_error(item) or (item.severity is Severity.WARNING and item.id not in known)

    def required(planned: PlannedLaunch) -> tuple[Finding, ...]:
        return tuple(demands(options.source, options.donors, planned))

    closest: Trial | None = None
    for judge in (Judge(folders, is_new, required), Judge(folders)):
        search = Search(judge, held, options, cheapest_first, _MOST_TRIALS)
        found = search.run(judge(held, ()))
        if found is not None:
            apart = tuple(part for change in found for part in _parts(change))
            return judge, minimal(judge, held, apart)
        closest = search.closest
    assert closest is not None
    raise _impossible(options.source.recipe.hardware, options.target, closest)


def _parts(change: Change) -> tuple[Change, ...]:
    """The words of a change one by one: each must be needed."""
    if change.dropped:
        return (change,)
    return tuple(Change((word,), weight=change.weight) for word in change.words)


def _transposition(
    judge: Judge,
    start: Trial,
    held: tuple[str, ...],
    changes: tuple[Change, ...],
    options: Options,
) -> Transposition:
    kept, added = applied(held, changes)
    final = Judge(options.config_dirs)(kept, added)
    assert final.planned is not None
    assert start.planned is not None
    base = _base(start, held, changes, options)
    swaps = [Swap("hardware", options.source.recipe.hardware, options.target, (), "")]
    for change in changes:
        fewer = tuple(item for item in changes if item is not change)
        back = tuple(dict.fromkeys(item.id for item in judge(*applied(held, fewer)).findings))
        swaps += _swaps(change, base, final, back, options.donors)
    return Transposition(
        recipe=start.planned.plan.recipe,
        source=options.source.recipe.hardware,
        target=options.target,
        donors=tuple(donor.name for donor in options.donors),
        swaps=tuple(swaps),
        losses=find_losses(start.planned, final.planned),
        remaining=_remaining(start.planned, final.planned),
        words=without_repeats(kept + added),
        before=start.planned,
        planned=final.planned,
        trials=judge.trials,
    )


def _base(
    start: Trial, held: tuple[str, ...], changes: tuple[Change, ...], options: Options
) -> Trial:
    """What the values are compared with: the recipe, or the one that stands in for it."""
    swapped = tuple(change for change in changes if change.dropped)
    if not swapped:
        return start
    kept, added = applied(held, swapped)
    own = tuple(word for word in kept if not word.startswith("hardware="))
    return Judge(options.config_dirs)((*own, *added), ())


def _remaining(before: PlannedLaunch, after: PlannedLaunch) -> tuple[Finding, ...]:
    """Warnings and obstacles that the recipe does not have, one of an id.

    What a site must state is not the deployment's own.
    """
    known = {item.id for item in (*before.findings, *before.blockers)}
    warnings = (item for item in after.findings if item.severity is Severity.WARNING)
    found = (item for item in (*warnings, *after.blockers) if not item.at.startswith("site."))
    new = {item.id: item for item in found if item.id not in known}
    return tuple(new.values())


def _swaps(
    change: Change, base: Trial, final: Trial, back: tuple[str, ...], donors: tuple[Donor, ...]
) -> Iterator[Swap]:
    for word in change.words:
        path, value = split_override(word)
        if change.dropped:
            yield Swap(path, split_override(change.dropped)[1], value, back, "")
            continue
        if is_choice(word):
            path = f"{path}.kind"
        old, new = _value(base, path), _value(final, path)
        yield Swap(path, old, new, back, documented_by(donors, path, new))


def _value(trial: Trial, path: str) -> Json:
    """Value of a recipe path; of a role's path, what the role takes over where it says nothing."""
    assert trial.planned is not None
    tree: Json = trial.planned.resolved.recipe.model_dump(mode="json")
    own = value_at(tree, path)
    return value_at(tree, path.split(".", 2)[2]) if own is None and "roles." in path else own


def transposed_recipe(found: Transposition) -> str:
    """Text of a recipe that says the same as the result's command line.

    Raises:
        RecipeError: the command line takes a key away that a file of the user's holds.
    """
    facts = found.planned.resolved.recipe
    remark = f"{found.recipe} for {found.target} instead of {found.source}."
    about = f"{facts.model} ({facts.checkpoint.variant}) on {found.target}, after {found.recipe}"
    return derived_text(found.words, remark, {"about": about})


def _impossible(source: str, target: str, trial: Trial) -> RecipeError:
    told = finding("transpose.impossible", at="hardware", old=source, target=target)
    return RecipeError((told, *trial.findings))
