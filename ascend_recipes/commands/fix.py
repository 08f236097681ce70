"""`fix`: the smallest set of changes that makes a refused configuration acceptable.

A best-first search over change sets, by their number and then by weight. Only the first finding of
a configuration is branched on: every acceptable set holds a change against it, so nothing is lost.
"""

import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from ascend_recipes.commands.changes import Change, changes_for, field_owner, value_at
from ascend_recipes.compose import Composition, compose_recipe
from ascend_recipes.errors import Finding, RecipeError, Severity, recipe_error
from ascend_recipes.plan import PlannedLaunch, plan_launch
from ascend_recipes.registry.load import load_registry
from ascend_recipes.resolve import resolve_recipe
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.documentation import field_text
from ascend_recipes.validate import validate_recipe
from ascend_recipes.words import fit_for_hydra, split_override

_MOST_TRIALS = 400


@dataclass(frozen=True)
class Trial:
    """A configuration and what the stages say about it."""

    findings: tuple[Finding, ...]
    """What must go: errors, and warnings too where they count."""
    tree: dict[str, Json]
    """The merged configuration; empty if it does not compose."""
    planned: PlannedLaunch | None


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


@dataclass
class Judge:
    """Runs the stages over a set of words; leaves are set in the merged tree, without Hydra."""

    config_dirs: tuple[Path, ...]
    strict: bool
    trials: int = 0
    _composed: dict[tuple[str, ...], Composition] = field(default_factory=dict)

    def __call__(self, words: Sequence[str], added: Sequence[str]) -> Trial:
        """Judge the words of a command line with others appended."""
        self.trials += 1
        tree: dict[str, Json] = {}
        try:
            composition = self._compose(words, added)
            tree = composition.tree
            try:
                planned = self._plan(composition)
            except RecipeError as error:
                raise composition.locate(error) from None
        except RecipeError as error:
            return Trial(tuple(self._counted(error.findings)), tree, None)
        return Trial(tuple(self._counted(planned.findings)), tree, planned)

    def _plan(self, composition: Composition) -> PlannedLaunch:
        recipe = validate_recipe(composition)
        return plan_launch(resolve_recipe(recipe, load_registry(), composition.source))

    def _counted(self, findings: Sequence[Finding]) -> Iterator[Finding]:
        counted = {Severity.ERROR, Severity.WARNING} if self.strict else {Severity.ERROR}
        return (item for item in findings if item.severity in counted)

    def _compose(self, words: Sequence[str], added: Sequence[str]) -> Composition:
        """Merge the words; those that only set leaves are cheap."""
        leaves = [word for word in added if _sets_leaf(word)]
        whole = (*words, *(word for word in added if word not in leaves))
        if whole not in self._composed:
            fitted = [fit_for_hydra(word) for word in whole]
            self._composed[whole] = compose_recipe(fitted, self.config_dirs)
        composition = self._composed[whole]
        tree: dict[str, Json] = json.loads(json.dumps(composition.tree))
        for word in leaves:
            _set_leaf(tree, word)
        return replace(composition, tree=tree | {"changed": True})


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
    judge = Judge(tuple(config_dirs), strict)
    start = judge(words, ())
    order = count()
    queue: list[tuple[int, float, int, tuple[Change, ...]]] = [(0, 0.0, next(order), ())]
    seen: set[frozenset[Change]] = {frozenset()}
    while queue and judge.trials < _MOST_TRIALS:
        size, weight, _, changes = heapq.heappop(queue)
        trial = judge(*_applied(words, changes)) if changes else start
        if trial.planned is not None and not trial.findings:
            needed = _minimal(judge, words, changes)
            return _proposal(judge, words, start, needed)
        if not trial.findings:
            continue
        for change in changes_for(trial.findings[0], trial.tree, words):
            grown = frozenset((*changes, change))
            if grown not in seen:
                seen.add(grown)
                item = (size + 1, weight + change.weight, next(order), (*changes, change))
                heapq.heappush(queue, item)
    raise _no_fix(start)


def derived_recipe(proposal: Proposal) -> str:
    """Text of a recipe that says the same as the proposal's command line.

    Raises:
        RecipeError: the proposal takes a key away that a file of the user's holds.
    """
    import yaml

    choices, values = [], {}
    for word in proposal.words:
        key, value = split_override(word)
        if word.startswith("~"):
            raise recipe_error(
                "fix.line_to_delete",
                f"{key} stands in a file: a recipe that builds on it cannot take it away",
                at=key,
                fix="delete the line that the finding names",
            )
        if key == "recipe":
            continue
        if _is_choice(word):
            choices.append(f"override /{key}: {value}")
        else:
            values[key] = word
    tree: dict[str, Json] = {}
    for word in values.values():
        _set_leaf(tree, word)
    body = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True) if tree else ""
    lines = ["# @package _global_", f"# {proposal.recipe}, changed so that every rule accepts it."]
    lines += ["defaults:", f"  - {proposal.recipe}", *(f"  - {item}" for item in choices)]
    return "\n".join(lines) + "\n" + body


def _applied(
    words: Sequence[str], changes: Sequence[Change]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    dropped = {change.dropped for change in changes}
    kept = tuple(word for word in words if word not in dropped)
    return kept, tuple(word for change in changes for word in change.words)


def _minimal(judge: Judge, words: Sequence[str], changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """Leave out every change that is not needed after all."""
    for change in changes:
        fewer = tuple(item for item in changes if item is not change)
        trial = judge(*_applied(words, fewer))
        if trial.planned is not None and not trial.findings:
            return _minimal(judge, words, fewer)
    return changes


def _proposal(
    judge: Judge, words: Sequence[str], start: Trial, changes: tuple[Change, ...]
) -> Proposal:
    kept, added = _applied(words, changes)
    trial = judge(kept, added)
    assert trial.planned is not None
    steps = tuple(_step(judge, words, trial, changes, change) for change in changes)
    recipe = next(str(value) for key, value in map(split_override, words) if key == "recipe")
    words = _without_repeats(kept + added)
    return Proposal(recipe, start.findings, steps, words, trial.planned, judge.trials)


def _without_repeats(words: Sequence[str]) -> tuple[str, ...]:
    """Keep the last word for a key: it wins anyway."""
    last = {split_override(word)[0]: word for word in words}
    return tuple(word for word in dict.fromkeys(words) if last[split_override(word)[0]] == word)


def _step(
    judge: Judge, words: Sequence[str], after: Trial, changes: tuple[Change, ...], change: Change
) -> Step:
    fewer = tuple(item for item in changes if item is not change)
    without = judge(*_applied(words, fewer))
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
    told = Finding(
        id="fix.none_found",
        message="no change that we know to try makes this configuration acceptable",
        fix="follow the findings below; ascend-run explain KEY says where a value comes from",
    )
    return RecipeError((told, *start.findings))


def _is_choice(word: str) -> bool:
    key, value = split_override(word)
    return "." not in key and value is not None and not value.startswith(("[", "{"))


def _sets_leaf(word: str) -> bool:
    return "." in split_override(word)[0] and not word.startswith(("~", "+"))


def _set_leaf(tree: dict[str, Json], word: str) -> None:
    """Set the value of an override word in a tree."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    item = OverridesParser.create().parse_override(fit_for_hydra(word.lstrip("+")))
    *around, last = item.key_or_group.split(".")
    for key in around:
        inner = tree.get(key)
        if not isinstance(inner, dict):
            inner = tree[key] = {}
        tree = inner
    tree[last] = json.loads(json.dumps(item.value(), default=str))
