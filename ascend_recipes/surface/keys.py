"""Judges keys of `--additional-config`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ascend_recipes.errors import Severity
from ascend_recipes.schema.surface import KeyRow, NameNote
from ascend_recipes.surface import tables
from ascend_recipes.surface.values import fits_key, is_choice, kind_name, shown
from ascend_recipes.surface.verdict import Unset, Verdict, near

if TYPE_CHECKING:
    from ascend_recipes.schema.base import Json
    from ascend_recipes.surface.load import Surface


def key_verdict(surface: Surface, name: str, value: Json | Unset) -> Verdict | None:
    """What is wrong with a dotted key, or None."""
    if surface.vllm_ascend is None:
        return None
    row = _row(surface, name)
    if row is None:
        return None if _is_free(surface, name) else _absent(surface, name)
    if row.effect:
        return _removed(surface, row)
    note = tables.notes().keys.get(name)
    if note is not None and note.effect == "deprecated" and note_holds(surface, note):
        values = {"name": name, "names": note.moved_to, "version": surface.version}
        return Verdict(
            id="config.moved_key", values=values, names=note.moved_to, evidence=note.source
        )
    return None if isinstance(value, Unset) else _value_verdict(surface, row, value)


def note_holds(surface: Surface, note: NameNote) -> bool:
    """Whether a note is about this release or an older one."""
    order = tables.releases()["vllm_ascend"]
    return note.since is None or order.index(note.since) <= order.index(surface.version)


def keys_inside(surface: Surface, block: str) -> Iterator[str]:
    """Keys of a block, without those of blocks inside it; of the top where `block` is empty."""
    prefix = f"{block}." if block else ""
    for key in surface.config_keys:
        if key.startswith(prefix) and "." not in key[len(prefix) :]:
            yield key


def _row(surface: Surface, name: str) -> KeyRow | None:
    return surface.config_keys.get(name)


def _is_free(surface: Surface, name: str) -> bool:
    """Whether the key is inside a block whose keys vllm-ascend hands on unread."""
    block = name.rpartition(".")[0]
    while block:
        if block in surface.config_keys:
            return next(keys_inside(surface, block), None) is None
        block = block.rpartition(".")[0]
    return False


def _absent(surface: Surface, name: str) -> Verdict:
    """A key that this release does not read: it was renamed, removed, comes later, or never was."""
    keys = surface.config_keys
    rows = keys.of(name)
    past = [row for row in rows if keys.is_past(row)]
    note = tables.notes().keys.get(name)
    names = _replacements(surface, name, note)
    values: dict[str, object] = {"name": name, "version": surface.version}
    evidence = note.source if note else ""
    if names and (past or note):
        values["names"] = names
        return Verdict(id="config.renamed_key", values=values, names=names, evidence=evidence)
    if past:
        values["until"] = past[-1].until
        source = evidence or f"{past[-1].source} of vllm-ascend {past[-1].until}"
        return Verdict(id="config.dead_key", values=values, evidence=source)
    if rows:
        values["since"] = rows[0].since
        return Verdict(id="config.later_key", values=values, evidence=rows[0].source)
    siblings = keys_inside(surface, name.rpartition(".")[0])
    return Verdict(id="config.unknown_key", values=values, names=names or near(name, siblings))


def _replacements(surface: Surface, name: str, note: NameNote | None) -> tuple[str, ...]:
    """Where the setting is now: as noted, else the only block that has a key of the same name."""
    if note is not None:
        return tuple(
            item for item in note.moved_to if item.startswith("-") or item in surface.config_keys
        )
    leaf = name.rpartition(".")[2]
    found = [key for key in surface.config_keys if key.rpartition(".")[2] == leaf]
    return tuple(found) if len(found) == 1 else ()


def _removed(surface: Surface, row: KeyRow) -> Verdict:
    """A key that is looked for only to say that it is gone."""
    rows: Sequence[KeyRow] = surface.config_keys.of(row.name)
    past = [item for item in rows if surface.config_keys.is_past(item)]
    note = tables.notes().keys.get(row.name)
    names = note.moved_to if note is not None else ()
    values: dict[str, object] = {"name": row.name, "version": surface.version}
    severity = Severity.WARNING if row.effect == "ignored" else Severity.ERROR
    if names:
        values["names"] = names
    else:
        values["until"] = past[-1].until if past else row.since
    return Verdict(
        id="config.renamed_key" if names else "config.dead_key",
        values=values,
        names=names,
        severity=severity,
        evidence=note.source if note else f"{row.source} of vllm-ascend {surface.version}",
    )


def _value_verdict(surface: Surface, row: KeyRow, value: Json) -> Verdict | None:
    evidence = f"{row.source} of vllm-ascend {row.until or surface.version}"
    if not fits_key(row.kind, value):
        values = {"name": row.name, "kind": kind_name(row.kind), "value": shown(value)}
        # True counts as 1 in Python: odd, but it does what it says.
        counts = row.kind in ("int", "float") and isinstance(value, bool)
        severity = Severity.WARNING if counts else None
        return Verdict(id="config.wrong_type", values=values, severity=severity, evidence=evidence)
    if not is_choice(row.choices, value):
        choices = [shown(item) for item in row.choices or ()]
        offered = {"name": row.name, "choices": choices, "value": shown(value)}
        return Verdict(id="config.wrong_value", values=offered, evidence=evidence)
    return None
