"""Renders a plan as the command line of vLLM's own server."""

import sys

from ascend_recipes.rendering.arguments import flag_words
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
    flags = (
        word
        for name, value in values.items()
        for word in flag_words("--" + name.replace("_", "-"), value, joined=True)
    )
    return ["serve", str(model), *flags]
