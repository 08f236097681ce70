"""Rich renderings of `ascend-run patches`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from ascend_recipes.patching.facts import Change

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ascend_recipes.patching.report import Report

_STYLES = {
    Change.SAME: "green",
    Change.BODY: "yellow",
    Change.SIGNATURE: "red",
    Change.MOVED: "red",
    Change.GONE: "bold red",
    Change.NEW: "cyan",
    Change.ABSENT: "dim",
}
_PLURALS = {
    "patch": "patch rows",
    "hook": "hook rows",
    "class": "derived classes",
    "import": "imported names",
}


def render_report(report: Report) -> list[RenderableType]:
    """Counts of every kind, and the classes with what they replace."""
    head = Text(f"vLLM {report.version}", "bold")
    head.append(f", compared with {report.pinned}")
    counts = _table("what we rely on", "rows", *(change.value for change in _COLUMNS))
    for kind, name in _PLURALS.items():
        lines = report.of_kind(kind)
        seen = Counter(line.change for line in lines)
        cells = [_count(seen[change], change) for change in _COLUMNS]
        counts.add_row(name, str(len(lines)), *cells)
    classes = _table("class of ours", "derives from", "overridden", "without super")
    for line in report.of_kind("class"):
        base = line.target.rpartition(":")[2]
        classes.add_row(line.key, base, str(line.overridden), str(line.without_super))
    page: list[RenderableType] = [head, counts, classes]
    if report.unrecorded:
        # Counted as unchanged above, because nothing is known.
        note = f"{len(report.unrecorded)} names were never recorded for this version: "
        page.append(Text(note + "scripts/record_vllm_evidence.sh", "yellow"))
    return page


def render_peers(
    old: str, new: str, changes: Mapping[str, Change], files: Mapping[str, str]
) -> list[RenderableType]:
    """What became of the names that vllm-ascend patches."""
    seen = Counter(changes.values())
    head = Text(f"vllm-ascend patches {len(changes)} names of vLLM; from {old} to {new}: ", "bold")
    head.append(", ".join(f"{seen[change]} {change.value}" for change in Change if seen[change]))
    table = _table("name", "change", "patched in")
    for target, change in changes.items():
        if change.breaks:
            table.add_row(target, Text(change.value, _STYLES[change]), files[target])
    return [head, table]


def render_changes(
    old: str,
    new: str,
    wanted: int,
    changes: Mapping[str, Change],
    uses: Mapping[str, Iterable[str]],
) -> list[RenderableType]:
    """Targets that differ between two versions, and what of ours uses them."""
    head = Text(f"vLLM {old} to {new}: {len(changes)} of {wanted} targets differ", "bold")
    table = _table("target", "change", "used by")
    for target, change in changes.items():
        style = _STYLES[change]
        table.add_row(target, Text(change.value, style), "\n".join(uses.get(target, ())))
    return [head, table]


def render_rows(rows: Sequence[Mapping[str, str]]) -> list[RenderableType]:
    """Patch and hook rows with their reasons."""
    patches = sum(row["kind"] == "patch" for row in rows)
    head = Text(f"{patches} patch rows, {len(rows) - patches} hook rows", "bold")
    table = _table("kind", "key", "how", "target", "because")
    for row in rows:
        table.add_row(row["kind"], row["key"], row["how"], row["target"], row["because"])
    return [head, table]


def render_facts(
    key: str, facts: Mapping[str, object], events: Mapping[str, str]
) -> list[RenderableType]:
    """One row, and what each version did to its target."""
    table = _table("field", "value")
    for name, value in facts.items():
        if value not in (None, "", [], {}):
            table.add_row(name, str(value))
    versions = _table(*events)
    versions.add_row(*(Text(change, _STYLES[Change(change)]) for change in events.values()))
    return [Text(key, "bold"), table, versions]


_COLUMNS = (Change.SAME, Change.BODY, Change.SIGNATURE, Change.MOVED, Change.GONE)


def _count(number: int, change: Change) -> Text:
    return Text(str(number), _STYLES[change] if number else "dim")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
