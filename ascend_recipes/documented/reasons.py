"""Why an argument may differ: what the tables of the version show, and what is written by hand."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ascend_recipes.commands.deployments import column_path
from ascend_recipes.documented.arguments import same_value
from ascend_recipes.documented.facts import documented_notes
from ascend_recipes.rendering.table import ADDITIONAL, ROWS
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.documented import ArgumentPattern
from ascend_recipes.schema.rows import Deployment
from ascend_recipes.schema.serving import RoleName
from ascend_recipes.surface.load import Surface, load_surface

_ANY = "*"
_OPEN = re.compile(r"\$\{?\w+\}?|<[^<>]*>|x{3,}")
"""What scripts write where the reader, or a caller, puts a value in."""


@dataclass(frozen=True)
class Difference:
    """An argument that a document and our rendering do not say alike; none is not said at all."""

    deployment: str
    role: RoleName
    version: str
    name: str
    documented: Json
    ours: Json


@dataclass(frozen=True)
class Explanation:
    """Why a difference is right."""

    id: str
    """`default`, `open`, `unread`, `differs`, or a reason of `notes.yaml`."""
    because: str
    pattern: int = 0
    """Which of the reason's patterns fits."""


def is_site(name: str) -> bool:
    """Whether an argument's value belongs to one machine or site."""
    return any(fnmatchcase(name, pattern) for pattern in documented_notes().site)


def explanation(item: Difference, deployment: Deployment) -> Explanation | None:
    """The first reason that fits; none where nothing explains the difference."""
    return next(_explanations(item, deployment), None)


def _explanations(item: Difference, deployment: Deployment) -> Iterator[Explanation]:
    surface = load_surface(item.version)
    if isinstance(item.documented, str) and _OPEN.fullmatch(item.documented):
        yield Explanation("open", "the document leaves the value to its reader")
    if because := _default(item, surface):
        yield Explanation("default", because)
    if item.ours is None and (because := _unread(item, surface)):
        yield Explanation("unread", because)
    for key, because in deployment.differs.items():
        role, _, column = key.partition(".")
        if role == item.role and item.name in _targets(column):
            yield Explanation("differs", because)
    yield from _written(item)


def _default(item: Difference, surface: Surface) -> str:
    """One side says what the runtime does by itself, the other nothing."""
    if item.documented is not None and item.ours is not None:
        return ""
    stated = item.documented if item.ours is None else item.ours
    value, source = _default_value(item.name, surface)
    is_same = value is not None and same_value(value, stated)
    return f"the runtime's default ({source})" if is_same else ""


def _default_value(name: str, surface: Surface) -> tuple[Json, str]:
    """What the runtime does by itself, with a source; none where nothing is known."""
    if fact := documented_notes().defaults.get(name):
        return fact.value, fact.source
    key = name.removeprefix(f"{ADDITIONAL}.")
    if key != name and (row := surface.config_keys.get(key)):
        return row.default, row.source
    return None, ""


def _unread(item: Difference, surface: Surface) -> str:
    """The version does not read what the document says."""
    if item.name.startswith("$"):
        found = surface.judge_variable(item.name.removeprefix("$"))
    elif item.name.startswith(f"{ADDITIONAL}."):
        found = surface.judge_key(item.name.removeprefix(f"{ADDITIONAL}."), item.documented)
    else:
        found = surface.judge_flag(item.name.partition(".")[0])
    return found.message if found and found.id in _UNREAD else ""


_UNREAD = frozenset(
    {
        *("cli.unknown_flag", "cli.dead_flag", "cli.later_flag"),
        *("config.unknown_key", "config.dead_key", "config.renamed_key", "config.later_key"),
        *("env.unknown", "env.dead", "env.gone", "env.later"),
    }
)
"""Findings by which an argument has no effect in a version."""


def _targets(column: str) -> frozenset[str]:
    """Arguments that carry a column of a documented role."""
    path = column_path(column)
    if path.startswith("env."):
        return frozenset({f"${path.removeprefix('env.')}"})
    return frozenset(row.target for row in ROWS if row.path == path)


def _written(item: Difference) -> Iterator[Explanation]:
    for reason in documented_notes().reasons:
        if reason.deployments and item.deployment not in reason.deployments:
            continue
        for number, pattern in enumerate(reason.arguments):
            if _fits(pattern, item):
                yield Explanation(reason.id, reason.because, number)


def _fits(pattern: ArgumentPattern, item: Difference) -> bool:
    return (
        fnmatchcase(item.name, pattern.name)
        and _side(pattern.documented, item.documented)
        and _side(pattern.ours, item.ours)
    )


def _side(wanted: Json, value: Json) -> bool:
    if wanted is None or value is None:
        return wanted is None and value is None
    return wanted == _ANY or same_value(wanted, value)
