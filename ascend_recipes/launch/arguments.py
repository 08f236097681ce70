"""Renders a plan as the command line of vLLM's own server."""

import json
import sys
from collections.abc import Iterator

from ascend_recipes.schema.base import Json
from ascend_recipes.schema.plan import LaunchPlan

DRAIN_SECONDS = 30
"""Seconds that running requests may take after the server was asked to end."""

SERVER_MODULE = "vllm.entrypoints.cli.main"
"""The module behind the `vllm` command; started with our interpreter, whatever is on PATH."""


def serve_command(plan: LaunchPlan) -> list[str]:
    """Argument vector of the server process."""
    return [sys.executable, "-m", SERVER_MODULE, *serve_arguments(plan)]


def serve_arguments(plan: LaunchPlan) -> list[str]:
    """`serve MODEL --flag …` as `vllm` takes it, in the order of the plan."""
    values: dict[str, Json] = {"shutdown_timeout": DRAIN_SECONDS, **plan.engine, **plan.server}
    model = values.pop("model", plan.model.checkpoint)
    flags = (word for name, value in values.items() for word in _flag(name, value))
    return ["serve", str(model), *flags]


def _flag(name: str, value: Json) -> Iterator[str]:
    flag = "--" + name.replace("_", "-")
    match value:
        case None:
            return
        case True:
            yield flag
        case False:
            yield flag.replace("--", "--no-", 1)
        case dict():
            yield from (flag, json.dumps(value, ensure_ascii=False))
        case list():
            yield from (flag, *map(str, value))
        case _:
            # One word, so that a value that starts with a dash is not taken for a flag.
            yield f"{flag}={value}"
