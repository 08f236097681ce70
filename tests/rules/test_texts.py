"""The text table: two languages that agree, and exactly the ids that code can emit."""

import ast
import re
import string
from collections.abc import Iterator

import pytest

from ascend_recipes.errors import Severity
from ascend_recipes.findings import chosen_language, finding
from ascend_recipes.paths import PACKAGE
from ascend_recipes.registry.load import load_registry

ROWS = load_registry().findings
TEXTS = {
    f"{family}.{name}": text for family in ROWS for name, text in ROWS[family].findings.items()
}
CONTROLS = {"at", "fix", "severity", "evidence", "source"}


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def ids_of(node: ast.expr, module: ast.Module) -> list[str]:
    """The id that is named, those of a choice, or every id that the module mentions."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    around = node if isinstance(node, ast.IfExp) else module
    named = [item.value for item in ast.walk(around) if isinstance(item, ast.Constant)]
    return [item for item in named if item in TEXTS] if around is module else choice(node)


def choice(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return choice(node.body) + choice(node.orelse)
    return [str(node.value)] if isinstance(node, ast.Constant) else []


def calls() -> Iterator[tuple[str, set[str], bool]]:
    """Id, keywords, and whether they are all, of every call of `finding`."""
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if "from ascend_recipes.findings import" not in source:
            continue
        module = ast.parse(source)
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "finding":
                names = {item.arg for item in node.keywords if item.arg} - CONTROLS
                ids, whole = ids_of(node.args[0], module), all(item.arg for item in node.keywords)
                exact = whole and isinstance(node.args[0], ast.Constant)
                assert ids, f"{path.name}:{node.lineno} names no id"
                yield from ((id, names, exact) for id in ids)


CALLS = list(calls())


@pytest.mark.parametrize("id", sorted(TEXTS))
def test_languages_agree(id):
    text = TEXTS[id]
    for part in (text.title, text.message, text.why):
        if part is not None:
            assert placeholders(part.en) == placeholders(part.zh)
            written = re.sub(r"\{.*?\}", "", part.en)
            chinese = any("\u4e00" <= letter <= "\u9fff" for letter in part.zh)
            assert chinese or not re.search(r"[A-Za-z]", written)
            assert not any("\u4e00" <= letter <= "\u9fff" for letter in part.en)


@pytest.mark.parametrize(("id", "given", "exact"), CALLS, ids=[item[0] for item in CALLS])
def test_code_gives_what_the_texts_name(id, given, exact):
    text = TEXTS[id]
    named = placeholders(text.message.en) | placeholders(text.why.en if text.why else "")
    if exact:
        assert given == named


def test_every_text_is_emitted_somewhere():
    mentioned = {
        node.value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
    }
    assert set(TEXTS) - mentioned == set()


NOT_YET = {
    "cli/commands.py",
    "cli/fixing.py",
    "cli/importing.py",
    "cli/inspecting.py",
    "commands/init.py",
    "launch/checkpoint.py",
    "launch/preflight.py",
    "memory/headers.py",
    "models/deepseek_v4/loading.py",
    "models/qwen3_5/tiny.py",
    "operations_table.py",
    "ops/table.py",
    "platform/ascend.py",
    "platform/selection.py",
    "quantization/modelslim.py",
    "surface/load.py",
    "tiny.py",
}
"""Modules whose own findings have English texts only, in the code."""


def test_families_of_the_table_are_emitted_through_it():
    """No literal `Finding(id=…)` or `recipe_error(…)` of a family that the table has."""
    strays = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if getattr(getattr(node, "func", None), "id", "") not in ("Finding", "recipe_error"):
                continue
            literals = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "id")]
            named = [str(item.value) for item in literals if isinstance(item, ast.Constant)]
            if any(id.partition(".")[0] in ROWS for id in named):
                strays.add(path.relative_to(PACKAGE).as_posix())
    assert strays <= NOT_YET


def test_a_finding_carries_both_languages_and_its_severity():
    made = finding("parallel.no_experts", at="parallel.ep", fix="parallel.ep=false", model="m")
    assert made.severity is Severity.ERROR
    assert "m is dense" in made.message
    assert "m" in made.message_zh
    assert made.to_json()["message_zh"] == made.message_zh


@pytest.mark.parametrize(
    ("value", "language"), [("zh", "zh"), ("zh_CN.UTF-8", "zh"), ("en", "en"), ("", "en")]
)
def test_language_is_chosen_by_the_environment(value, language):
    assert chosen_language({"ASCEND_RECIPES_LANG": value}) == language
