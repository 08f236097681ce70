"""Where in a file the value of a recipe field stands, and how its fix is written there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from ascend_recipes.lint.arguments import Argument, Arguments, key_place
from ascend_recipes.lint.command import ServeCommand
from ascend_recipes.lint.source import Place
from ascend_recipes.rendering.kinds import rows_for
from ascend_recipes.rendering.table import ADDITIONAL, ROWS, TRANSFER
from ascend_recipes.rendering.words import plain_value
from ascend_recipes.schema.base import Json

_SECTIONS = {
    "graph": "--compilation-config",
    "drafter": "--speculative-config",
    "transfer": TRANSFER,
}
"""Flags that hold what a section says, where the field itself is not written."""

_DERIVED = {"cache.state_mode": "--mamba-cache-mode"}
"""Flags that rendering derives from several fields, by the one that decides."""

_OPTIONS = "transfer.options."
TRANSFER_KEYS = {
    "transfer.connector": "kv_connector",
    "transfer.port": "kv_port",
    "transfer.engine_id": "engine_id",
}
"""Keys of a transfer, which vLLM or the connector chooses where a command does not say them."""


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
    elif path in TRANSFER_KEYS:
        yield f"{TRANSFER}.{TRANSFER_KEYS[path]}"
    elif path.startswith(_OPTIONS):
        yield f"{TRANSFER}.kv_connector_extra_config.{path.removeprefix(_OPTIONS)}"
    if path in _DERIVED:
        yield _DERIVED[path]
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


def typed_fix(fix: str, version: str) -> str:
    """A fix for a recipe as it is written in a command; what has no argument stays as it is."""
    return " ".join(_typed(word, version) for word in fix.split(" "))


def _typed(word: str, version: str) -> str:
    path, equals, text = word.partition("=")
    value = plain_value(text)
    if not equals or path.startswith("~"):
        return word
    for target in _targets(path, version):
        row = next((row for row in rows_for(target, version) if row.path == path), None)
        encoded = row.codec.encode(value) if row is not None else value
        if target.endswith(".engine_id"):
            encoded = str(value)
        if encoded is not None:
            return _written(target, encoded)
    return word


def _written(target: str, value: Json) -> str:
    """An argument as a shell takes it, keys of JSON as an object."""
    if target.startswith("$"):
        return f"export {target.removeprefix('$')}={shlex.quote(str(value))}"
    flag, *keys = target.split(".")
    if isinstance(value, bool) and not keys:
        return flag if value else f"--no-{flag.removeprefix('--')}"
    for key in reversed(keys):
        value = {key: value}
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{flag} {shlex.quote(text)}"
