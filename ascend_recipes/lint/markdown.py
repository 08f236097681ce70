"""Reads the code blocks of Markdown pages, those of MyST and of tabs among them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ascend_recipes.lint.command import Export, Reading, ServeCommand
from ascend_recipes.lint.shell import ShellReader
from ascend_recipes.lint.source import Place, SourceText, joined_lines
from ascend_recipes.lint.variables import Value, Variables

_FENCE = re.compile(r"([ \t>]*(?:[-*+]\s+|\d+[.)]\s+)?)(`{3,}|~{3,})[ \t]*(.*)")
_HEADING = re.compile(r"#{1,6}\s+(.*)")
_TAB = re.compile(r"""\s*(?:===[!+]?\s+["'](.*)["']|:{3,}\{tab-item\}\s*(.*))""")
_DIRECTIVE = re.compile(r"\{[\w:-]+\}\s*(\S*)")
_OPTION = re.compile(r"\s*:[\w-]+:")
_SHELLS = frozenset({"", "bash", "console", "sh", "shell", "shell-session", "text", "txt", "zsh"})
_MARKDOWN = frozenset({"md", "markdown", "myst"})
_YAML = frozenset({"yaml", "yml"})
_MATTERS = re.compile(r"vllm|server_cmd|\w=")
"""What a block must hold to set a variable or start a server."""
_NESTING_LIMIT = 4


@dataclass
class _Block:
    """One code block: its language, its lines with their places, and the title above it."""

    language: str
    heading: str
    lines: list[tuple[str, Place]] = field(default_factory=list)


def read_markdown(file: str, source: SourceText, depth: int = 0) -> Reading:
    """Everything that the code blocks of a page hold."""
    page = _Page(file)
    for block in _blocks(source):
        page.add(block, depth)
    return Reading(tuple(page.commands), tuple(page.exports), ())


@dataclass
class _Page:
    file: str
    values: dict[str, Value] = field(default_factory=dict)
    """Variables that the blocks so far agree on: a reader runs them one after the other."""
    commands: list[ServeCommand] = field(default_factory=list)
    exports: list[Export] = field(default_factory=list)

    def add(self, block: _Block, depth: int) -> None:
        """Read one block."""
        if not any(_MATTERS.search(line) for line, _ in block.lines):
            return
        source = joined_lines(block.lines)
        if block.language in _SHELLS:
            reading = self._shell(source, block)
        elif "vllm" not in source.text or depth >= _NESTING_LIMIT:
            return
        elif block.language in _MARKDOWN:
            reading = read_markdown(self.file, source, depth + 1)
        elif block.language in _YAML:
            from ascend_recipes.lint.manifests import read_yaml

            reading = read_yaml(self.file, source)
        else:
            return
        self.commands.extend(reading.commands)
        self.exports.extend(reading.exports)

    def _shell(self, source: SourceText, block: _Block) -> Reading:
        variables = Variables(dict(self.values))
        reader = ShellReader(self.file, source, variables, heading=block.heading)
        reading = reader.read()
        for name, value in variables.values.items():
            known = name not in self.values or _texts(self.values[name]) == _texts(value)
            self.values[name] = value if known else None
        return reading


def _texts(value: Value) -> list[str] | None:
    return None if value is None else [word.text for word in value]


def _blocks(source: SourceText) -> Iterator[_Block]:
    """Fenced blocks; a fence closes with as many signs, whatever its indentation."""
    heading, tab, offset = "", "", 0
    inside = 0
    block: _Block | None = None
    closing, indent = "", 0
    for line in source.text.split("\n"):
        if block is None:
            if line.strip() and _width(line) < inside:
                tab, inside = "", 0
            if fence := _FENCE.fullmatch(line):
                indent, closing = len(fence.group(1)), fence.group(2)
                block = _Block(_language(fence.group(3)), " / ".join(filter(None, (heading, tab))))
            elif title := _HEADING.match(line):
                heading, tab, inside = title.group(1).strip(), "", 0
            elif item := _TAB.match(line):
                tab = item.group(1) or item.group(2) or ""
                # What a tab of this spelling holds is indented; the other ends with its colons.
                inside = _width(line) + 1 if item.group(1) else 0
        elif line.lstrip(" \t>").startswith(closing) and not line.strip(f" \t>{closing[0]}"):
            yield block
            block = None
        elif block.lines or not _OPTION.match(line):
            cut = _indentation(line, indent)
            block.lines.append((f"{line[cut:]}\n", source.place(offset + cut)))
        offset += len(line) + 1
    if block is not None:
        yield block


def _width(line: str) -> int:
    """Blanks in front of a line."""
    return len(line) - len(line.lstrip(" \t"))


def _indentation(line: str, most: int) -> int:
    """Characters in front of a block's line that belong to the page around it."""
    blank = len(line) - len(line.lstrip(" \t>"))
    return min(blank, most)


def _language(info: str) -> str:
    """`bash` from `bash`, `bash title="x"`, and `{code-block} bash`."""
    if directive := _DIRECTIVE.match(info):
        return directive.group(1).lower() if "code" in info else "other"
    return info.split()[0].lower().strip("{}") if info.split() else ""
