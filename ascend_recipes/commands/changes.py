"""Changes that may remove a finding: what the rule says to type, and what lies near the value.

A change is made of words as a user types them, so that a proposal can be tried, shown and saved in
the same form.
"""

import math
import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from ascend_recipes.errors import Finding
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.words import split_override

_WEIGHTS = {
    "graph": 1.0,
    "env": 1.0,
    "extra_args": 1.0,
    "serving": 1.0,
    "moe": 2.0,
    "scheduler": 2.0,
    "cache": 3.0,
    "drafter": 4.0,
    "attention": 4.0,
    "parallel": 5.0,
    "nodes": 7.0,
    "quant": 8.0,
    "checkpoint": 8.0,
    "runtime": 9.0,
}
"""How much of what a user asked for a change of the section takes away: graphs cost speed, the
scheduler capacity, weights accuracy. A preference, not a measurement; it only ranks proposals."""
_OTHER_WEIGHT = 6.0
_GUESS = 3.0
"""Added where we chose the value, not the rule that complains."""
_ANOTHER_DEPLOYMENT = 20.0
_KEPT = frozenset({"recipe", "model", "hardware", "name", "because", "site", "allow_reference"})
"""Changing these is another deployment, or hides a finding instead of removing it."""

_WORD = re.compile(r"(?<![\w.~=])(~?[a-z_][\w.]*=[^\s…]+|~[a-z_][\w.]+)")
_ALTERNATIVES = re.compile(r",?\s+or\s+|\n|;\s")
_SUGGESTED = re.compile(r"did you mean ([\w.]+)\?")


@dataclass(frozen=True)
class Change:
    """One step towards a configuration that the rules accept."""

    words: tuple[str, ...]
    """Overrides to append."""
    dropped: str = ""
    """Word of the command line that goes."""
    weight: float = 0.0
    """Rank among proposals with as many changes; the lower the better."""

    @property
    def text(self) -> str:
        """The change as one types it."""
        return " ".join((*((f"without {self.dropped}",) if self.dropped else ()), *self.words))


def changes_for(finding: Finding, tree: dict[str, Json], words: Sequence[str]) -> Iterator[Change]:
    """Every change worth trying against a finding.

    Args:
        finding: What shall go away.
        tree: The merged configuration that has the finding.
        words: Overrides that the user typed.
    """
    seen: set[tuple[tuple[str, ...], str]] = set()
    for change in (
        *_said_by_rule(finding.fix),
        *_renamed(finding, tree, words),
        *_left_out(finding, words),
        *_near(finding.at, tree),
    ):
        if (change.words, change.dropped) not in seen:
            seen.add((change.words, change.dropped))
            yield change


def _said_by_rule(fix: str) -> Iterator[Change]:
    """Alternatives of a fix; several words of one alternative belong together."""
    for alternative in _ALTERNATIVES.split(fix):
        found = tuple(word.rstrip(",.") for word in _WORD.findall(alternative))
        words = tuple(word for word in found if _section(word) not in _KEPT)
        if words and not any(word.endswith(("VALUE", "NAME")) for word in words):
            yield Change(words, weight=sum(_weight(word) for word in words))


def _renamed(finding: Finding, tree: dict[str, Json], words: Sequence[str]) -> Iterator[Change]:
    """A mistyped key under its right name, or gone."""
    if finding.id != "schema.unknown_key":
        return
    typed = [word for word in words if split_override(word)[0] == finding.at]
    gone = Change((), typed[-1]) if typed else Change((f"~{finding.at}",))
    if match := _SUGGESTED.search(finding.fix):
        value = spelled(value_at(tree, finding.at))
        yield Change((*gone.words, f"{match[1]}={value}"), gone.dropped, weight=0.5)
    yield Change(gone.words, gone.dropped, weight=_weight(finding.at))


def _left_out(finding: Finding, words: Sequence[str]) -> Iterator[Change]:
    """Go back to what the recipe says; that also holds for what we would not change ourselves."""
    named = {finding.at, *(split_override(word)[0] for word in _WORD.findall(finding.fix))} - {""}
    for word in words:
        key = split_override(word)[0]
        if key != "recipe" and any(f"{path}.".startswith(f"{key}.") for path in named):
            weight = _ANOTHER_DEPLOYMENT if key in _KEPT else _weight(word) + _GUESS / 2
            yield Change((), word, weight)


def _near(path: str, tree: dict[str, Json]) -> Iterator[Change]:
    """Other values of the field that the finding points at."""
    section = path.partition(".")[0]
    if not path or section in _KEPT:
        return
    current = value_at(tree, path)
    for value in _values_near(current, field_at(path, tree)):
        distance = _distance(current, value)
        word = f"{path}={spelled(value)}"
        yield Change((word,), weight=_weight(word) + _GUESS + distance)


def _values_near(current: Json, annotation: Any) -> Iterator[Json]:
    if isinstance(current, bool):
        yield not current
    elif isinstance(current, int) and current > 0:
        below = 2 ** (current.bit_length() - 1)
        powers = (below * 2, below, below // 2, below // 4, below * 4)
        yield from (value for value in powers if value >= 1 and value != current)
    elif isinstance(current, str):
        options = [item for item in _literals(annotation) if item != current]
        yield from options


def _literals(annotation: Any) -> Iterator[str]:
    if typing.get_origin(annotation) is typing.Literal:
        yield from (item for item in typing.get_args(annotation) if isinstance(item, str))
    else:
        for part in typing.get_args(annotation):
            yield from _literals(part)


def field_at(path: str, tree: dict[str, Json]) -> Any:
    """Annotation of the schema field at a recipe path; none where the schema has no such field."""
    owner = field_owner(path, tree)
    return None if owner is None else owner.model_fields[path.rpartition(".")[2]].annotation


def field_owner(path: str, tree: dict[str, Json]) -> type[BaseModel] | None:
    """Model of the section, of the kind it has, that holds the field at a recipe path."""
    from ascend_recipes.validate import section_models

    section, _, name = path.partition(".")
    if section not in Recipe.model_fields:
        return None
    if not name:
        return Recipe
    kind = value_at(tree, f"{section}.kind")
    for model in section_models(section):
        field = model.model_fields.get("kind")
        fits = field is None or kind in typing.get_args(field.annotation)
        if fits and name in model.model_fields:
            return model
    return None


def value_at(tree: Json, path: str) -> Json:
    """Value at a dotted path; none where there is nothing."""
    for key in path.split("."):
        if not isinstance(tree, dict) or key not in tree:
            return None
        tree = tree[key]
    return tree


def spelled(value: Json) -> str:
    """A value as Hydra reads it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(spelled(item) for item in value)}]"
    return str(value)


def _distance(old: Json, new: Json) -> float:
    """Doublings between two numbers; one for any other change."""
    numbers = (int, float)
    if isinstance(old, numbers) and isinstance(new, numbers) and old > 0 and new > 0:
        # Less capacity is a smaller promise broken than more machines or memory are taken.
        return abs(math.log2(new / old)) + (0.1 if new > old else 0.0)
    return 1.0


def _section(word: str) -> str:
    return split_override(word)[0].partition(".")[0]


def _weight(word: str) -> float:
    return _WEIGHTS.get(_section(word), _OTHER_WEIGHT)
