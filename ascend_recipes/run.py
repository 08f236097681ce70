"""Run: hand a plan over to vLLM, and stay with it until it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ascend_recipes.errors import ExitCode, Finding, recipe_error
from ascend_recipes.launch.arguments import serve_arguments, serve_command
from ascend_recipes.launch.checkpoint import ensure_checkpoint
from ascend_recipes.launch.folder import RunFolder, create_run_folder, pasteable
from ascend_recipes.launch.http import ServerClient
from ascend_recipes.launch.preflight import check_machine, server_address
from ascend_recipes.launch.session import (
    SOLE_PROCESS,
    ProcessSpec,
    Session,
    StopRequestedError,
)
from ascend_recipes.launch.stages import StageListener
from ascend_recipes.receipts import Receipt, load_receipts
from ascend_recipes.schema.base import Json

if TYPE_CHECKING:
    from ascend_recipes.plan import PlannedLaunch

CANARY_SECONDS = 300.0
GENERATE_SECONDS = 3600.0

GENERATE_MODULE = "ascend_recipes.launch.generate"


class ServeListener(StageListener, Protocol):
    """Shows a serving run to people."""

    def started(self, folder: Path, command: str) -> None:
        """Announce the run folder and the command that starts vLLM."""

    def serving(self, url: str, model: str, findings: Sequence[Finding]) -> None:
        """Requests are answered from now on."""

    def ending(self) -> None:
        """Running requests get time to finish."""


@dataclass(frozen=True)
class Generation:
    """What `generate` brought back."""

    folder: Path
    outputs: tuple[dict[str, Json], ...]
    """One object a prompt: prompt, text, token_ids, finish_reason."""
    receipts: tuple[Receipt, ...]
    findings: tuple[Finding, ...]


def run_plan(planned: PlannedLaunch, words: Sequence[str], listener: ServeListener) -> ExitCode:
    """Serve a plan until somebody asks to end.

    Raises:
        RecipeError: this machine lacks something (exit code 4), or vLLM did not start or did not
            stay up (5). No process is left in either case.
    """
    plan = planned.plan
    check_machine(plan, serving=True)
    folder = create_run_folder(planned, words)
    ensure_checkpoint(planned, folder, listener)
    client = ServerClient(*server_address(plan))
    listener.started(folder.path, pasteable(folder, plan.env, serve_arguments(plan)))
    try:
        with Session(plan, folder, listener=listener) as session:
            session.start(_sole_process(folder, serve_command(plan)))
            session.wait_until(client.is_healthy, timeout_s=_patience(planned))
            findings = session.audit()
            _check_canary(client, folder)
            listener.end()
            session.state.change(status="serving", url=client.url)
            listener.serving(client.url, client.model_name(), findings)
            session.watch()
            listener.ending()
    except StopRequestedError:
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def generate_once(
    planned: PlannedLaunch,
    words: Sequence[str],
    *,
    prompts: Sequence[str],
    max_tokens: int,
    listener: StageListener,
) -> Generation:
    """Answer prompts with an offline engine.

    Raises:
        RecipeError: as `run_plan`.
        KeyboardInterrupt: somebody asked the launcher to end.
    """
    plan = planned.plan
    check_machine(plan, serving=False)
    folder = create_run_folder(planned, words)
    folder.write_json("prompts.json", {"prompts": list(prompts), "max_tokens": max_tokens})
    ensure_checkpoint(planned, folder, listener)
    command = [sys.executable, "-m", GENERATE_MODULE]
    try:
        with Session(plan, folder, listener=listener) as session:
            session.start(_sole_process(folder, command))
            session.wait_until(lambda: session.is_ready, timeout_s=_patience(planned))
            findings = session.audit()
            listener.begin("generate")
            session.wait_for_end(timeout_s=GENERATE_SECONDS)
            listener.end()
    except StopRequestedError:
        raise KeyboardInterrupt from None
    outputs = json.loads(folder.outputs.read_text(encoding="utf-8"))
    return Generation(
        folder=folder.path,
        outputs=tuple(outputs["outputs"]),
        receipts=load_receipts(folder.path),
        findings=tuple(findings),
    )


def _sole_process(folder: RunFolder, command: Sequence[str]) -> ProcessSpec:
    folder.write_json("argv.json", list(command))
    return ProcessSpec(
        name=SOLE_PROCESS,
        command=tuple(command),
        environment=folder.environment,
        log=folder.log,
    )


def _patience(planned: PlannedLaunch) -> float:
    return float(planned.resolved.recipe.serving.ready_timeout_s)


def _check_canary(client: ServerClient, folder: RunFolder) -> None:
    if problem := client.canary(timeout_s=CANARY_SECONDS):
        raise recipe_error(
            "launch.canary",
            f"the server is up, but its first completion failed: {problem}",
            fix=f"the log is in {folder.log}",
            exit_code=ExitCode.LAUNCH,
        )
