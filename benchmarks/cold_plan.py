"""Cold start of `ascend-run plan`, and of a refusal, beside `vllm serve` with the same mistake.

For every recipe: the median over a few fresh processes of wall and CPU time for a plan, for a plan
that is refused (a tensor-parallel size that does not divide the heads), and the time that
`vllm serve` takes to say the same of the same model configuration. Run it on a quiet machine:

    .venv/bin/python benchmarks/cold_plan.py [--runs N] [--recipe NAME] [--check] [--no-vllm]
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ascend_recipes.cli.pipeline import planned_launch
from ascend_recipes.compose import compose_recipe, recipe_names
from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.launch.environment import child_environment
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.plan import LaunchPlan

PLAN_BUDGET_S = 1.0
REFUSAL_BUDGET_S = 0.9
TINY = ("device=emulated", "scale=tiny")
MISTAKE = "parallel.tp=7"
"""No head count in the registry divides by seven."""

_COMMAND = [
    sys.executable,
    "-c",
    "import sys\nfrom ascend_recipes.cli.main import main\nsys.exit(main())",
]
_VLLM_COMPLAINT = re.compile(r"must be divisible by tensor parallel size|divisible by tp|divide")


@dataclass(frozen=True)
class Timing:
    """One process, or the medians over several."""

    wall_s: float
    cpu_s: float
    output: str = ""

    def __str__(self) -> str:
        return f"{self.wall_s:.2f} ({self.cpu_s:.2f})"


def timed(command: Sequence[str], *, code: int | None, env: dict[str, str] | None = None) -> Timing:
    """Run a fresh process to its end.

    Args:
        command: What to run.
        code: Exit status that it must have; None takes any.
        env: Environment; none inherits ours.
    """
    with tempfile.TemporaryFile() as stream:
        started = time.perf_counter()
        child = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=env)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        stream.seek(0)
        output = stream.read().decode("utf-8", errors="replace")
    if code is not None and child.returncode != code:
        raise SystemExit(f"{' '.join(command[3:])} ended with {child.returncode}:\n{output}")
    return Timing(wall, usage.ru_utime + usage.ru_stime, output)


def median(timings: Iterable[Timing]) -> Timing:
    """Medians of wall and CPU time."""
    measured = list(timings)
    return Timing(
        statistics.median(item.wall_s for item in measured),
        statistics.median(item.cpu_s for item in measured),
    )


def time_plan(recipe: str, runs: int) -> Timing:
    """Cold `ascend-run plan` of a recipe."""
    command = [*_COMMAND, "plan", f"recipe={recipe}"]
    return median(timed(command, code=ExitCode.OK) for _ in range(runs))


def time_refusal(recipe: str, runs: int) -> Timing:
    """Cold `ascend-run plan` of a recipe that cannot be."""
    command = [*_COMMAND, "plan", f"recipe={recipe}", *_mistakes(recipe)]
    return median(timed(command, code=ExitCode.FINDINGS) for _ in range(runs))


def _mistakes(recipe: str) -> list[str]:
    """The mistake in the common part and in every role that has its own degree."""
    roles = compose_recipe([f"recipe={recipe}"]).tree.get("roles")
    own = [
        f"roles.{name}"
        for name, role in (roles.items() if isinstance(roles, dict) else ())
        if isinstance(role, dict) and "parallel" in role
    ]
    return [MISTAKE, *(f"{role}.{MISTAKE}" for role in own)]


def time_vllm(model: str, folder: Path) -> Timing | None:
    """`vllm serve` of the model's published configuration; None if it complains of other things."""
    _write_config(model, folder)
    plan = _any_plan()
    (folder / "plan.json").write_text(plan.to_json())
    environment = child_environment(plan, folder / "plan.json", os.environ)
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder)]
    command += ["--skip-tokenizer-init", f"--tensor-parallel-size={MISTAKE.partition('=')[2]}"]
    timing = timed(command, code=None, env=environment | {"HF_HUB_OFFLINE": "1"})
    return timing if _VLLM_COMPLAINT.search(timing.output) else None


def _any_plan() -> LaunchPlan:
    """A plan that gives vLLM a platform: without any, it would complain of that first."""
    models = load_registry().models
    for entry in reversed(recipe_names()):
        if models[entry.model].native:
            with suppress(RecipeError):
                return planned_launch([f"recipe={entry.name}", *TINY], ()).plan
    raise SystemExit("no recipe has a tiny form")


def _write_config(model: str, folder: Path) -> None:
    row = load_registry().models[model]
    fields = {**row.config, "dtype": "bfloat16"}
    config = {row.text_config_key: fields} if row.text_config_key else fields
    head = {"architectures": [row.architecture], "model_type": row.model_type}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**head, **config}))


def main() -> int:
    """Measure, print the table, and with --check fail where a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="processes per median (5)")
    parser.add_argument("--check", action="store_true", help="fail when over budget")
    parser.add_argument("--no-vllm", action="store_true", help="leave out `vllm serve`")
    parser.add_argument("--recipe", action="append", help="only this one; repeatable (all)")
    options = parser.parse_args()
    table = Table(title=f"wall s (CPU s), medians of {options.runs} cold processes", box=None)
    for title in ("recipe", "plan", "refusal", "vllm serve, same mistake"):
        table.add_column(title, justify="left" if title == "recipe" else "right")
    over: list[str] = []
    vllm_times: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for entry in recipe_names():
            if options.recipe and entry.name not in options.recipe:
                continue
            print(entry.name, file=sys.stderr)
            plan, refusal = (
                time_plan(entry.name, options.runs),
                time_refusal(entry.name, options.runs),
            )
            if not options.no_vllm and entry.model not in vllm_times:
                timing = time_vllm(entry.model, Path(scratch) / entry.model)
                vllm_times[entry.model] = str(timing) if timing else "another error first"
            table.add_row(entry.name, str(plan), str(refusal), vllm_times.get(entry.model, ""))
            if plan.wall_s > PLAN_BUDGET_S or refusal.wall_s > REFUSAL_BUDGET_S:
                over.append(entry.name)
    Console(width=110).print(table)
    print(f"budgets: plan {PLAN_BUDGET_S} s, refusal {REFUSAL_BUDGET_S} s; over: {over or 'none'}")
    return 1 if over and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
