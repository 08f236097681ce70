"""Merge plain recipe files and overrides as Hydra would, at a twentieth of its price.

Hydra takes a tenth of a second for every composition, most of it for its own settings and for
checking types that nobody declares here. Nearly every recipe only chooses presets, builds on
another recipe and sets values. Whatever is more than that (interpolations, packages, sweeps, lists
to extend, mistakes) raises `IntricateError` and is left to Hydra, whose answer decides.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from hydra.core.override_parser.types import Override, OverrideType

from ascend_recipes.schema.base import Json

LayerFile: TypeAlias = tuple[Path, tuple[str, ...]]
"""A file and the keys below which its content is merged."""

_SETTING = (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD)
_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")
_RECIPES = "recipe"
"""The group whose members choose presets of the groups before it."""


class IntricateError(Exception):
    """Only Hydra can say what comes of this."""


@dataclass(frozen=True)
class Merged:
    """What comes of a primary configuration, choices among presets and values."""

    tree: dict[str, Json]
    """Shares its parts with what is kept of the files: not to be changed in place."""
    files: tuple[LayerFile, ...]
    """In the order of merging."""
    choices: Mapping[str, str]
    """Group -> the preset taken."""


@dataclass(frozen=True)
class _Parsed:
    tree: dict[str, Json]
    """Without the defaults list and Hydra's own settings."""
    defaults: tuple[Json, ...]
    package: str | None
    """Where its comment says that the content goes."""


def merge_plainly(
    primary: str, choices: Sequence[Override], values: Sequence[Override], roots: Sequence[Path]
) -> Merged:
    """Merge the primary configuration of the first folder, the presets of all, then values.

    Raises:
        IntricateError: something is not plain, or wrong.
    """
    chosen = {item.key_or_group: _option(item) for item in choices}
    files: list[LayerFile] = []
    for group in (groups := _groups(roots[0] / f"{primary}.yaml", chosen, roots)):
        if group:
            files.extend(_with_parents(group, chosen[group], roots))
        else:
            files.append((roots[0] / f"{primary}.yaml", ()))
    if not set(chosen) <= set(groups):
        raise IntricateError
    tree: dict[str, Json] = {}
    for path, prefix in files:
        content = _parsed(path)
        if not prefix and path.parent != roots[0] and "hydra" in content.tree:
            raise IntricateError
        tree = _merged(tree, _nested(prefix, content.tree))
    tree.pop("hydra", None)
    for item in values:
        tree = _changed(tree, item)
    return Merged(tree, tuple(files), chosen)


def _option(item: Override) -> str:
    value = item.value()
    if item.type is not OverrideType.CHANGE or item.package or not isinstance(value, str):
        raise IntricateError
    return value


def _groups(primary: Path, chosen: dict[str, str], roots: Sequence[Path]) -> tuple[str, ...]:
    """The groups in the order of the primary defaults list, "" for its own content.

    Fills in what has not been typed: what the recipe says, the outermost first, or the list itself.
    """
    defaults: dict[str, str] = {}
    for entry in _parsed(primary).defaults:
        if entry == "_self_":
            defaults[""] = ""
            continue
        if not isinstance(entry, dict) or len(entry) != 1:
            raise IntricateError
        ((group, option),) = entry.items()
        defaults[group] = str(option)
    groups = tuple(defaults)
    if _RECIPES not in chosen or _RECIPES not in defaults:
        raise IntricateError
    before = groups[: groups.index(_RECIPES)]
    for group, option in _overridden(chosen[_RECIPES], roots):
        if group not in before:
            raise IntricateError
        chosen.setdefault(group, option)
    for group in groups:
        if group:
            chosen.setdefault(group, defaults[group])
    return groups


def _overridden(recipe: str, roots: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Presets that a recipe and those that it builds on choose, in the order of precedence."""
    entries = _parsed(_found(_RECIPES, recipe, roots)).defaults
    for entry in entries:
        if isinstance(entry, dict):
            for key, option in entry.items():
                group = key.removeprefix("override /")
                if group == key or not _KEY.fullmatch(group) or not isinstance(option, str):
                    raise IntricateError
                yield group, option
    for entry in reversed(entries):
        if isinstance(entry, str):
            yield from _overridden(entry, roots)


def _with_parents(group: str, option: str, roots: Sequence[Path]) -> Iterator[LayerFile]:
    path = _found(group, option, roots)
    content = _parsed(path)
    if content.package not in (None, "_global_"):
        raise IntricateError
    for entry in content.defaults:
        if isinstance(entry, dict) and group == _RECIPES:
            continue
        if not isinstance(entry, str) or entry == "_self_" or content.package is None:
            raise IntricateError
        yield from _with_parents(group, entry, roots)
    yield path, () if content.package else (group,)


def _found(group: str, option: str, roots: Sequence[Path]) -> Path:
    if not re.fullmatch(r"[\w.-]+", option):
        raise IntricateError
    for root in roots:
        if (path := root / group / f"{option}.yaml").is_file():
            return path
    raise IntricateError


def _parsed(path: Path) -> _Parsed:
    try:
        return _parsed_text(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        raise IntricateError from None


@lru_cache(maxsize=512)
def _parsed_text(text: str) -> _Parsed:
    tree = yaml.load(text, Loader=_loader()) or {}
    if not isinstance(tree, dict):
        raise IntricateError
    defaults = tree.pop("defaults", [])
    if not isinstance(defaults, list):
        raise IntricateError
    _check_plain(tree)
    return _Parsed(tree, tuple(defaults), _package(text))


@cache
def _loader() -> Any:
    """PyYAML's quick parser; reads scalars as OmegaConf does and refuses a key given twice."""
    from omegaconf._utils import get_yaml_loader

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            if len(set(map(str, keys))) < len(keys):
                raise IntricateError
            return super().construct_mapping(node, deep=deep)

    return Loader


def _package(text: str) -> str | None:
    """The package that the first comments of a file name; Hydra stops at any other line."""
    for line in filter(None, map(str.strip, text.splitlines())):
        words = line.lstrip("#").split()
        if not line.startswith("#") or not words or not words[0].startswith("@"):
            return None
        if words[0] == "@package":
            return words[1] if len(words) == 2 else "?"
    return None


def _check_plain(value: object) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise IntricateError
            _check_plain(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_plain(inner)
    elif isinstance(value, str):
        if "${" in value or value == "???":
            raise IntricateError
    elif not isinstance(value, bool | int | float | None):
        raise IntricateError


def _changed(tree: dict[str, Json], item: Override) -> dict[str, Json]:
    """The tree after one override that is no choice."""
    key = item.key_or_group
    if item.package or item.is_sweep_override() or not _KEY.fullmatch(key):
        raise IntricateError
    keys = key.split(".")
    value: Any = item.value()
    _check_plain(value)
    if keys[0] == "hydra":
        raise IntricateError
    if item.type in _SETTING:
        return _merged(tree, _nested(keys[:-1], {keys[-1]: value}))
    if item.type is not OverrideType.DEL or value is not None:
        raise IntricateError
    return _without(tree, keys)


def _nested(keys: Sequence[str], tree: dict[str, Json]) -> dict[str, Json]:
    for key in reversed(keys):
        tree = {key: tree}
    return tree


def _merged(below: Mapping[str, Json], above: Mapping[str, Json]) -> dict[str, Json]:
    tree = dict(below)
    for key, value in above.items():
        before = tree.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            tree[key] = _merged(before, value)
        elif isinstance(before, dict | list) and isinstance(value, dict | list):
            if type(before) is not type(value):
                raise IntricateError
            tree[key] = value
        else:
            tree[key] = value
    return tree


def _without(tree: Mapping[str, Json], keys: Sequence[str]) -> dict[str, Json]:
    inner = tree.get(keys[0])
    if len(keys) == 1:
        if inner is None:
            raise IntricateError
        return {key: value for key, value in tree.items() if key != keys[0]}
    if not isinstance(inner, dict):
        raise IntricateError
    return {**tree, keys[0]: _without(inner, keys[1:])}
