"""`ascend-run ops`: who performs each operation, what a fall-back costs, and what loads here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from ascend_recipes.cli.arguments import Invocation
from ascend_recipes.cli.output import Output
from ascend_recipes.cli.pipeline import planned_launch
from ascend_recipes.cli.render import new_table, render_finding
from ascend_recipes.errors import ExitCode, Finding
from ascend_recipes.operations_table import (
    ProviderState,
    ServedOperation,
    StepCost,
    abi_findings,
    provider_states,
    served_by_plan,
    served_everywhere,
)
from ascend_recipes.registry.load import load_registry


def run_operations(invocation: Invocation, output: Output) -> ExitCode:
    """All operations on all generations, or those of one recipe."""
    registry = load_registry()
    states = provider_states(registry)
    findings: tuple[Finding, ...] = ()
    if invocation.words:
        planned = planned_launch(invocation.words, invocation.config_dirs)
        rows = served_by_plan(planned)
        findings = tuple(abi_findings(planned.plan, registry, states))
    else:
        rows = served_everywhere(registry)
    if output.json:
        output.document("ops", ExitCode.OK, _body(rows, states, findings))
        return ExitCode.OK
    output.show(_plan_table(rows, states) if invocation.words else _matrix(rows))
    if fallen := [row for row in rows if invocation.words and row.falls_back]:
        output.show(_fallen(fallen))
    output.show(_provider_table(states))
    if findings:
        output.show(Text("A launch on NPUs would stop here at:", "bold"))
        output.show(*(render_finding(item, output.language) for item in findings))
    return ExitCode.OK


def _body(
    rows: Sequence[ServedOperation],
    states: Mapping[str, ProviderState],
    findings: Sequence[Finding],
) -> dict[str, object]:
    return {
        "operations": [
            asdict(row)
            | {
                "falls_back": row.falls_back,
                "loads": row.provider is not None and not states[row.provider].differences,
            }
            for row in rows
        ],
        "providers": [_provider(state) for state in states.values()],
        "blockers": [item.to_json() for item in findings],
    }


def _provider(state: ProviderState) -> dict[str, object]:
    return asdict(state) | {"differences": [str(item) for item in state.differences]}


def _matrix(rows: Sequence[ServedOperation]) -> Table:
    """One row an operation, one column a generation."""
    hardware = list(dict.fromkeys(row.hardware for row in rows))
    cells = {(row.operation, row.hardware): _binding(row) for row in rows}
    table = new_table("operation", *hardware)
    for operation in dict.fromkeys(row.operation for row in rows):
        table.add_row(Text(operation, "bold"), *(cells[operation, key] for key in hardware))
    return table


def _plan_table(rows: Sequence[ServedOperation], states: Mapping[str, ProviderState]) -> Table:
    """One row an operation of the plan, with the least work of its largest steps."""
    table = new_table("operation", "served by", "loads here", "decode step", "prefill step")
    for row in rows:
        loads = row.provider is not None and not states[row.provider].differences
        table.add_row(
            Text(row.operation, "bold"),
            _binding(row),
            Text("yes", "green") if loads else Text("no", "red"),
            _cost(row.decode),
            _cost(row.prefill),
        )
    return table


def _fallen(rows: Sequence[ServedOperation]) -> Text:
    """What plain PyTorch does at least, in one call of each operation that it serves."""
    names = ", ".join(row.operation for row in rows)
    steps = {"decode": [row.decode for row in rows], "prefill": [row.prefill for row in rows]}
    sums = []
    for step, costs in steps.items():
        known = [cost for cost in costs if cost is not None]
        moved, done = sum(cost.bytes for cost in known), sum(cost.flops for cost in known)
        sums.append(f"{_short(moved)}B and {_short(done)}FLOP in a {step} step")
    text = f"By the reference: {names}; one call of each is at least " + ", ".join(sums)
    return Text(text, "yellow")


def _binding(row: ServedOperation) -> Text:
    if row.binding is None:
        return Text("nobody", "red")
    if row.falls_back:
        return Text("reference", "red" if row.heavy else "yellow")
    return Text(row.binding)


def _provider_table(states: Mapping[str, ProviderState]) -> Table:
    table = new_table("provider", "built for", "loads here")
    for state in states.values():
        wanted = ", ".join(f"{name} {number}" for name, number in state.wanted.items())
        loads = Text("no: " + "; ".join(map(str, state.differences)), "red")
        if not state.differences:
            loads = Text("yes", "green")
        table.add_row(Text(state.provider, "bold"), wanted, loads)
    return table


def _cost(cost: StepCost | None) -> str:
    if cost is None:
        return "-"
    return f"{_short(cost.bytes)}B {_short(cost.flops)}FLOP at {cost.tokens} tokens"


def _short(number: float) -> str:
    """Three digits and a decimal prefix."""
    for prefix in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {prefix}"
        number /= 1000
    return f"{number:.3g} P"
