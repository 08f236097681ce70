"""Cuts a module's text into top-level statements, so that only those asked for are parsed.

Parsing whole modules makes a check of one vLLM version take more than three seconds; most of that
time goes into definitions that nobody asked for.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_DEFINITION = re.compile(r"(?:async +def|def|class) +(\w+)")
_ASSIGNMENT = re.compile(r"(\w+) *(?::[^=]+)?=(?!=)")
_QUOTES = re.compile(r'"""|\'\'\'|#.*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')


@dataclass
class Chunk:
    """One top-level statement that is parsed when first asked for."""

    text: str
    line: int
    """Line (1-based) on which the text begins, decorators included."""

    @cached_property
    def defined_name(self) -> str:
        """Name that a definition or a plain assignment binds; empty for other statements."""
        head = next(line for line in self.text.splitlines() if not line.startswith(("@", " ", ")")))
        match = _DEFINITION.match(head) or _ASSIGNMENT.match(head)
        return match[1] if match else ""

    @cached_property
    def nodes(self) -> list[ast.stmt]:
        """The parsed statement.

        Raises:
            SyntaxError: the text was cut in the wrong place; parse the whole module instead.
        """
        # Empty lines in front give every node its line; walking the nodes would cost more.
        return ast.parse("\n" * (self.line - 1) + self.text).body


def split_module(text: str) -> Iterator[Chunk]:
    """Yield the top-level statements of a module in order."""
    start, lines = 1, list[str]()
    quote, decorated = "", False
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        begins = not quote and line[:1].isidentifier() and not _continues(line)
        begins = begins or (not quote and line.startswith("@"))
        if begins and not decorated:
            if lines:
                yield Chunk("".join(lines), start)
            start, lines = number, []
        if begins:
            decorated = line.startswith("@")
        if lines or begins:
            lines.append(line)
        quote = _open_quote(line, quote)
    if lines:
        yield Chunk("".join(lines), start)


def _continues(line: str) -> bool:
    return line.startswith(("else:", "elif ", "except:", "except ", "finally:"))


def _open_quote(line: str, quote: str) -> str:
    """Kind of triple quote that is open at the end of a line."""
    position = 0
    if quote:
        position = line.find(quote)
        if position < 0:
            return quote
        position += 3
    while match := _QUOTES.search(line, position):
        position = match.end()
        if match[0] in ('"""', "'''"):
            end = line.find(match[0], position)
            if end < 0:
                return match[0]
            position = end + 3
    return ""
