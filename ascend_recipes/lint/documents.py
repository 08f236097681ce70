"""The report of lint as JSON and as SARIF 2.1.0 (OASIS), which code hosts show beside the lines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from urllib.parse import quote

from ascend_recipes import __version__
from ascend_recipes.errors import Finding, Severity
from ascend_recipes.lint.judge import JudgedCommand, Report

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: Mapping[Severity, str] = {
    Severity.ERROR: "error",
    Severity.WARNING: "warning",
    Severity.INFO: "note",
}


def json_body(report: Report) -> dict[str, object]:
    """Body of `lint --format json`; `LintDocument` describes it."""
    return {
        "runtime_version": report.version,
        "files": report.files,
        "commands": [_command(item) for item in report.commands],
        "findings": [_finding(item) for item in report.findings],
    }


def _command(judged: JudgedCommand) -> dict[str, object]:
    model = judged.arguments.model
    return {
        "file": judged.command.file,
        "line": judged.command.line,
        "model": None if model is None else model.text,
        "unresolved": list(judged.command.unresolved),
        "rules": judged.unjudged or "asked",
    }


def _finding(item: Finding) -> dict[str, object]:
    flat: dict[str, object] = {**item.to_json()}
    flat.pop("source", None)
    place: dict[str, object] = {}
    if item.source is not None:
        place = {"file": item.source.origin, "line": item.source.line or 1}
    return {**place, **flat}


def sarif_log(report: Report) -> dict[str, object]:
    """A SARIF log with one run."""
    rules = sorted({item.id for item in report.findings})
    driver = {
        "name": "ascend-run lint",
        "version": __version__,
        "rules": [_rule(name, report.findings) for name in rules],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(item, rules) for item in report.findings],
    }
    return {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(id: str, findings: Sequence[Finding]) -> dict[str, object]:
    first = next(item for item in findings if item.id == id)
    rule: dict[str, object] = {
        "id": id,
        "defaultConfiguration": {"level": _LEVELS[first.severity]},
    }
    if first.why:
        rule["fullDescription"] = {"text": first.why}
    return rule


def _result(item: Finding, rules: Sequence[str]) -> dict[str, object]:
    text = item.message if not item.fix else f"{item.message}. Fix: {item.fix}"
    result: dict[str, object] = {
        "ruleId": item.id,
        "ruleIndex": rules.index(item.id),
        "level": _LEVELS[item.severity],
        "message": {"text": text},
        "partialFingerprints": {"finding/v1": _fingerprint(item)},
    }
    if item.source is not None:
        location = {
            "artifactLocation": {"uri": _uri(item.source.origin)},
            "region": {"startLine": item.source.line or 1},
        }
        result["locations"] = [{"physicalLocation": location}]
    return result


def _fingerprint(item: Finding) -> str:
    """The same for the same finding when lines move."""
    origin = item.source.origin if item.source else ""
    content = "\n".join((item.id, origin, item.at, item.message))
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _uri(file: str) -> str:
    path = PurePath(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
