"""Every place in the package that takes a text from the table, found in its syntax tree."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ascend_recipes.paths import PACKAGE

FINDINGS = ("finding", "recipe_error", "Verdict")
PHRASES = ("phrase",)
_OF_A_VERDICT = {"id", "names"}
CONTROLS = frozenset({"at", "fix", "severity", "evidence", "source", "exit_code"})


@dataclass(frozen=True)
class Call:
    """One call that names a text."""

    file: str
    line: int
    function: str
    ids: tuple[str, ...]
    """Empty where the id is chosen at run time."""
    given: frozenset[str]
    """Values by name."""
    is_whole: bool
    """Whether the names of all values stand in the call."""
    has_fix: bool
    values: tuple[ast.expr, ...]

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def text_calls() -> Iterator[Call]:
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if path.name == "findings.py" or not any(name in source for name in (*FINDINGS, "phrase")):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and _takes_a_text(node):
                yield _call(node, path.relative_to(PACKAGE))


def _takes_a_text(node: ast.Call) -> bool:
    if name_of(node) == "Verdict":
        return any(item.arg == "id" for item in node.keywords)
    return name_of(node) in (*FINDINGS, *PHRASES)


def name_of(node: ast.Call) -> str:
    return str(getattr(node.func, "id", ""))


def strings_of(file: str) -> set[str]:
    """Every text constant of a module."""
    module = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    nodes = (node for node in ast.walk(module) if isinstance(node, ast.Constant))
    return {node.value for node in nodes if isinstance(node.value, str)}


def _call(node: ast.Call, path: Path) -> Call:
    keywords = {item.arg: item.value for item in node.keywords if item.arg}
    named = node.args[0] if node.args else keywords.get("id")
    is_verdict = name_of(node) == "Verdict"
    return Call(
        file=path.as_posix(),
        line=node.lineno,
        function=name_of(node),
        ids=tuple(choices(named)) if named else (),
        given=frozenset(keywords) - CONTROLS - (_OF_A_VERDICT if is_verdict else set()),
        is_whole=not is_verdict and all(item.arg for item in node.keywords),
        has_fix="fix" in keywords,
        values=tuple(value for name, value in keywords.items() if name not in ("at", "evidence")),
    )


def choices(node: ast.expr) -> list[str]:
    """The id that is written, or those of a choice; none for anything else."""
    if isinstance(node, ast.IfExp):
        return choices(node.body) + choices(node.orelse)
    return [str(node.value)] if isinstance(node, ast.Constant) else []
