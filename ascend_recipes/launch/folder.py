"""The run folder: everything about one start, in one place."""

import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_recipes.errors import ExitCode
from ascend_recipes.findings import recipe_error
from ascend_recipes.launch.environment import child_environment, without_secrets
from ascend_recipes.paths import cache_root
from ascend_recipes.receipts import RECEIPT_FOLDER

if TYPE_CHECKING:
    from ascend_recipes.plan import PlannedLaunch


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run, and the environment that its processes get."""

    path: Path
    environment: Mapping[str, str]

    @property
    def plan(self) -> Path:
        """The launch plan that every process reads."""
        return self.path / "plan.json"

    @property
    def log(self) -> Path:
        """Output of vLLM's processes."""
        return self.path / "vllm.log"

    @property
    def prompts(self) -> Path:
        """Input of `generate`."""
        return self.path / "prompts.json"

    @property
    def outputs(self) -> Path:
        """Result of `generate`."""
        return self.path / "outputs.json"

    def write_json(self, name: str, tree: object) -> None:
        """Write a JSON file into the folder."""
        text = json.dumps(tree, ensure_ascii=False, indent=2)
        (self.path / name).write_text(text + "\n", encoding="utf-8")


def create_run_folder(planned: "PlannedLaunch", words: Sequence[str]) -> RunFolder:
    """Make `runs/<timestamp>-<recipe>-<pid>` with the plan, its reasons, and who asked for it.

    Raises:
        RecipeError: the cache folder cannot be written.
    """
    plan = planned.plan
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{plan.recipe}-{os.getpid()}"
    cache = planned.resolved.recipe.site.cache_folder
    path = (Path(cache) if cache else cache_root()) / "runs" / name
    try:
        (path / RECEIPT_FOLDER).mkdir(parents=True)
    except OSError as error:
        raise recipe_error(
            "environment.run_folder",
            exit_code=ExitCode.ENVIRONMENT,
            path=path,
            reason=error.strerror,
        ) from None
    _make_findable(path)
    folder = RunFolder(path, child_environment(plan, path / "plan.json", os.environ))
    folder.plan.write_text(plan.to_json(), encoding="utf-8")
    folder.write_json("reasons.json", planned.reasons_json())
    secrets = planned.resolved.recipe.site.secrets
    folder.write_json("env.json", without_secrets(folder.environment, secrets))
    folder.write_json("words.json", list(words))
    return folder


def runs_root() -> Path:
    """Folder in which every run can be found, wherever its site keeps it."""
    return cache_root() / "runs"


def _make_findable(path: Path) -> None:
    """A site may keep runs elsewhere; `status` looks in one place."""
    if path.parent == runs_root():
        return
    with suppress(OSError):
        runs_root().mkdir(parents=True, exist_ok=True)
        (runs_root() / path.name).symlink_to(path)


def pasteable(folder: RunFolder, plan_env: Mapping[str, str], arguments: Sequence[str]) -> str:
    """One shell line that starts the same server without the launcher."""
    names = {**plan_env, "ASCEND_RECIPES_PLAN": str(folder.plan)}
    settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(names.items())]
    return " ".join([*settings, "vllm", shlex.join(arguments)])
