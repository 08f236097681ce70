"""Try a configuration: what all light stages say about some words with others appended.

Composing takes most of the time. Appended words that only set or remove values are therefore
applied to the merged tree; those that choose a preset are composed anew.
"""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from ascend_recipes.compose import Composition, compose_recipe, is_group
from ascend_recipes.errors import COMMAND_LINE, Finding, RecipeError, Source
from ascend_recipes.findings import finding
from ascend_recipes.plan import PlannedLaunch, plan_launch
from ascend_recipes.registry.load import load_registry
from ascend_recipes.rendering.table import field_of
from ascend_recipes.resolve import resolve_recipe
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.validate import section_models, validate_recipe
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
            found = tuple(_with_our_name(item, tree) for item in error.findings)
            told = RecipeError(found, error.exit_code, error.complete)
            return Trial(found, tree, None, told)
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


def _with_our_name(item: Finding, tree: dict[str, Json]) -> Finding:
    """The finding; of a key that vLLM has, or that another section has, with its place here."""
    name = item.at.rpartition(".")[2]
    if item.id != "schema.unknown_key" or not (item.fix == "" or item.fix.startswith("~")):
        return item
    place = field_of(name) or _section_field(name)
    # A field of another kind, as after `drafter=none`, has its place already: it goes.
    if place in (None, item.at):
        return item
    value: Json = tree
    for key in item.at.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if item.fix and not isinstance(value, dict):
        word = shlex.quote(fit_for_hydra(f"{place}={json.dumps(value, ensure_ascii=False)}"))
        return replace(item, fix=f"{item.fix} {word}")
    hint = finding("schema.unknown_key", path=item.at, section="", known="", suggestion=place)
    return replace(item, fix=hint.fix, fix_zh=hint.fix_zh)


def _section_field(name: str) -> str | None:
    """The only section of recipes that has a field of this name."""
    holders = [
        section
        for section in Recipe.model_fields
        if any(name in model.model_fields for model in section_models(section))
    ]
    return f"{holders[0]}.{name}" if len(holders) == 1 else None


def override_words(fix: str) -> tuple[str, ...]:
    """The overrides of a fix as typed; empty where it is something else to do."""
    try:
        words = tuple(shlex.split(fix))
    except ValueError:
        return ()
    return words if words and all(_OVERRIDE.match(word) for word in words) else ()


def set_leaf(tree: dict[str, Json], word: str) -> None:
    """Set the value of an override word in a tree, or remove it."""
    key, value = _parsed(word)
    *around, last = key.split(".")
    for key in around:
        inner = tree.get(key)
        if not isinstance(inner, dict):
            inner = tree[key] = {}
        tree = inner
    if word.startswith("~"):
        tree.pop(last, None)
        return
    value = json.loads(value)
    before = tree.get(last)
    both = isinstance(before, dict) and isinstance(value, dict)
    tree[last] = {**before, **value} if both else value  # type: ignore[dict-item]


@lru_cache(maxsize=1024)
def _parsed(word: str) -> tuple[str, str]:
    """Key and value of an override as Hydra's grammar reads them, the value as JSON."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    item = OverridesParser.create().parse_override(fit_for_hydra(word))
    value = None if item.is_delete() else item.value()
    return item.key_or_group, json.dumps(value, default=str)
