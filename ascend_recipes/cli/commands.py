"""The commands of `ascend-run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_recipes.cli.arguments import Invocation
from ascend_recipes.cli.output import Output
from ascend_recipes.cli.pipeline import check_recipe, planned_launch
from ascend_recipes.errors import ExitCode, Finding, RecipeError, Severity
from ascend_recipes.findings import recipe_error
from ascend_recipes.words import repeated_overrides, sweep

if TYPE_CHECKING:
    from ascend_recipes.plan import PlannedLaunch


@dataclass(frozen=True)
class Attempt:
    """One set of words and what became of it."""

    words: tuple[str, ...]
    planned: PlannedLaunch | None
    findings: tuple[Finding, ...]
    code: ExitCode

    def to_json(self, *, with_plan: bool) -> dict[str, object]:
        """Body of the document."""
        body: dict[str, object] = {"findings": [item.to_json() for item in self.findings]}
        if self.planned is not None:
            body |= {"recipe": self.planned.plan.recipe, "digest": self.planned.plan.digest}
            if with_plan:
                from ascend_recipes.memory.planner import plan_memory

                body["memory"] = plan_memory(self.planned.resolved).to_json()
                body["plan"] = self.planned.plan.model_dump(mode="json")
                body["reasons"] = self.planned.reasons_json()
                if commands := self.planned.commands:
                    body["commands"] = [item.to_json() for item in commands]
            body["blockers"] = [item.to_json() for item in self.planned.blockers]
        return body


def run_plan_command(invocation: Invocation, output: Output) -> ExitCode:
    """`plan`: what would be started, and why."""
    if invocation.multirun:
        return _run_sweep(invocation, output)
    attempt = _with_weights(_attempt(invocation, invocation.words))
    if output.json:
        output.document("plan", attempt.code, attempt.to_json(with_plan=True))
        return attempt.code
    if attempt.planned is not None:
        from ascend_recipes.cli.render import render_plan

        output.show(*render_plan(attempt.planned, output.language))
    output.findings(attempt.findings)
    return attempt.code


def run_check(invocation: Invocation, output: Output) -> ExitCode:
    """`check`: findings only."""
    if invocation.every_recipe:
        return _deferred("inspecting:run_check_all")(invocation, output)
    if invocation.multirun:
        return _run_sweep(invocation, output)
    attempt = _attempt(invocation, invocation.words)
    if output.json:
        output.document("check", attempt.code, attempt.to_json(with_plan=False))
        return attempt.code
    # Findings are what was asked for, so they go to stdout, unlike those of other commands.
    output.findings(attempt.findings, stderr=False)
    if attempt.planned is not None and not attempt.findings:
        output.text(
            f"{attempt.planned.plan.recipe}: no findings, plan {attempt.planned.plan.digest}"
        )
    return attempt.code


def run_list(invocation: Invocation, output: Output) -> ExitCode:
    """`list`: the recipes that can be named."""
    from ascend_recipes.compose import recipe_names
    from ascend_recipes.paths import display_path

    entries = recipe_names(invocation.config_dirs)
    if output.json:
        recipes = [
            {
                "name": entry.name,
                "about": entry.about,
                "model": entry.model,
                "hardware": entry.hardware,
                "path": display_path(entry.path),
            }
            for entry in entries
        ]
        output.document("list", ExitCode.OK, {"recipes": recipes})
        return ExitCode.OK
    from ascend_recipes.cli.render import render_recipes

    output.show(render_recipes(entries))
    return ExitCode.OK


def run_generate(invocation: Invocation, output: Output) -> ExitCode:
    """`generate`: answer the given prompts once and end."""
    _refuse_sweep(invocation)
    _check_prompts(invocation)
    from ascend_recipes.cli.launching import generate

    return generate(invocation, output)


def run_serve(invocation: Invocation, output: Output) -> ExitCode:
    """`serve`: start an OpenAI-compatible server."""
    _refuse_sweep(invocation)
    if invocation.prompts:
        raise recipe_error(
            "usage.stray_prompt",
            fix="ascend-run generate recipe=… --prompt …",
            exit_code=ExitCode.USAGE,
        )
    from ascend_recipes.cli.launching import serve

    return serve(invocation, output)


Runner = Callable[[Invocation, Output], ExitCode]


def _deferred(place: str) -> Runner:
    """A command in a module of its own (`module:function`), imported when it runs."""

    def run(invocation: Invocation, output: Output) -> ExitCode:
        _refuse_sweep(invocation)
        module, _, name = place.partition(":")
        command: Runner = getattr(import_module(f"ascend_recipes.cli.{module}"), name)
        return command(invocation, output)

    return run


COMMANDS: dict[str, Runner] = {
    "serve": run_serve,
    "generate": run_generate,
    "plan": run_plan_command,
    "check": run_check,
    "list": run_list,
    "completion": _deferred("inspecting:run_completion"),
    "diff": _deferred("inspecting:run_diff"),
    "doctor": _deferred("doctoring:run_doctor"),
    "export": _deferred("exporting:run_export"),
    "explain": _deferred("inspecting:run_explain"),
    "fix": _deferred("fixing:run_fix"),
    "import": _deferred("importing:run_import"),
    "init": _deferred("inspecting:run_init"),
    "lint": _deferred("linting:run_lint"),
    "logs": _deferred("runs:run_logs"),
    "ops": _deferred("operations:run_operations"),
    "patches": _deferred("patches:run_patches"),
    "schema": _deferred("inspecting:run_schema"),
    "show": _deferred("inspecting:run_show"),
    "status": _deferred("runs:run_status"),
    "stop": _deferred("runs:run_stop"),
    "transpose": _deferred("transposing:run_transpose"),
}


def show_hydra(invocation: Invocation) -> ExitCode:
    """`--cfg` and `--info`: Hydra's own rendering, of a recipe that is known to be valid."""
    _refuse_sweep(invocation)
    check_recipe(invocation.words, invocation.config_dirs)
    from ascend_recipes.cli.hydra_flags import render_with_hydra

    render_with_hydra(invocation)
    return ExitCode.OK


def _attempt(invocation: Invocation, words: Sequence[str]) -> Attempt:
    warnings = repeated_overrides(words)
    try:
        planned = planned_launch(words, invocation.config_dirs)
        machine = _machine(invocation, planned, words)
    except RecipeError as error:
        return Attempt(tuple(words), None, (*error.findings, *warnings), error.exit_code)
    findings = (*planned.findings, *machine, *warnings)
    doubtful = any(item.severity is Severity.WARNING for item in findings)
    code = ExitCode.FINDINGS if invocation.strict and doubtful else ExitCode.OK
    if any(item.severity is Severity.ERROR for item in machine):
        code = ExitCode.ENVIRONMENT
    return Attempt(tuple(words), planned, findings, code)


def _with_weights(attempt: Attempt) -> Attempt:
    """The attempt, with what is wrong with weights that lie on this machine among its blockers.

    Their headers are read for `plan` alone: whoever has no such folder plans for other machines.
    """
    planned = attempt.planned
    if planned is None or not Path(planned.plan.model.checkpoint).is_dir():
        return attempt
    if planned.plan.model.tiny_seed is not None:
        return attempt
    from ascend_recipes.launch.preflight import checkpoint_findings

    blockers = (*planned.blockers, *checkpoint_findings(planned.plan))
    return replace(attempt, planned=replace(planned, blockers=blockers))


def _machine(
    invocation: Invocation, planned: PlannedLaunch, words: Sequence[str]
) -> tuple[Finding, ...]:
    """What of the named machine does not fit; nothing unless one is named."""
    if not invocation.installed:
        return ()
    from ascend_recipes.cli.machines import machine_findings

    return machine_findings(planned, invocation.installed, words, invocation.config_dirs)


def _run_sweep(invocation: Invocation, output: Output) -> ExitCode:
    attempts = [_attempt(invocation, words) for words in sweep(invocation.words)]
    code = max(attempt.code for attempt in attempts)
    if output.json:
        with_plan = invocation.command == "plan"
        runs = [
            {"overrides": attempt.words, "exit_code": int(attempt.code)}
            | attempt.to_json(with_plan=with_plan)
            for attempt in attempts
        ]
        output.document(invocation.command, code, {"runs": runs})
        return code
    from ascend_recipes.cli.render import render_sweep

    gists = [(item.words, item.code == 0, _gist(item, output.language)) for item in attempts]
    output.show(render_sweep(gists))
    return code


def _gist(attempt: Attempt, language: str) -> str:
    if attempt.planned is not None and attempt.code is ExitCode.OK:
        return attempt.planned.plan.digest
    from ascend_recipes.cli.render import told_message

    first = attempt.findings[0]
    return f"{first.id}: {told_message(first, language)}"


def _refuse_sweep(invocation: Invocation) -> None:
    if invocation.multirun:
        raise recipe_error(
            "usage.multirun",
            fix="ascend-run plan -m …",
            exit_code=ExitCode.USAGE,
            command=invocation.command,
        )


def _check_prompts(invocation: Invocation) -> None:
    if not invocation.prompts:
        fix = 'ascend-run generate recipe=… --prompt "你好"'
        raise recipe_error("usage.prompt_missing", fix=fix, exit_code=ExitCode.USAGE)
    if "" in invocation.prompts:
        fix = '--prompt "你好"'
        raise recipe_error("usage.prompt_empty", fix=fix, exit_code=ExitCode.USAGE)
