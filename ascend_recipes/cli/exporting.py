"""`export`: files that start a deployment without us."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_recipes.cli.arguments import EXPORT_TARGETS, Invocation
from ascend_recipes.cli.output import Output
from ascend_recipes.cli.pipeline import planned_launch
from ascend_recipes.errors import ExitCode, RecipeError, Severity
from ascend_recipes.findings import finding
from ascend_recipes.words import repeated_overrides

if TYPE_CHECKING:
    from ascend_recipes.export.targets import Export


def run_export(invocation: Invocation, output: Output) -> ExitCode:
    """`export recipe=… --target FORM`: print the files, or write them where `--out` says."""
    if not invocation.target:
        fix = "ascend-run export recipe=… --target shell"
        missing = finding("export.no_target", fix=fix, targets=EXPORT_TARGETS)
        raise RecipeError((missing,), ExitCode.USAGE)
    planned = planned_launch(invocation.words, invocation.config_dirs)
    from ascend_recipes.export.targets import export_deployment

    export = export_deployment(
        planned,
        invocation.target,
        command=_command(invocation),
        placeholders=invocation.placeholders,
    )
    findings = (*export.findings, *repeated_overrides(invocation.words))
    doubtful = tuple(item for item in findings if item.severity is Severity.WARNING)
    if invocation.strict and doubtful:
        raise RecipeError(doubtful, ExitCode.FINDINGS)
    paths = _write(invocation, export)
    if output.json:
        body = _document(invocation, export, paths)
        output.document("export", ExitCode.OK, body | {"findings": [i.to_json() for i in findings]})
        return ExitCode.OK
    output.findings(findings)
    for line in _lines(export, paths):
        output.text(line)
    return ExitCode.OK


def _write(invocation: Invocation, export: Export) -> tuple[Path, ...]:
    if not invocation.out:
        return ()
    from ascend_recipes.export.write import write_files

    return write_files(export.files, Path(invocation.out), force=invocation.force)


def _lines(export: Export, paths: Sequence[Path]) -> Iterator[str]:
    """Where the files are, else their texts; a single one stands alone, to be piped."""
    if paths:
        yield from (f"wrote {path}" for path in paths)
    elif len(export.files) == 1:
        yield export.files[0].text.rstrip("\n")
    else:
        for item in export.files:
            yield f"# ==> {item.name} <==\n{item.text}"


def _document(invocation: Invocation, export: Export, paths: Sequence[Path]) -> dict[str, object]:
    layout = export.layout
    places = [str(path) for path in paths] if paths else [None] * len(export.files)
    return {
        "recipe": layout.recipe,
        "digest": layout.digest,
        "target": invocation.target,
        "image": layout.image or None,
        "files": [
            {"name": item.name, "path": path, "text": item.text}
            for item, path in zip(export.files, places, strict=True)
        ],
    }


def _command(invocation: Invocation) -> str:
    """What to type to write the same files again."""
    folders = [word for folder in invocation.config_dirs for word in ("--config-dir", folder.name)]
    words = ["ascend-run", "export", *invocation.words, "--target", invocation.target, *folders]
    return shlex.join([*words, *(["--placeholders"] if invocation.placeholders else [])])
