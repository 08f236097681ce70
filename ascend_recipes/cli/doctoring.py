"""`ascend-run doctor`: what this machine lacks, and what a log means."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rich.text import Text

from ascend_recipes.cli.arguments import Invocation
from ascend_recipes.cli.output import Output
from ascend_recipes.cli.pipeline import composed, planned_launch
from ascend_recipes.cli.render import render_finding
from ascend_recipes.errors import ExitCode, Finding, RecipeError, Severity
from ascend_recipes.findings import finding, phrase
from ascend_recipes.logs.advice import RecipeAtHand, log_findings
from ascend_recipes.logs.decode import Decoded, Match, decode_log
from ascend_recipes.logs.patterns import search_terms
from ascend_recipes.registry.load import load_registry

if TYPE_CHECKING:
    from ascend_recipes.compose import Composition
    from ascend_recipes.schema.base import Json

_STDIN = "-"


def run_doctor(invocation: Invocation, output: Output) -> ExitCode:
    """`doctor`: the machine, with or without a recipe; with `--log` what a log says instead."""
    return _run_log(invocation, output)


# --- the log ------------------------------------------------------------------------------------
def _run_log(invocation: Invocation, output: Output) -> ExitCode:
    recipe = _recipe_at_hand(invocation) if invocation.words else None
    with _opened(invocation.log) as stream:
        decoded = decode_log(
            stream, search_terms(load_registry(invocation.config_dirs).log_messages)
        )
    name = "stdin" if invocation.log == _STDIN else invocation.log
    findings = log_findings(decoded, name, recipe)
    worst = {item.severity for item in findings}
    code = ExitCode.FINDINGS if Severity.ERROR in worst else ExitCode.OK
    if invocation.strict and Severity.WARNING in worst:
        code = ExitCode.FINDINGS
    if output.json:
        output.document("doctor", code, _log_body(decoded, name, findings))
    else:
        output.show(*_log_page(decoded, findings, output.language))
    return code


def _log_body(decoded: Decoded, name: str, findings: list[Finding]) -> dict[str, object]:
    matches = [
        {"id": f"log.{item.name}", "first_line": item.first_line, "count": item.count}
        | {"consequence": item.message.consequence, "excerpt": item.excerpt}
        for item in decoded.matches
    ]
    return {
        "log": name,
        "lines": decoded.lines,
        "bytes": decoded.size,
        "matches": matches,
        "findings": [item.to_json() for item in findings],
    }


def _log_page(decoded: Decoded, findings: list[Finding], language: str) -> Iterator[Text]:
    for number, item in enumerate(findings):
        if number >= len(decoded.matches):
            yield render_finding(item, language)
            continue
        text = render_finding(replace(item, source=None), language)
        yield text.append(f"\n       {_seen(decoded.matches[number], language)}", style="dim")


def _seen(match: Match, language: str) -> str:
    told = phrase("log.seen", line=match.first_line, count=match.count, excerpt=match.excerpt)
    return told.zh if language == "zh" else told.en


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == _STDIN:
        yield sys.stdin.buffer
        return
    try:
        stream = Path(name).expanduser().open("rb")
    except OSError as error:
        reason = error.strerror or str(error)
        unreadable = finding("log.unreadable", path=name, reason=reason)
        raise RecipeError((unreadable,), ExitCode.USAGE) from None
    with stream:
        yield stream


def _recipe_at_hand(invocation: Invocation) -> RecipeAtHand:
    """The recipe behind the log; one that the rules refuse helps to understand it all the more.

    Raises:
        RecipeError: the words do not compose.
    """
    words, folders = invocation.words, invocation.config_dirs
    composition = composed(words, folders)
    findings, refused = _judged(words, folders)
    tree = composition.tree if refused else _with_defaults(composition)

    def accepts(word: str) -> bool:
        return _judged((*words, word), folders)[1] <= refused

    return RecipeAtHand(tree, findings, accepts)


def _with_defaults(composition: Composition) -> dict[str, Json]:
    """The tree with every value that the schema fills in."""
    from ascend_recipes.validate import validate_recipe

    tree: dict[str, Json] = validate_recipe(composition).model_dump(mode="json")
    return tree


def _judged(
    words: tuple[str, ...], folders: tuple[Path, ...]
) -> tuple[tuple[Finding, ...], set[str]]:
    """What the rules say, and the ids of errors among it."""
    try:
        return planned_launch(words, folders).findings, set()
    except RecipeError as error:
        return error.findings, {item.id for item in error.findings}
