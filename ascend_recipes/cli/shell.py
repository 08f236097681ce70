"""Rendered commands as shell text: each role once in full, further processes by difference."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ascend_recipes.rendering.command import RenderedCommand


def shell_text(commands: Sequence[RenderedCommand]) -> str:
    """A script that people can read and paste, for every process of the deployment."""
    parts: list[str] = []
    for _, group in groupby(commands, key=lambda item: item.role):
        first, *others = group
        parts.append("\n".join(_full(first)))
        parts.extend(_difference(item, first) for item in others)
    return "\n".join(parts)


def argument_groups(argv: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Words of a command, a flag together with its values."""
    groups: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(word)
    return tuple(map(tuple, groups))


def _full(command: RenderedCommand) -> Iterator[str]:
    yield f"# {_place(command)}"
    for name, value in sorted(command.env.items()):
        yield f"export {name}={shlex.quote(value)}"
    lines = [shlex.join(group) for group in argument_groups(command.argv)]
    yield " \\\n  ".join(lines)


def _difference(command: RenderedCommand, first: RenderedCommand) -> str:
    ours, theirs = argument_groups(command.argv), argument_groups(first.argv)
    flags = {group[0] for group in ours}
    added = [shlex.join(group) for group in ours if group not in theirs]
    gone = [group[0] for group in theirs if group[0] not in flags]
    variables = [
        f"{name}={shlex.quote(value)}"
        for name, value in sorted(command.env.items())
        if first.env.get(name) != value
    ]
    text = f"# {_place(command)}: as above"
    if added or variables:
        text += f", with {' '.join((*variables, *added))}"
    if gone:
        text += f", without {' '.join(gone)}"
    return text


def _place(command: RenderedCommand) -> str:
    place = f"{command.role}, node {command.node}"
    if command.rank is not None:
        place += f", rank {command.rank}"
    return f"{place}, port {command.port}" if command.port else place
