"""Time of `ascend-run check --all`, against its budget of 0.3 s a recipe and core.

    .venv/bin/python benchmarks/check_all.py [--runs N] [--check]

Wall time is that of a fresh process, its start included; CPU time counts its workers too. On a busy
machine the wall time says little: `--check` then compares CPU time, as if the cores were free.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

BUDGET_S = 0.3

_COMMAND = [
    sys.executable,
    "-c",
    "import sys\nfrom ascend_recipes.cli.main import main\nsys.exit(main())",
    "check",
    "--all",
    "--json",
]


@dataclass(frozen=True)
class Timing:
    """One run."""

    wall_s: float
    cpu_s: float
    recipes: int


def timed() -> Timing:
    """Check every recipe once, in a fresh process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(_COMMAND, capture_output=True, text=True, check=True)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timing(wall, cpu, len(json.loads(done.stdout)["recipes"]))


def main() -> int:
    """Print the table; with `--check`, say by the exit code whether the budget held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    runs = [timed() for _ in range(arguments.runs)]
    recipes = runs[0].recipes
    budget = BUDGET_S * recipes / cores
    wall = statistics.median(run.wall_s for run in runs)
    cpu = statistics.median(run.cpu_s for run in runs)
    print(f"{recipes} recipes, {cores} cores, budget {budget:.1f} s")
    print(f"wall {wall:.1f} s, CPU {cpu:.1f} s, of which each core {cpu / cores:.1f} s")
    print(f"load of the last minute: {os.getloadavg()[0]:.1f}")
    busy = os.getloadavg()[0] > cores + 1
    held = (cpu / cores if busy else wall) <= budget
    print(
        f"budget {'held' if held else 'exceeded'}{' (by CPU time: busy machine)' if busy else ''}"
    )
    return 0 if held or not arguments.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
