"""Judges environment variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_recipes.surface import tables
from ascend_recipes.surface.keys import note_holds
from ascend_recipes.surface.verdict import Verdict, near

if TYPE_CHECKING:
    from ascend_recipes.schema.surface import VariableRow
    from ascend_recipes.surface.load import Surface
    from ascend_recipes.surface.tables import History

_OURS = "VLLM_"
_OWN = "VLLM_ASCEND_"
_TYPO = 0.9
"""How like a known name a name of other software must be to count as mistyped."""


def variable_verdict(surface: Surface, name: str) -> Verdict | None:
    """What is wrong with a variable, or None.

    Only names that vLLM or vllm-ascend would read can be unknown; of the others only one that is
    almost a known name is reported. Without vllm-ascend its variables are nobody's business.
    """
    if surface.vllm_ascend is None and not name.startswith(_OURS):
        return _mistyped(surface, name)
    if surface.vllm_ascend is None and name.startswith(_OWN):
        return None
    if name in surface.vllm_variables or name in surface.variables:
        return _known(surface, name)
    notes = tables.notes()
    if name in notes.external:
        return None
    return _absent(surface, name)


def _known(surface: Surface, name: str) -> Verdict | None:
    keys = [row.name for row in surface.config_keys.values() if row.variable == name]
    # Of a key that moved, the old place comes first in the table; the new one is what to write.
    key = next((item for item in keys if item not in tables.notes().keys), None)
    if key is not None:
        values = {"name": name, "key": key}
        return Verdict(id="env.deprecated", values=values, names=(key,))
    row = surface.variables.get(name)
    if row is None or row.registered:
        return None
    note = tables.notes().variables.get(name)
    if note is not None and note.effect == "ignored" and note_holds(surface, note):
        told = {"name": name, "readers": _readers(surface)}
        return Verdict(id="env.gone", values=told, names=note.moved_to, evidence=note.source)
    return None


def _absent(surface: Surface, name: str) -> Verdict | None:
    values: dict[str, object] = {"name": name, "readers": _readers(surface)}
    note = tables.notes().variables.get(name)
    names = note.moved_to if note is not None else ()
    evidence = note.source if note is not None else ""
    own = name.startswith(_OURS)
    for history, product in _histories(surface):
        rows = history.of(name)
        past = [row for row in rows if history.is_past(row)]
        if past and (own or product == "vllm-ascend"):
            values["until"] = f"{product} {past[-1].until}"
            source = evidence or f"{past[-1].source} of {product} {past[-1].until}"
            return Verdict(id="env.dead", values=values, names=names, evidence=source)
        if rows and own:
            values["since"] = f"{product} {rows[0].since}"
            return Verdict(id="env.later", values=values, evidence=rows[0].source)
    if note is not None:
        return Verdict(id="env.gone", values=values, names=names, evidence=evidence)
    like = near(name, _names(surface), cutoff=0.75 if own else _TYPO)
    return Verdict(id="env.unknown", values=values, names=like) if own or like else None


def _mistyped(surface: Surface, name: str) -> Verdict | None:
    """Of software below vLLM: a name that is almost a known one."""
    external = tables.notes().external
    like = () if name in external else near(name, external, cutoff=_TYPO)
    values = {"name": name, "readers": _readers(surface)}
    return Verdict(id="env.unknown", values=values, names=like) if like else None


def _names(surface: Surface) -> list[str]:
    known = [*surface.variables, *tables.notes().external]
    return [*known, *(name for name in surface.vllm_variables if name.startswith(_OURS))]


def _histories(surface: Surface) -> list[tuple[History[VariableRow], str]]:
    return [(surface.variables, "vllm-ascend"), (surface.vllm_variables, "vLLM")]


def _readers(surface: Surface) -> list[str]:
    own = [] if surface.vllm_ascend is None else [f"vllm-ascend {surface.vllm_ascend}"]
    return [*own, f"vLLM {surface.vllm}"]
