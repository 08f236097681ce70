"""`ascend-run doctor`: what this machine lacks, and what a log means."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rich.table import Table
from rich.text import Text

from ascend_recipes.cli.arguments import Invocation
from ascend_recipes.cli.output import Output
from ascend_recipes.cli.pipeline import composed, planned_launch
from ascend_recipes.cli.render import new_table, render_finding
from ascend_recipes.errors import ExitCode, Finding, RecipeError, Severity
from ascend_recipes.findings import Phrase, finding, phrase
from ascend_recipes.logs.advice import RecipeAtHand, log_findings
from ascend_recipes.logs.decode import Decoded, Match, decode_log
from ascend_recipes.logs.patterns import search_terms
from ascend_recipes.registry.load import load_registry

if TYPE_CHECKING:
    from ascend_recipes.compose import Composition
    from ascend_recipes.doctor.probe import Case, Check
    from ascend_recipes.schema.base import Json
    from ascend_recipes.schema.site import SiteSpec

_STDIN = "-"


def run_doctor(invocation: Invocation, output: Output) -> ExitCode:
    """`doctor`: the machine, with or without a recipe; with `--log` what a log says instead."""
    if invocation.log:
        return _run_log(invocation, output)
    return _run_machine(invocation, output)


# --- the machine --------------------------------------------------------------------------------
def _run_machine(invocation: Invocation, output: Output) -> ExitCode:
    from ascend_recipes.doctor.probe import examine
    from ascend_recipes.doctor.probes import PROBES

    case, refused = _case(invocation)
    checks = [*examine(case, PROBES), *refused]
    code = _machine_code(checks, strict=invocation.strict)
    if output.json:
        recipe = case.planned.plan.recipe if case.planned else ""
        body = {"recipe": recipe, "checks": [item.to_json() for item in checks]}
        output.document("doctor", code, body)
    else:
        output.show(_table(checks, output.language))
        output.findings([item for check in checks for item in check.findings], stderr=False)
    return code


def _case(invocation: Invocation) -> tuple[Case, tuple[Check, ...]]:
    """What is asked about; and a line for a recipe that the rules refuse."""
    from ascend_recipes.doctor.host import Host
    from ascend_recipes.doctor.probe import Case, Check, State

    words, folders = invocation.words, invocation.config_dirs
    case = Case(Host(), load_registry(folders), nodes=invocation.nodes)
    if not words:
        return case, ()
    if not any(word.startswith("recipe=") for word in words):
        return replace(case, named_site=_site(words, folders)), ()
    try:
        planned = planned_launch(words, folders)
        return replace(case, planned=planned, words=words, config_dirs=folders), ()
    except RecipeError as error:
        if error.exit_code is not ExitCode.FINDINGS:
            raise
        title = Phrase("recipe", "配方")
        return case, (Check("refused", title, State.ERROR, findings=error.findings),)


def _site(words: tuple[str, ...], folders: tuple[Path, ...]) -> SiteSpec:
    """The site of words without a recipe: the section is the same whichever recipe is asked."""
    from ascend_recipes.compose import recipe_names
    from ascend_recipes.validate import validate_recipe

    some = recipe_names(folders)[0].name
    return validate_recipe(composed((f"recipe={some}", *words), folders)).site


_WRONG = ("checkpoint.", "quant.")
_ABSENT = "checkpoint.missing"
"""As a launch has it: other weights than the recipe's are a mistake, no weights a lack."""


def _machine_code(checks: Sequence[Check], *, strict: bool) -> ExitCode:
    findings = [item for check in checks for item in check.findings]
    errors = [item for item in findings if item.severity is Severity.ERROR]
    refused = any(check.id == "refused" for check in checks)
    if refused or (errors and all(_is_mistake(item) for item in errors)):
        return ExitCode.FINDINGS
    doubtful = strict and any(item.severity is Severity.WARNING for item in findings)
    return ExitCode.ENVIRONMENT if errors or doubtful else ExitCode.OK


def _is_mistake(item: Finding) -> bool:
    return item.id.startswith(_WRONG) and item.id != _ABSENT


_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red", "not here": "dim"}


def _table(checks: Sequence[Check], language: str) -> Table:
    """One row a check; what to do is the remedy, or the name of the finding below."""
    heads = (phrase("doctor.check"), phrase("doctor.state"), phrase("doctor.value"))
    columns = (*heads, phrase("doctor.remedy"))
    states = {
        "ok": phrase("doctor.ok"),
        "warning": phrase("doctor.warning"),
        "error": phrase("doctor.error"),
        "not here": phrase("doctor.not_here"),
    }
    table = new_table(*(_told(text, language) for text in columns))
    for check in checks:
        state = check.state.value
        shown = _told(states[state], language)
        remedies = [_remedy(item, language) for item in check.findings]
        table.add_row(
            _told(check.title, language),
            Text(shown, _STYLES[state]),
            check.value,
            Text("\n".join(dict.fromkeys(remedies)), "green"),
        )
    return table


def _remedy(item: Finding, language: str) -> str:
    fix = item.fix_zh if language == "zh" and item.fix_zh else item.fix
    return fix or item.id


def _told(text: Phrase, language: str) -> str:
    return text.zh if language == "zh" else text.en


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
    matches = {f"log.{item.name}": item for item in decoded.matches}
    for item in findings:
        if item.id not in matches:
            yield render_finding(item, language)
            continue
        text = render_finding(replace(item, source=None), language)
        yield text.append(f"\n       {_seen(matches[item.id], language)}", style="dim")


def _seen(match: Match, language: str) -> str:
    told = phrase("log.seen", line=match.first_line, count=match.count, excerpt=match.excerpt)
    return _told(told, language)


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
