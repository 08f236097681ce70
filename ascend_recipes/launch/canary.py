"""The first completion: a server that is up need not be able to answer."""

from pathlib import Path

from ascend_recipes.errors import ExitCode
from ascend_recipes.findings import recipe_error
from ascend_recipes.launch.http import ServerClient

CANARY_SECONDS = 300.0


def check_canary(client: ServerClient, log: Path) -> None:
    """Complete one token.

    Raises:
        RecipeError: nothing came back, or something that is no completion (exit code 5).
    """
    if problem := client.canary(timeout_s=CANARY_SECONDS):
        raise recipe_error("launch.canary", exit_code=ExitCode.LAUNCH, problem=problem, log=log)
