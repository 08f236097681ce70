"""Time to validate, resolve, judge and plan in a running process, after composition.

For every recipe and both runtimes: the best of a few runs, in milliseconds. With `--check` the
exit code says whether all are below the promised 50 ms.

    .venv/bin/python benchmarks/judging.py [--runs N] [--check]
"""

import argparse
import sys
import time

from ascend_recipes.compose import Composition, compose_recipe, recipe_names
from ascend_recipes.plan import plan_launch
from ascend_recipes.registry.load import load_registry
from ascend_recipes.resolve import resolve_recipe
from ascend_recipes.validate import validate_recipe

PROMISE_MS = 50.0
RUNTIMES = ("native", "vllm_ascend")


def judging_ms(composition: Composition, runs: int) -> float:
    """Best of `runs`, in milliseconds."""
    best = float("inf")
    for _ in range(runs):
        begin = time.perf_counter()
        recipe = validate_recipe(composition)
        plan_launch(resolve_recipe(recipe, load_registry(), composition.source))
        best = min(best, time.perf_counter() - begin)
    return 1000 * best


def main() -> int:
    """Print one line a recipe; 1 if one is slower than promised and `--check` was given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    slow = False
    for entry in recipe_names():
        words = [[f"recipe={entry.name}", f"runtime={runtime}"] for runtime in RUNTIMES]
        times = [judging_ms(compose_recipe(item), options.runs) for item in words]
        slow |= max(times) > PROMISE_MS
        shown = "  ".join(f"{name} {t:5.1f}" for name, t in zip(RUNTIMES, times, strict=True))
        sys.stdout.write(f"{entry.name:<44} {shown} ms\n")
    return 1 if slow and options.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
