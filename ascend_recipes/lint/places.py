"""Where in a file the value of a recipe field stands, and how its fix is written there."""

from __future__ import annotations

from collections.abc import Iterator

from ascend_recipes.lint.arguments import Argument, Arguments, key_place
from ascend_recipes.lint.command import ServeCommand
from ascend_recipes.lint.source import Place
from ascend_recipes.rendering.kinds import rows_for
from ascend_recipes.rendering.table import ADDITIONAL, ROWS

_SECTIONS = {"graph": "--compilation-config", "drafter": "--speculative-config"}
"""Flags that hold what a section says, where the field itself is not written."""


def place_of(at: str, command: ServeCommand, arguments: Arguments, version: str) -> Place:
    """Where the value of a recipe path was written; the command's own place if nowhere."""
    for target in _targets(at, version):
        if target.startswith("$"):
            word = command.env.get(target.removeprefix("$"))
            if word is not None:
                return word.place()
            continue
        if (place := _argument_place(target, arguments)) is not None:
            return place
    return command.argv[0].place()


def _targets(at: str, version: str) -> Iterator[str]:
    """Arguments that carry a recipe path, most direct first."""
    path = at.split(".", 2)[2] if at.startswith("roles.") and at.count(".") > 1 else at
    section, _, rest = path.partition(".")
    if section == "env":
        yield f"${rest}"
    elif section == "extra_args":
        flag, dot, keys = rest.partition(".")
        yield f"--{flag.replace('_', '-')}{dot}{keys}"
    elif path.startswith("runtime.additional_config."):
        yield f"{ADDITIONAL}.{path.removeprefix('runtime.additional_config.')}"
    for row in ROWS:
        if row.path == path and row in rows_for(row.target, version):
            yield row.target
            yield from row.aliases
    if section in _SECTIONS:
        yield _SECTIONS[section]


def _argument_place(target: str, arguments: Arguments) -> Place | None:
    """Where a flag stands, or a key in its JSON; the last occurrence counts."""
    flag, _, keys = target.partition(".")
    for item in reversed(arguments.items):
        if item.name == target:
            return item.place
        if item.flag == flag and item.is_json and (not keys or _has(item, keys)):
            return key_place(item.values[0], keys.split(".")) if keys else item.place
        if item.name == f"--no-{flag.removeprefix('--')}":
            return item.place
    return None


def _has(item: Argument, keys: str) -> bool:
    return all(f'"{key}"' in item.values[0].text for key in keys.split("."))
