"""The memory plan as compact tables with bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ascend_recipes.memory.forecast import NodeCount, RoleMemory
    from ascend_recipes.memory.planner import MemoryPlan, RolePlan

_WIDTH = 24
_GIB = 2**30
_STYLES = {"fits": "green", "may fit": "yellow", "does not fit": "red"}


def render_memory(memory: MemoryPlan) -> list[Table | Text]:
    """Per role: a bar for each part of a device, a line for each runtime's caches, remedies."""
    if memory.missing:
        return [Text(f"memory: not planned, the model row lacks {memory.missing}", "dim")]
    return [item for role in memory.roles for item in _role(role)]


def _role(role: RolePlan) -> list[Table | Text]:
    memory = role.memory
    head = Text("memory of a die", "bold")
    head.append(f"  {memory.role}: {memory.dies} dies, ", "default")
    head.append(f"{_gib(memory.budget)} of {_gib(memory.device_bytes)}, {memory.runtime}  ")
    head.append(memory.verdict, _STYLES[memory.verdict])
    head.append(f"  (smallest: {_nodes(role.smallest)})", "dim")
    page: list[Table | Text] = [head, _bars(memory), _caches(memory)]
    notes = {*memory.weights.notes, *memory.cache.pool.notes}
    page.extend(Text(f"  note     {note}", "dim") for note in sorted(notes))
    for remedy in role.remedies:
        line = Text("  instead  ", "dim").append(remedy.override, "green")
        page.append(line.append(f"  {remedy.verdict}, {remedy.tokens:,} tokens"))
    return page


def _nodes(count: NodeCount) -> str:
    if count.at_best is None:
        return "no number of nodes"
    sure = count.for_sure or "more"
    return (
        f"{count.at_best} node(s)" if sure == count.at_best else f"{count.at_best} to {sure} nodes"
    )


def _bars(memory: RoleMemory) -> Table:
    table = _table("part", "GiB", "", "from")
    weights = memory.weights
    total = memory.device_bytes
    size = weights.device_bytes
    table.add_row("weights", _pair(size, size), _bar(size, size, total), weights.source)
    for item in memory.ranges:
        why = f"{item.label}: {item.source}"
        table.add_row(item.name, _pair(item.low, item.high), _bar(item.low, item.high, total), why)
    low, high = memory.cache.available
    table.add_row("left for caches", _pair(low, high), _bar(low, high, total), "the rest")
    return table


def _caches(memory: RoleMemory) -> Table:
    table = _table(
        "caches under",
        "B/token",
        "MB/sequence",
        "tokens",
        f"sequences of {memory.context:,}",
        f"{memory.sequences} sequences of",
    )
    for name, item in memory.caches.items():
        table.add_row(
            Text(name, "bold" if name == memory.runtime else "dim"),
            f"{item.pool.token_bytes:,.0f}",
            f"{item.pool.state_bytes / 1e6:,.0f}",
            _counts(item.tokens),
            f"{item.concurrency[0]:.1f} to {item.concurrency[1]:.1f}",
            _counts(item.full_batch_tokens),
        )
    return table


def _counts(bounds: tuple[int, int]) -> str:
    low, high = (f"{bound:,}" for bound in bounds)
    return low if low == high else f"{low} to {high}"


def _bar(low: int, high: int, total: int) -> Text:
    """Filled up to the lower bound, shaded up to the upper."""
    sure, most = (min(_WIDTH, round(_WIDTH * size / total)) for size in (low, high))
    bar = Text("█" * sure)
    return bar.append("▒" * (most - sure), "dim").append("·" * (_WIDTH - most), "dim")


def _pair(low: int, high: int) -> str:
    first, last = f"{low / _GIB:.1f}", f"{high / _GIB:.1f}"
    return first if first == last else f"{first} to {last}"


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
