"""`import`: a recipe from the scripts that people have."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_recipes.cli.arguments import Invocation
from ascend_recipes.cli.output import Output
from ascend_recipes.errors import ExitCode, Finding, RecipeError, Severity
from ascend_recipes.findings import finding, recipe_error
from ascend_recipes.words import split_override

if TYPE_CHECKING:
    from ascend_recipes.lint import ServeCommand
    from ascend_recipes.rendering.recipe_tree import ImportedRecipe

_AT_LINE = re.compile(r"(.+):(\d+)")
_KNOWN = ("hardware", "model", "runtime.version")


def run_import(invocation: Invocation, output: Output) -> ExitCode:
    """`import PATH[:LINE]…`: print the recipe, or write it where `--output` says."""
    if not invocation.arguments:
        raise recipe_error(
            "usage.import_paths",
            fix="ascend-run import run.sh hardware=a3 --output recipe/mine.yaml",
            exit_code=ExitCode.USAGE,
        )
    options = _options(invocation.words)
    commands = [item for word in invocation.arguments for item in _commands(word)]
    name = Path(invocation.output).stem if invocation.output else "imported"
    imported = _imported(commands, options, name)
    from ascend_recipes.rendering.recipe_file import recipe_text, write_beside

    text = recipe_text(imported)
    path = Path(invocation.output) if invocation.output else None
    if path is not None:
        write_beside(text, path)
    findings = tuple(_judge(imported, text, name, invocation.config_dirs))
    wrong = any(item.severity is Severity.ERROR for item in findings)
    code = ExitCode.FINDINGS if wrong else ExitCode.OK
    if output.json:
        output.document("import", code, _document(imported, findings, text, path))
        return code
    output.findings(findings)
    if path is None:
        output.text(text.rstrip("\n"))
    else:
        output.text(f"wrote {path}")
        output.note(f"next: {_next_step(path)}")
    return code


def _next_step(path: Path) -> str:
    """What plans the file that was written: recipes are found in folders of that name only."""
    found = path.parent.name == "recipe"
    above = path.parent.parent if found else path.parent
    plan = shlex.join(["ascend-run", "plan", "--config-dir", str(above), f"recipe={path.stem}"])
    folder = shlex.quote(str(above / "recipe"))
    moved = f"mkdir -p {folder} && mv {shlex.quote(str(path))} {folder}"
    return plan if found else f"{moved} && {plan}"


def _options(words: Sequence[str]) -> dict[str, str]:
    options = {key: str(value) for key, value in (split_override(word) for word in words)}
    unknown = sorted(set(options) - set(_KNOWN))
    if unknown:
        raise recipe_error(
            "usage.import_words", exit_code=ExitCode.USAGE, known=_KNOWN, word=unknown[0]
        )
    return options


def _commands(word: str) -> tuple[ServeCommand, ...]:
    """Commands of a file; of `PATH:LINE` the one that begins at the line or spans it."""
    from ascend_recipes.lint import find_commands

    at = _AT_LINE.fullmatch(word)
    path, line = (Path(at[1]), int(at[2])) if at and not Path(word).exists() else (Path(word), 0)
    if not path.exists():
        raise RecipeError((finding("lint.no_such_path", path=str(path)),), ExitCode.USAGE)
    found = tuple(find_commands(path))
    if line:
        before = [item for item in found if item.line <= line]
        found = tuple(before[-1:])
    if not found:
        raise RecipeError((finding("import.no_command", path=word),), ExitCode.USAGE)
    return found


def _imported(
    commands: Sequence[ServeCommand], options: dict[str, str], name: str
) -> ImportedRecipe:
    from ascend_recipes.rendering.importing import import_command
    from ascend_recipes.rendering.recipe_tree import recipe_tree

    version = options.get("runtime.version", "")
    read = [
        import_command(
            command.texts,
            {variable: word.text for variable, word in command.env.items()},
            version=version,
            model=options.get("model", ""),
        )
        for command in commands
    ]
    places = [f"{command.file}:{command.line}" for command in commands]
    return recipe_tree(
        read,
        name=name,
        hardware=options.get("hardware", "a3"),
        about=f"Imported from {places[0]}",
        sources=places,
        version=version or None,
    )


def _judge(
    imported: ImportedRecipe, text: str, name: str, config_dirs: Sequence[Path]
) -> Iterator[Finding]:
    """What import itself says, and validation and rules about the recipe, planned from its text.

    The file that they see is gone afterwards: a finding names the line of the text instead.
    """
    for item in _tried_findings(imported, text, name, config_dirs):
        if item.source is not None and item.source.origin.endswith(f"/{name}.yaml"):
            item = replace(item, source=replace(item.source, origin=f"{name}.yaml"))
        yield item


def _tried_findings(
    imported: ImportedRecipe, text: str, name: str, config_dirs: Sequence[Path]
) -> Iterator[Finding]:
    from ascend_recipes.offering import Offer, hold_fixes
    from ascend_recipes.trial import Bench

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recipe", f"{name}.yaml")
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        words, bench = (f"recipe={name}",), Bench((Path(folder), *config_dirs))
        judged = hold_fixes(bench, words, bench(words))
        offer = Offer(bench, words, (*imported.findings, *judged))
        yield from map(offer.hold, imported.findings)
        yield from judged


def _document(
    imported: ImportedRecipe, findings: Sequence[Finding], text: str, path: Path | None
) -> dict[str, object]:
    unmapped = [
        {"target": item.target, "value": item.value, "reason": item.reason}
        for item in imported.unmapped
    ]
    return {
        "recipe": imported.tree,
        "site": dict(imported.site),
        "assumed": dict(imported.assumed),
        "unmapped": unmapped,
        "findings": [item.to_json() for item in findings],
        "text": text,
        "path": str(path) if path else None,
    }
