"""Try a configuration: what all light stages say about some words with others appended.

Composing takes most of the time. Appended words that only set or remove values are therefore
applied to the merged tree; those that choose a preset are composed anew.
"""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ascend_recipes.compose import Composition, compose_recipe, is_group
from ascend_recipes.errors import COMMAND_LINE, Finding, RecipeError, Source
from ascend_recipes.plan import PlannedLaunch, plan_launch
from ascend_recipes.registry.load import load_registry
from ascend_recipes.resolve import resolve_recipe
from ascend_recipes.schema.base import Json
from ascend_recipes.validate import validate_recipe
from ascend_recipes.words import fit_for_hydra, split_override

_OVERRIDE = re.compile(r"([+~]{0,2}[a-z][\w./]*=.*|~[a-z][\w./]*)\Z", re.DOTALL)


@dataclass(frozen=True)
class Trial:
    """A configuration and what the stages say about it."""

    findings: tuple[Finding, ...]
    """Of the stage that stopped, or warnings and remarks."""
    tree: dict[str, Json]
    """The merged configuration; empty if it does not compose."""
    planned: PlannedLaunch | None
    error: RecipeError | None = None
    """What stopped it."""

    @property
    def complete(self) -> bool:
        """Whether the rules were asked; findings of an earlier stage hide theirs."""
        return self.error is None or self.error.complete


@dataclass
class Bench:
    """Tries words; what has been composed is kept."""

    config_dirs: tuple[Path, ...] = ()
    trials: int = 0
    _composed: dict[tuple[str, ...], Composition] = field(default_factory=dict)

    def keep(self, words: Sequence[str], composition: Composition) -> None:
        """Take over what somebody has composed already."""
        self._composed[tuple(words)] = composition

    def __call__(self, words: Sequence[str], added: Sequence[str] = ()) -> Trial:
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
            return Trial(error.findings, tree, None, error)
        return Trial(planned.findings, tree, planned)

    def _plan(self, composition: Composition) -> PlannedLaunch:
        recipe = validate_recipe(composition)
        registry = load_registry(self.config_dirs)
        return plan_launch(resolve_recipe(recipe, registry, composition.source))

    def _compose(self, words: Sequence[str], added: Sequence[str]) -> Composition:
        """Merge the words; those that only set leaves are cheap."""
        leaves = [word for word in added if self._sets_leaf(word)]
        whole = (*words, *(word for word in added if word not in leaves))
        if whole not in self._composed:
            fitted = [fit_for_hydra(word) for word in whole]
            self._composed[whole] = compose_recipe(fitted, self.config_dirs)
        composition = self._composed[whole]
        if not leaves:
            return composition
        tree: dict[str, Json] = json.loads(json.dumps(composition.tree))
        for word in leaves:
            set_leaf(tree, word)
        typed = (Source(origin=COMMAND_LINE),)
        set_here = dict.fromkeys((split_override(word)[0] for word in leaves), typed)
        return replace(
            composition,
            tree=tree | {"changed": True},
            provenance={**composition.provenance, **set_here},
        )

    def _sets_leaf(self, word: str) -> bool:
        key, value = split_override(word)
        structured = value is not None and value.startswith("{")
        return "." in key or not (structured or is_group(key, self.config_dirs))


def override_words(fix: str) -> tuple[str, ...]:
    """The overrides of a fix as typed; empty where it is something else to do."""
    try:
        words = tuple(shlex.split(fix))
    except ValueError:
        return ()
    return words if words and all(_OVERRIDE.match(word) for word in words) else ()


def set_leaf(tree: dict[str, Json], word: str) -> None:
    """Set the value of an override word in a tree, or remove it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    item = OverridesParser.create().parse_override(fit_for_hydra(word))
    *around, last = item.key_or_group.split(".")
    for key in around:
        inner = tree.get(key)
        if not isinstance(inner, dict):
            inner = tree[key] = {}
        tree = inner
    if word.startswith("~"):
        tree.pop(last, None)
        return
    value = json.loads(json.dumps(item.value(), default=str))
    before = tree.get(last)
    both = isinstance(before, dict) and isinstance(value, dict)
    tree[last] = {**before, **value} if both else value  # type: ignore[dict-item]
