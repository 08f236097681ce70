"""Rich renderings of what the inspecting commands found."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from ascend_recipes.cli.render import told_message
from ascend_recipes.cli.shell import shell_text
from ascend_recipes.errors import Finding, Severity
from ascend_recipes.findings import phrase

if TYPE_CHECKING:
    from ascend_recipes.cli.checking import Verdict
    from ascend_recipes.commands.diff import Difference
    from ascend_recipes.commands.explain import Explanation
    from ascend_recipes.commands.fix import Proposal
    from ascend_recipes.commands.show import Portrait
    from ascend_recipes.schema.base import Json

_ABSENT = "(none)"


def render_explanations(items: Sequence[Explanation]) -> list[Text]:
    """`key = value`, its layers with the winner first, the reason, and what follows from it."""
    return [_explanation(item) for item in items]


def _explanation(item: Explanation) -> Text:
    text = Text()
    text.append(f"{item.part:<6} ", style="dim").append(item.key, style="bold")
    text.append(f" = {_value(item.value)}\n")
    text.append("       set by   ", style="dim")
    text.append(" <- ".join(reversed(item.layers)), style="cyan")
    if item.because:
        text.append("\n       because  ", style="dim").append(item.because)
    if item.follows:
        text.append("\n       gives    ", style="dim").append(", ".join(item.follows))
    if item.renders:
        text.append("\n       renders  ", style="dim").append("; ".join(item.renders))
    if item.processes:
        text.append("\n       only in  ", style="dim").append(", ".join(item.processes))
    return text


def render_proposal(proposal: Proposal) -> Table:
    """One row a change: what it sets, what that costs, and what comes back without it."""
    table = _table("change", "before", "after", "what it is", "without it")
    for step in proposal.steps:
        table.add_row(
            Text(step.change.text, "bold"),
            _value(step.before),
            _value(step.after),
            step.cost,
            ", ".join(step.returns),
        )
    return table


def render_portrait(portrait: Portrait) -> list[Text | Table | str]:
    """Heading, a table of facts, sources and exceptions, and what vllm-ascend would be told."""
    head = Text(f"{portrait.name}  ", "bold").append(portrait.about, "default")
    table = _table("", "")
    table.show_header = False
    for heading, fact in portrait.facts:
        table.add_row(Text(heading, "bold"), fact)
    for source in portrait.sources:
        table.add_row(Text("source", "bold"), source)
    for item in portrait.exceptions:
        table.add_row(Text("kept although", "bold"), item)
    return [head, table, *([shell_text(portrait.commands)] if portrait.commands else [])]


def render_differences(items: Iterable[Difference], left: str, right: str) -> Table:
    """One row a value."""
    table = _table("planned value", left, right)
    for item in items:
        table.add_row(
            item.key,
            _value(item.left) if item.in_left else Text(_ABSENT, "dim"),
            _value(item.right) if item.in_right else Text(_ABSENT, "dim"),
        )
    return table


def render_verdicts(items: Iterable[Verdict], language: str = "en") -> Table:
    """One row a recipe: its plan, or what is wrong or worth a look."""
    table = _table("recipe", "result", "plan or findings")
    for item in items:
        word, style = ("noted", "cyan") if item.findings else ("ok", "green")
        if item.refused or item.doubtful:
            word, style = ("refused", "red") if item.refused else ("warned", "yellow")
        detail = "\n".join(_line(found, language) for found in item.findings)
        table.add_row(item.recipe, Text(word, style), detail or item.digest)
    return table


def _line(item: Finding, language: str) -> str:
    return f"{item.severity.value:<5} {item.id}: {told_message(item, language)}"


def verdict_summary(items: Sequence[Verdict], words: Sequence[str], language: str = "en") -> str:
    """How many recipes are refused or warned about, by which warnings, and how to read them."""
    warnings = Counter(
        found.id for item in items for found in item.findings if found.severity is Severity.WARNING
    )
    told = phrase(
        "check.summary",
        recipes=len(items),
        refused=sum(item.refused for item in items),
        doubtful=sum(item.doubtful for item in items),
        warnings=warnings.total(),
    )
    if warnings:
        told = phrase(
            "check.warned",
            summary=told,
            counts=[f"{name} {count}" for name, count in warnings.most_common()],
            command=shlex.join(["ascend-run", "check", "recipe=NAME", *words]),
        )
    return told.zh if language == "zh" else told.en


def _value(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
