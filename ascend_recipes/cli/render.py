"""Rich renderings of findings, plans and lists."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from ascend_recipes.cli.shell import shell_text
from ascend_recipes.errors import COMMAND_LINE, Finding, Severity, Source
from ascend_recipes.findings import phrase

if TYPE_CHECKING:
    from ascend_recipes.compose import RecipeEntry
    from ascend_recipes.plan import PlannedLaunch

_STYLES = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.INFO: "bold cyan",
}
_LABELS = {
    "en": ("why", "set in", "evidence", "fix"),
    "zh": ("原因", "设置于", "依据", "修改"),
}
_LABEL_WIDTH = 9


def render_finding(finding: Finding, language: str = "en") -> Text:
    """`error id  path`, the message, and labelled lines for reason, source, evidence and fix.

    Args:
        finding: what to show.
        language: `zh` for Chinese, where the finding has it.
    """
    chinese = language == "zh"
    message = told_message(finding, language)
    why = (chinese and finding.why_zh) or finding.why
    remedy = (chinese and finding.fix_zh) or finding.fix
    reason, origin, evidence, fix = _LABELS["zh" if chinese else "en"]
    text = Text()
    text.append(f"{finding.severity.value:<6} ", style=_STYLES[finding.severity])
    text.append(finding.id, style="bold")
    if finding.at:
        text.append(f"  {finding.at}", style="cyan")
    text.append(f"\n       {message}")
    for label, value, style in (
        (reason, why, ""),
        (origin, _place(finding.source, chinese=chinese), "dim"),
        (evidence, finding.evidence, "dim"),
        (fix, remedy, "green"),
    ):
        if value:
            padding = " " * max(1, _LABEL_WIDTH - cell_len(label))
            text.append(f"\n       {label}{padding}", style="dim").append(value, style=style)
    return text


def _place(source: Source | None, *, chinese: bool) -> str:
    if source is not None and source.origin == COMMAND_LINE and chinese:
        return phrase("source.command_line").zh
    return str(source or "")


def told_message(finding: Finding, language: str) -> str:
    """What a finding says, in Chinese where that is asked for."""
    return (language == "zh" and finding.message_zh) or finding.message


def render_recipes(entries: Sequence[RecipeEntry]) -> Table:
    """One row a recipe."""
    table = new_table("recipe", "model", "hardware", "about")
    for entry in entries:
        table.add_row(Text(entry.name, "bold"), entry.model, entry.hardware, entry.about)
    return table


def render_summary(planned: PlannedLaunch) -> Text:
    """The plan in two lines."""
    plan = planned.plan
    layers = ", ".join(f"{layer.count} {layer.kind} by {layer.backend}" for layer in plan.layers)
    text = Text(f"{plan.model.key} on {plan.hardware}", "bold")
    text.append(f", device {plan.device}, scale {plan.scale}: {layers}\n")
    if commands := planned.commands:
        version = planned.resolved.runtime_version
        text.append(f"{len(commands)} command(s) of {plan.runtime.name} {version}, ")
    else:
        text.append(f"{len(plan.operations)} operations bound, {len(plan.hooks)} hooks, ")
    text.append(f"graph {plan.graph.mode}, quantization {plan.quantization or 'none'}")
    return text


def render_plan(planned: PlannedLaunch, language: str = "en") -> list[Table | Text | str]:
    """The plan as a page: what is served, how, and why."""
    plan = planned.plan
    reasons = {key: reason.because for key, reason in planned.reasons.items()}
    head = Text(f"{plan.recipe}  ", "bold")
    head.append(f"{plan.model.key} on {plan.hardware}, device {plan.device}, scale {plan.scale}, ")
    head.append(f"{plan.runtime.name} for vLLM {plan.runtime.vllm}  ").append(plan.digest, "dim")
    page: list[Table | Text | str] = [head]
    if commands := planned.commands:
        page += [shell_text(commands), _layers(planned)]
    else:
        page.append(_mapping("engine argument", plan.engine, reasons, prefix="engine"))
        if plan.server:
            page.append(_mapping("server argument", plan.server, reasons, prefix="server"))
        if plan.env:
            page.append(_mapping("environment", plan.env, reasons, prefix="env"))
        if plan.features:
            page.append(_mapping("further choice", plan.features, reasons, prefix="features"))
        page.append(_layers(planned))
        page.append(_mapping("operation", plan.operations, reasons, prefix="operations"))
        page.append(_mapping("hook", dict.fromkeys(plan.hooks, ""), reasons, prefix="hooks"))
    if plan.scale == "real":
        from ascend_recipes.cli.memory_table import render_memory
        from ascend_recipes.memory.planner import plan_memory

        page.extend(render_memory(plan_memory(planned.resolved)))
    if planned.blockers:
        page.append(Text("A launch would stop at:", "bold"))
        page.extend(render_finding(item, language) for item in planned.blockers)
    return page


def render_sweep(rows: Iterable[tuple[Sequence[str], bool, str]]) -> Table:
    """One row a combination: overrides, whether it holds, digest or first finding."""
    table = new_table("overrides", "result", "plan or first finding")
    for words, ok, detail in rows:
        result = Text("ok", "green") if ok else Text("refused", "red")
        table.add_row(" ".join(words), result, detail)
    return table


def _layers(planned: PlannedLaunch) -> Table:
    patterns = dict.fromkeys(layer.pattern for layer in planned.plan.layers)
    # What vllm-ascend rotates is its own affair: it stretches every kind of these layers.
    native = planned.resolved.recipe.runtime.kind == "native"
    rotary = planned.resolved.model.rotary if native else {}
    columns = ("count", "backend", *(("rotary",) if rotary else ()), "cache")
    table = new_table(f"layers: {'; '.join(patterns)}", *columns)
    for layer in planned.plan.layers:
        turned = (_rotary(planned, layer.kind),) if rotary else ()
        table.add_row(layer.kind, str(layer.count), layer.backend, *turned, layer.cache)
    return table


def _rotary(planned: PlannedLaunch, kind: str) -> str:
    """Base of a kind's rotation and how it is stretched."""
    facts, config = planned.resolved.model.rotary[kind], planned.resolved.model.config
    scaling = config[facts.scaling] if facts.scaling else None
    if not isinstance(scaling, dict):
        return f"base {config[facts.theta]}"
    return f"base {config[facts.theta]}, {scaling['rope_type']} x{scaling['factor']}"


def _mapping(
    title: str, values: Mapping[str, object], reasons: Mapping[str, str], *, prefix: str
) -> Table:
    has_values = any(value != "" for value in values.values())
    table = new_table(title, "value", "because") if has_values else new_table(title, "because")
    for key, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        why = Text(reasons.get(f"{prefix}.{key}", ""), "dim")
        table.add_row(key, text, why) if has_values else table.add_row(key, why)
    return table


def new_table(*columns: str) -> Table:
    """An empty table in the house style; long cells fold."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
