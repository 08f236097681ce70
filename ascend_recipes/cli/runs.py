"""`status`, `logs` and `stop`: runs of this machine, found again from their folders."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from ascend_recipes.cli.arguments import Invocation
from ascend_recipes.cli.output import Output
from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.findings import finding
from ascend_recipes.launch.runs import Run, find_run, find_runs, stop_run, tail

_LINES = 40
"""Lines of each log that `logs` prints."""
_SHOWN_RUNS = 20


def run_status(invocation: Invocation, output: Output) -> ExitCode:
    """`status`: every run that left a state, or one of them with its processes."""
    if invocation.arguments:
        runs = [find_run(invocation.arguments[0])]
    else:
        runs = find_runs()[:_SHOWN_RUNS]
    if output.json:
        output.document("status", ExitCode.OK, {"runs": [_to_json(run) for run in runs]})
        return ExitCode.OK
    if not runs:
        output.text("no runs")
        return ExitCode.OK
    from ascend_recipes.cli.render import new_table

    table = new_table("run", "status", "since", "answers at", "processes")
    for run in runs:
        since = time.strftime("%m-%d %H:%M:%S", time.localtime(run.state.updated))
        alive = [item.identity.is_alive for item in run.state.processes]
        count = f"{sum(alive)} of {len(alive)} alive"
        table.add_row(run.name, run.condition, since, run.state.url or "-", count)
    output.show(table)
    if invocation.arguments:
        _show_processes(runs[0], output)
    return ExitCode.OK


def run_logs(invocation: Invocation, output: Output) -> ExitCode:
    """`logs`: where the logs of a run are, and their last lines."""
    run = find_run(next(iter(invocation.arguments), ""))
    wanted = set(invocation.arguments[1:])
    names = {item.name for item in run.state.processes}
    if unknown := sorted(wanted - names):
        item = finding(
            "cluster.no_process",
            fix=f"ascend-run logs {run.name}",
            name=unknown[0],
            options=", ".join(sorted(names)),
        )
        raise RecipeError((item,), ExitCode.USAGE)
    logs = {
        item.name: run.folder / item.log
        for item in run.state.processes
        if not wanted or item.name in wanted
    }
    if output.json:
        body = {name: _log_json(path) for name, path in logs.items()}
        output.document("logs", ExitCode.OK, {"run": run.name, "logs": body})
        return ExitCode.OK
    for name, path in logs.items():
        output.note(f"--- {name} ({path})")
        for line in tail(path, _LINES):
            output.text(line)
    for path in _of_the_dead(run, logs):
        output.note(f"ascend-run doctor --log {path}")
    return ExitCode.OK


def _of_the_dead(run: Run, logs: dict[str, Path]) -> Iterator[Path]:
    """Logs of processes that ended although nobody asked the run to."""
    if run.condition != "ended":
        for item in run.state.processes:
            if item.name in logs and not item.identity.is_alive:
                yield logs[item.name]


def run_stop(invocation: Invocation, output: Output) -> ExitCode:
    """`stop`: end a run and everything that it has started."""
    run = find_run(next(iter(invocation.arguments), ""))
    was_alive = run.state.is_alive
    if not stop_run(run):
        pids = ", ".join(str(item.identity.pid) for item in run.state.processes)
        item = finding("cluster.still_alive", name=run.name, pids=pids)
        raise RecipeError((item,), ExitCode.LAUNCH)
    body = {"run": run.name, "was_alive": was_alive}
    if output.json:
        output.document("stop", ExitCode.OK, body)
    else:
        output.text(f"{run.name} {'has ended' if was_alive else 'had ended before'}")
    return ExitCode.OK


def _show_processes(run: Run, output: Output) -> None:
    from ascend_recipes.cli.render import new_table

    table = new_table("process", "pid", "alive", "port", "log")
    for item in run.state.processes:
        alive = "yes" if item.identity.is_alive else "no"
        port = "-" if item.port is None else str(item.port)
        table.add_row(item.name, str(item.identity.pid), alive, port, str(run.folder / item.log))
    output.show(table)
    if run.state.message:
        output.text(run.state.message)


def _to_json(run: Run) -> dict[str, object]:
    processes = [
        {**item.model_dump(mode="json"), "alive": item.identity.is_alive}
        for item in run.state.processes
    ]
    return {
        "name": run.name,
        "folder": str(run.folder),
        "condition": run.condition,
        **run.state.model_dump(mode="json"),
        "processes": processes,
    }


def _log_json(path: Path) -> dict[str, object]:
    return {"path": str(path), "tail": tail(path, _LINES)}
