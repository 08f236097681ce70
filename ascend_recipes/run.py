"""Run: hand a plan over to vLLM, and stay with it until it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_recipes.errors import ExitCode, Finding, RecipeError
from ascend_recipes.findings import finding
from ascend_recipes.launch.arguments import serve_arguments, serve_command
from ascend_recipes.launch.canary import check_canary
from ascend_recipes.launch.checkpoint import ensure_checkpoint
from ascend_recipes.launch.environment import NATIVE
from ascend_recipes.launch.folder import RunFolder, create_run_folder, pasteable
from ascend_recipes.launch.http import ServerClient
from ascend_recipes.launch.listener import ServeListener
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

GENERATE_SECONDS = 3600.0

GENERATE_MODULE = "ascend_recipes.launch.generate"


@dataclass(frozen=True)
class Generation:
    """What `generate` brought back."""

    folder: Path
    outputs: tuple[dict[str, Json], ...]
    """One object a prompt: prompt, text, token_ids, finish_reason."""
    receipts: tuple[Receipt, ...]
    findings: tuple[Finding, ...]


def run_plan(
    planned: PlannedLaunch,
    words: Sequence[str],
    listener: ServeListener,
    *,
    nodes: Sequence[int] = (),
) -> ExitCode:
    """Serve a plan until somebody asks to end.

    Args:
        planned: What to serve; without blockers.
        words: What was typed, for the record.
        listener: Told what happens.
        nodes: Which nodes of the deployment this machine is; empty finds out.

    Raises:
        RecipeError: this machine lacks something (exit code 4), or vLLM did not start or did not
            stay up (5). No process is left in either case.
    """
    if planned.plan.runtime.name == NATIVE:
        return _run_native(planned, words, listener)
    # Deferred: what a native run needs not.
    from ascend_recipes.launch.cluster import run_deployment
    from ascend_recipes.launch.deployment import find_deployment
    from ascend_recipes.launch.readiness import check_deployment

    deployment = find_deployment(planned, nodes)
    listener.warn(check_deployment(deployment))
    return run_deployment(deployment, create_run_folder(planned, words), listener)


def _run_native(planned: PlannedLaunch, words: Sequence[str], listener: ServeListener) -> ExitCode:
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
            check_canary(client, folder.log)
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
    if plan.runtime.name != NATIVE:
        fix = "ascend-run serve recipe=… runtime=vllm_ascend"
        item = finding("cluster.serve_only", at="runtime.kind", fix=fix, runtime=plan.runtime.name)
        raise RecipeError((item,), ExitCode.USAGE)
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
