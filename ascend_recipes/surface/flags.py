"""Judges flags of `vllm serve`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ascend_recipes.schema.surface import FlagRow
from ascend_recipes.surface import tables
from ascend_recipes.surface.tables import History
from ascend_recipes.surface.values import fits_flag, is_choice, kind_name, shown
from ascend_recipes.surface.verdict import Unset, Verdict, near

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ascend_recipes.schema.base import Json
    from ascend_recipes.surface.load import Surface

ADDITIONAL = "--additional-config"


def flag_verdict(surface: Surface, name: str, value: Json | Unset) -> Verdict | None:
    """What is wrong with a flag, or None."""
    known = resolve_flag(surface, name)
    head, dot, rest = _canonical(name).partition(".")
    if known is None:
        return _absent(surface, name, head)
    row, negated = known
    if dot and row.name == ADDITIONAL:
        from ascend_recipes.surface.keys import key_verdict

        return key_verdict(surface, rest, value)
    if dot:
        return _field_verdict(surface, f"{row.name}.{rest}", value)
    if negated and isinstance(value, Unset):
        value = False
    return _known_verdict(surface, row, value)


def resolve_flag(surface: Surface, name: str) -> tuple[FlagRow, bool] | None:
    """The flag that a spelling means, and whether it is the negated form.

    Underscores count as hyphens, a field of a JSON flag as that flag.
    """
    head = _canonical(name).partition(".")[0]
    found = _spellings(surface.vllm).get(head)
    return None if found is None else (surface.flags[found[0]], found[1])


def fields_of(surface: Surface, flag: str) -> tuple[str, ...]:
    """Fields of a flag that takes JSON, without those of objects inside it."""
    return _fields(surface.vllm).get(flag, ())


@cache
def _fields(vllm: str) -> Mapping[str, tuple[str, ...]]:
    """Flag or field of a release -> its own fields."""
    flags = History(tables.releases()["vllm"], vllm, tables.flag_rows())
    found: dict[str, tuple[str, ...]] = {}
    for name in flags:
        owner, dot, _ = name.rpartition(".")
        if dot:
            found[owner] = (*found.get(owner, ()), name)
    return found


def _canonical(name: str) -> str:
    head, dot, rest = name.partition(".")
    return f"{head[:2]}{head[2:].replace('_', '-')}{dot}{rest}"


@cache
def _spellings(vllm: str) -> Mapping[str, tuple[str, bool]]:
    """Every spelling of the flags of a release, with the name and whether it negates."""
    flags = History(tables.releases()["vllm"], vllm, tables.flag_rows())
    found: dict[str, tuple[str, bool]] = {}
    for name in flags:
        row = flags[name]
        for spelling in () if "." in name else (name, *row.aliases):
            found[spelling] = (name, False)
            if row.kind == "switch" and spelling.startswith("--"):
                found[f"--no-{spelling[2:]}"] = (name, True)
    return found


def _known_verdict(surface: Surface, row: FlagRow, value: Json | Unset) -> Verdict | None:
    reset = _reset(surface, row, value)
    if reset is not None:
        return reset
    if not isinstance(value, Unset) and (wrong := _value_verdict(row, value)):
        return wrong
    if row.deprecated:
        values = {"name": row.name, "version": surface.vllm}
        return Verdict(id="cli.deprecated_flag", values=values, evidence=_cite(row))
    return None


def _field_verdict(surface: Surface, name: str, value: Json | Unset) -> Verdict | None:
    """A field of a JSON flag; what is inside a field without known fields is not judged."""
    row = surface.flags.get(name)
    if row is not None:
        return _known_verdict(surface, row, value)
    parent = name.rpartition(".")[0]
    while parent not in surface.flags:
        parent = parent.rpartition(".")[0]
    siblings = fields_of(surface, parent)
    if not siblings:
        return None
    return _absent(surface, name, name, siblings)


def _absent(
    surface: Surface, name: str, head: str, siblings: Sequence[str] | None = None
) -> Verdict:
    rows = surface.flags.of(head) or surface.flags.of(f"--{head.removeprefix('--no-')}")
    past = [row for row in rows if surface.flags.is_past(row)]
    note = tables.notes().flags.get(head)
    names = note.moved_to if note is not None else ()
    values: dict[str, object] = {"name": name, "version": surface.vllm}
    if past:
        values["until"] = past[-1].until
        evidence = note.source if note else f"{past[-1].source} of vLLM {past[-1].until}"
        return Verdict(id="cli.dead_flag", values=values, names=names, evidence=evidence)
    if rows:
        values["since"] = rows[0].since
        return Verdict(id="cli.later_flag", values=values, evidence=_cite(rows[0]))
    options = siblings if siblings is not None else _spellings(surface.vllm)
    return Verdict(id="cli.unknown_flag", values=values, names=names or near(head, options))


def _reset(surface: Surface, row: FlagRow, value: Json | Unset) -> Verdict | None:
    # The configuration of a drafter has fields of the same classes, which nobody overwrites.
    if surface.vllm_ascend is None or not row.field or row.name.count(".") > 1:
        return None
    owner, _, attribute = row.field.partition(".")
    reset = surface.resets.get(f"{owner.lower()}.{attribute}")
    if reset is None or (not isinstance(value, Unset) and value == reset.value):
        return None
    return Verdict(
        id="cli.reset",
        values={"name": row.name, "version": surface.version, "value": shown(reset.value)},
        evidence=f"{reset.source} of vllm-ascend {reset.until or surface.version}",
    )


def _value_verdict(row: FlagRow, value: Json) -> Verdict | None:
    values: dict[str, object] = {"name": row.name, "value": shown(value)}
    if value is None or (value == "None" and row.nullable):
        return None
    if not fits_flag(row.kind, value):
        values["kind"] = kind_name(row.kind)
        return Verdict(id="cli.wrong_type", values=values, evidence=_cite(row))
    if row.kind != "json" and not is_choice(row.choices, value):
        values["choices"] = [shown(item) for item in row.choices or ()]
        return Verdict(id="cli.wrong_value", values=values, evidence=_cite(row))
    return None


def _cite(row: FlagRow) -> str:
    return f"{row.source} of vLLM {row.until or tables.releases()['vllm'][-1]}"
