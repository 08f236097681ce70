"""Files and functions stay small enough to be read at once."""

import ast
from pathlib import Path

import pytest

from tests.boundaries.source_tree import PACKAGE, ROOT, python_files

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
SHOWN = 8


def function_sizes(path: Path) -> list[tuple[int, str]]:
    """Lines and `file:line name` of every function, decorators and docstring left out."""
    sizes = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            lines = (node.end_lineno or node.lineno) - first.lineno + 1
            sizes.append((lines, f"{path}:{node.lineno} {node.name}"))
    return sizes


def file_sizes(paths: list[Path]) -> list[tuple[int, str]]:
    return [(len(path.read_text(encoding="utf-8").splitlines()), str(path)) for path in paths]


def size_table(sizes: list[tuple[int, str]]) -> str:
    largest = sorted(sizes, reverse=True)[:SHOWN]
    return "\n".join(f"{lines:6}  {name.removeprefix(f'{ROOT}/')}" for lines, name in largest)


SOURCES = [*python_files(), *python_files(ROOT / "tests"), *python_files(ROOT / "benchmarks")]


def test_files_are_short():
    sizes = file_sizes(SOURCES)
    print(f"\nlargest files (limit {MAX_FILE_LINES}):\n{size_table(sizes)}")
    print(f"{sum(lines for lines, name in sizes if name.startswith(str(PACKAGE)))} lines in all")
    assert [name for lines, name in sizes if lines > MAX_FILE_LINES] == []


def test_functions_are_short():
    sizes = [size for path in SOURCES for size in function_sizes(path)]
    print(f"\nlongest functions (limit {MAX_FUNCTION_LINES}):\n{size_table(sizes)}")
    assert [name for lines, name in sizes if lines > MAX_FUNCTION_LINES] == []


@pytest.mark.parametrize(("lines", "too_long"), [(MAX_FUNCTION_LINES, False), (61, True)])
def test_the_check_can_fail(tmp_path, lines, too_long):
    path = tmp_path / "long.py"
    path.write_text('def f():\n    """Docstring."""\n' + "    x = 1\n" * lines)
    assert (function_sizes(path)[0][0] > MAX_FUNCTION_LINES) is too_long
