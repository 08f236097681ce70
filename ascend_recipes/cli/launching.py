"""The two commands that start vLLM, as people see them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_recipes.cli.arguments import Invocation
from ascend_recipes.cli.output import Output
from ascend_recipes.cli.pipeline import planned_launch
from ascend_recipes.cli.progress import StageLine
from ascend_recipes.errors import ExitCode, Finding, RecipeError, Severity
from ascend_recipes.run import Generation, generate_once, run_plan
from ascend_recipes.words import repeated_overrides

if TYPE_CHECKING:
    from ascend_recipes.plan import PlannedLaunch
    from ascend_recipes.receipts import DraftCounts, Receipt


def generate(invocation: Invocation, output: Output) -> ExitCode:
    """Plan, answer the prompts, print the answers."""
    line = StageLine(output)
    planned = _plan(invocation, output, line)
    result = generate_once(
        planned,
        invocation.words,
        prompts=invocation.prompts,
        max_tokens=invocation.max_tokens,
        listener=line,
    )
    findings = [*_warnings(invocation, planned), *result.findings]
    if output.json:
        body = _generation_json(planned, result, line, findings)
        output.document(invocation.command, ExitCode.OK, body)
        return ExitCode.OK
    output.note(_receipts_line(result.receipts))
    if drafts := _drafts(result.receipts):
        output.note(f"drafts    {drafts.to_text()}")
    output.findings(result.findings)
    for item in result.outputs:
        if len(result.outputs) > 1:
            output.note(f"--- {item['prompt']}")
        output.text(str(item["text"]))
    return ExitCode.OK


def serve(invocation: Invocation, output: Output) -> ExitCode:
    """Plan and serve until somebody asks to end."""
    view = ServeView(output, strict=invocation.strict)
    planned = _plan(invocation, output, view)
    code = run_plan(planned, invocation.words, view, nodes=invocation.nodes)
    output.note("ended; no process is left" if code is ExitCode.OK else "the start was interrupted")
    return code


class ServeView(StageLine):
    """Stages of a start, then how to talk to the server."""

    def __init__(self, output: Output, *, strict: bool = False) -> None:
        super().__init__(output)
        self._strict = strict
        self._warnings: tuple[Finding, ...] = ()

    def started(self, folder: Path, command: str) -> None:
        """Print where the run is recorded."""
        self._output.note(f"run folder {folder}")
        self._folder, self._command = folder, command

    def serving(self, url: str, model: str, findings: Sequence[Finding]) -> None:
        """Print the address and a first request."""
        if self._output.json:
            body = {
                "url": f"{url}/v1",
                "model": model,
                "run_folder": str(self._folder),
                "vllm_command": self._command,
                "stages": self.seconds,
                "findings": [item.to_json() for item in (*self._warnings, *findings)],
            }
            self._output.document("serve", ExitCode.OK, body)
            return
        self._output.findings(findings)
        self._output.text(_how_to_talk(url, model))

    def warn(self, findings: Sequence[Finding]) -> None:
        """Print what is doubtful; it stands in the document too.

        Raises:
            RecipeError: warnings fail too.
        """
        doubtful = tuple(item for item in findings if item.severity is Severity.WARNING)
        if self._strict and doubtful:
            raise RecipeError(doubtful, ExitCode.FINDINGS)
        self._warnings = (*self._warnings, *findings)
        if not self._output.json:
            self._output.findings(findings)

    def ending(self) -> None:
        """Say that running requests get time to finish."""
        self._output.note("ending: running requests may finish; once more ends them too")


def _plan(invocation: Invocation, output: Output, line: StageLine) -> PlannedLaunch:
    planned = planned_launch(invocation.words, invocation.config_dirs, on_stage=line.begin)
    line.detail(f"{planned.plan.recipe} {planned.plan.digest}")
    line.end()
    warnings = _warnings(invocation, planned)
    doubtful = [item for item in warnings if item.severity is Severity.WARNING]
    if invocation.strict and doubtful:
        raise RecipeError(tuple(doubtful), ExitCode.FINDINGS)
    if not output.json and not output.quiet:
        output.findings(warnings)
        from ascend_recipes.cli.render import render_summary

        output.show_note(render_summary(planned))
    if planned.blockers:
        raise RecipeError(planned.blockers, ExitCode.FINDINGS)
    return planned


def _warnings(invocation: Invocation, planned: PlannedLaunch) -> list[Finding]:
    return [*planned.findings, *repeated_overrides(invocation.words)]


def _generation_json(
    planned: PlannedLaunch, result: Generation, line: StageLine, findings: Sequence[Finding]
) -> dict[str, object]:
    return {
        "recipe": planned.plan.recipe,
        "digest": planned.plan.digest,
        "run_folder": str(result.folder),
        "stages": line.seconds,
        "outputs": result.outputs,
        "receipts": [_receipt_json(receipt) for receipt in result.receipts],
        "findings": [item.to_json() for item in findings],
    }


def _drafts(receipts: Sequence[Receipt]) -> DraftCounts | None:
    """Counts of one worker: all ranks judge the same drafts."""
    return next((receipt.drafts for receipt in receipts if receipt.drafts is not None), None)


def _receipt_json(receipt: Receipt) -> dict[str, object]:
    return receipt.model_dump(mode="json", exclude={"hooks", "bindings", "shims"})


def _receipts_line(receipts: Sequence[Receipt]) -> str:
    workers = [receipt for receipt in receipts if receipt.effective is not None]
    calls = sum(sum(receipt.calls.values()) for receipt in workers)
    bound = len({name for receipt in workers for name in receipt.bindings})
    digests = ", ".join(sorted({receipt.digest for receipt in receipts}))
    return (
        f"receipts  {len(receipts)} processes applied plan {digests}; "
        f"{len(workers)} worker(s), {bound} operations bound, {calls} calls"
    )


def _how_to_talk(url: str, model: str) -> str:
    return (
        f"ready at {url}/v1\n\n"
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '"
        f'{{"model": "{model}", "messages": [{{"role": "user", "content": "你好"}}]}}'
        "'\n\nCtrl-C ends the server."
    )
