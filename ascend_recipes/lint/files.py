"""From paths to readings: which files are read, and by which reader."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ascend_recipes.errors import ExitCode, Finding, RecipeError, Source
from ascend_recipes.findings import Phrase, finding, phrase
from ascend_recipes.lint.command import Reading, ServeCommand
from ascend_recipes.lint.source import Place, SourceText, joined_lines, whole_text

MARKDOWN = frozenset({".md", ".markdown", ".mdx"})
"""Suffixes of pages."""
_YAML = frozenset({".yaml", ".yml"})
_SHELL = frozenset({".sh", ".bash", ".zsh", ".env", ".sbatch", ".slurm"})
_SUFFIXES = MARKDOWN | _YAML | _SHELL
_SKIPPED = frozenset({".git", ".venv", "node_modules", "__pycache__"})
_LARGEST = 64 * 2**20
"""Bytes; nobody writes a larger script by hand."""
_LARGE = 2**20
"""Characters above which a script is read around its commands only: it is a log, or generated."""
_WINDOW = 500
_MOST_LINES = 20_000
_RELEVANT = re.compile(r"vllm\s+serve\b|vllm\.entrypoints|server_cmd|serve[\"']|-\s+serve\b")
_MENTIONED = re.compile(rb"vllm|server_cmd", re.IGNORECASE)
"""What every file with a server command holds; lists of the tests need not name vLLM."""
_BINARY = b"\0"


def find_commands(path: Path) -> list[ServeCommand]:
    """Every server command of one file.

    Raises:
        RecipeError: the file cannot be read (exit code 2).
    """
    return list(read_file(path).commands)


def collect_files(paths: Sequence[Path]) -> list[Path]:
    """Files that are named, and the scripts, pages and manifests in the folders that are named.

    Raises:
        RecipeError: a path that does not exist; all at once (exit code 2).
    """
    missing = [path for path in paths if not path.exists()]
    if missing:
        found = tuple(finding("lint.no_such_path", path=str(path)) for path in missing)
        raise RecipeError(found, ExitCode.USAGE)
    return list(dict.fromkeys(file for path in paths for file in _files(path)))


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(names):
            if (file := Path(folder, name)).suffix.lower() in _SUFFIXES:
                yield file


def read_files(paths: Iterable[Path]) -> Iterator[tuple[Path, Reading]]:
    """Read files one after the other; one that cannot be read gives a finding instead."""
    for path in paths:
        try:
            yield path, read_file(path)
        except RecipeError as error:
            yield path, Reading(findings=error.findings)


def read_file(path: Path) -> Reading:
    """Everything that one file holds.

    Raises:
        RecipeError: the file cannot be read (exit code 2).
    """
    shown = str(path)
    try:
        if not path.is_file():
            raise RecipeError((_unreadable(shown, phrase("lint.no_file")),), ExitCode.USAGE)
        if path.stat().st_size > _LARGEST:
            raise RecipeError((_unreadable(shown, phrase("lint.too_large")),), ExitCode.USAGE)
        content = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecipeError((_unreadable(shown, reason),), ExitCode.USAGE) from None
    if not _MENTIONED.search(content) or _BINARY in content[:8192]:
        return Reading()
    text = content.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    return read_text(shown, text, path.suffix.lower())


def read_text(file: str, text: str, suffix: str) -> Reading:
    """Read a text by the reader of its suffix; the shell's where the suffix says nothing."""
    if len(text) > _LARGE and not _RELEVANT.search(text):
        return Reading()
    if len(text) > _LARGE and suffix not in MARKDOWN | _YAML:
        source = _surroundings(text)
    else:
        source = whole_text(text)
    if suffix in MARKDOWN:
        from ascend_recipes.lint.markdown import read_markdown

        return read_markdown(file, source)
    if suffix in _YAML:
        from ascend_recipes.lint.manifests import read_yaml

        return read_yaml(file, source)
    from ascend_recipes.lint.shell import ShellReader

    return ShellReader(file, source).read()


def _surroundings(text: str) -> SourceText:
    """Of a very long script only the lines around its server commands."""
    lines = text.split("\n")
    wanted: set[int] = set()
    for number, line in enumerate(lines):
        if _RELEVANT.search(line) and len(wanted) < _MOST_LINES:
            wanted.update(range(max(number - _WINDOW, 0), min(number + _WINDOW, len(lines))))
    return joined_lines((f"{lines[number]}\n", Place(number + 1, 1)) for number in sorted(wanted))


def _unreadable(file: str, reason: str | Phrase) -> Finding:
    return finding("lint.unreadable", source=Source(origin=file), file=file, reason=reason)
