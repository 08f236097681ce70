"""Writes the tiny checkpoint that a plan names, if it is not there yet.

The weights are drawn by torch, which the launcher never imports: a child process does the work.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_recipes.errors import ExitCode
from ascend_recipes.findings import recipe_error
from ascend_recipes.launch.folder import RunFolder
from ascend_recipes.launch.stages import StageListener

if TYPE_CHECKING:
    from ascend_recipes.plan import PlannedLaunch

_MODULE = "ascend_recipes.launch.checkpoint"
_SECONDS = 600


def ensure_checkpoint(planned: "PlannedLaunch", folder: RunFolder, listener: StageListener) -> None:
    """Make sure that a tiny plan finds its weights; a real one brings its own.

    Raises:
        RecipeError: the weights could not be written (exit code 5).
    """
    plan, resolved = planned.plan, planned.resolved
    target = Path(plan.model.checkpoint)
    # The folder appears by a rename, so that one with a configuration is whole.
    if plan.model.tiny_seed is None or (target / "config.json").is_file():
        return
    listener.begin("weights")
    listener.detail(f"random tiny weights in {target}")
    request = {
        "folder": str(target.parent),
        "family": resolved.model.family,
        "model": resolved.published_config,
        "seed": plan.model.tiny_seed,
        "dtype": resolved.recipe.checkpoint.dtype,
        "quantization": resolved.checkpoint.format,
    }
    with folder.log.open("ab") as log:
        written = subprocess.run(
            [sys.executable, "-m", _MODULE],
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(folder.environment),
            timeout=_SECONDS,
            check=False,
        )
    if written.returncode or not (target / "config.json").is_file():
        raise recipe_error(
            "scale.tiny_not_written",
            exit_code=ExitCode.LAUNCH,
            folder=target,
            log=folder.log,
        )


def main() -> None:
    """Write the checkpoint that the request on stdin asks for."""
    from ascend_recipes.tiny import ensure_tiny_checkpoint

    request = json.load(sys.stdin)
    ensure_tiny_checkpoint(Path(request.pop("folder")), **request)


if __name__ == "__main__":
    main()
