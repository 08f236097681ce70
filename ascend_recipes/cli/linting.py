"""The command that judges `vllm serve` commands wherever they stand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from ascend_recipes.cli.arguments import Invocation
from ascend_recipes.cli.output import Output
from ascend_recipes.cli.render import render_finding
from ascend_recipes.errors import ExitCode, RecipeError, Severity
from ascend_recipes.findings import finding

if TYPE_CHECKING:
    from ascend_recipes.lint.judge import Report


def run_lint(invocation: Invocation, output: Output) -> ExitCode:
    """`lint PATH…`: findings about every server command of the files."""
    from ascend_recipes.lint.judge import lint_paths

    if not invocation.arguments:
        missing = finding("lint.no_paths", fix="ascend-run lint PATH…")
        raise RecipeError((missing,), ExitCode.USAGE)
    version = invocation.runtime_version or _newest_version()
    report = lint_paths([Path(path) for path in invocation.arguments], version)
    code = _exit_code(report, strict=invocation.strict)
    if invocation.format == "sarif":
        from ascend_recipes.lint.documents import sarif_log

        output.text(json.dumps(sarif_log(report), ensure_ascii=False, indent=2))
    elif output.json:
        from ascend_recipes.lint.documents import json_body

        output.document("lint", code, json_body(report))
    else:
        output.show(*_page(report, output.language))
        output.note(_summary(report))
    return code


def _newest_version() -> str:
    from ascend_recipes.registry.load import load_registry

    return load_registry().runtimes["vllm_ascend"].versions[-1]


def _exit_code(report: Report, *, strict: bool) -> ExitCode:
    doubtful = (Severity.ERROR, Severity.WARNING) if strict else (Severity.ERROR,)
    return ExitCode.FINDINGS if report.worst in doubtful else ExitCode.OK


def _page(report: Report, language: str) -> Iterator[Text]:
    """Findings as linters show them: the place first, so that terminals make it a link."""
    for item in report.findings:
        text = Text(f"{item.source}\n" if item.source else "", "bold")
        yield text.append_text(render_finding(replace(item, source=None), language))


def _summary(report: Report) -> str:
    counts = Counter(item.severity for item in report.findings)
    found = ", ".join(f"{counts[level]} {level.value}" for level in Severity if counts[level])
    files = f"{report.files} file(s), {len(report.commands)} server command(s)"
    return f"{files} for {report.version}: {found or 'no findings'}"
