"""Scalars of YAML as words and texts that know their places in the file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ascend_recipes.lint.command import Word
from ascend_recipes.lint.lexer import Kind, Part, PartKind, Token
from ascend_recipes.lint.source import Place, SourceText
from ascend_recipes.lint.variables import Value, expand_tail

_TOKEN = re.compile(r"\S+")
_TEMPLATE = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$\(([A-Za-z_]\w*)\)|\$([A-Za-z_]\w*)")
"""`${NAME}` and `$NAME` of CI templates and Compose, `$(NAME)` of Kubernetes."""
_PREFIX = 12
"""Characters by which a token is found again whose later ones may be escaped."""


@dataclass(frozen=True)
class Manifest:
    """A YAML text and where its scalars stand."""

    source: SourceText

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer("\n", self.source.text))]

    def offset(self, line: int, column: int) -> int:
        """Offset of a mark of PyYAML, whose lines and columns count from 0."""
        starts = self._line_starts
        return min(starts[min(line, len(starts) - 1)] + column, len(self.source.text))

    def place(self, node: Node) -> Place:
        """Where a node begins."""
        return self.source.place(self.offset(node.start_mark.line, node.start_mark.column))

    def text(self, node: ScalarNode) -> SourceText:
        """A scalar's value, each of its words where the file has it.

        Folding and escapes change the blanks and some signs, never the order of words.
        """
        raw = self.source.text
        at = self.offset(node.start_mark.line, node.start_mark.column)
        end = self.offset(node.end_mark.line, node.end_mark.column)
        starts, offsets = [0], [at]
        for token in _TOKEN.finditer(node.value):
            found = raw.find(token.group(), at, end)
            if found < 0:
                found = raw.find(token.group()[:_PREFIX], at, end)
            if found >= 0:
                at = found
                if token.start() == 0:
                    starts, offsets = [], []
                starts.append(token.start())
                offsets.append(found)
                at += 1
        return SourceText(node.value, starts, [self.source.place(offset) for offset in offsets])

    def word(self, node: ScalarNode, variables: Mapping[str, Value]) -> Word:
        """A scalar as one word, with the template's variables filled in."""
        source = self.text(node)
        parts: list[Part] = []
        begin = 0
        for found in _TEMPLATE.finditer(source.text):
            parts.append(Part(PartKind.TEXT, begin, source.text[begin : found.start()], True))
            name = next(name for name in found.groups() if name)
            part = Part(PartKind.VARIABLE, found.start(), name, quoted=True, written=found.group())
            parts.append(part)
            begin = found.end()
        parts.append(Part(PartKind.TEXT, begin, source.text[begin:], True))
        token = Token(Kind.WORD, 0, len(source.text), tuple(parts))
        return expand_tail(token, 0, source, variables)


def entries(node: Node | None, inside: tuple[Node, ...] = ()) -> dict[str, Node]:
    """Keys and values of a mapping, with `<<` merged; empty for anything else.

    Args:
        node: The mapping.
        inside: Mappings that are being merged already; one that merges itself adds nothing.
    """
    if not isinstance(node, MappingNode) or node in inside:
        return {}
    merged: dict[str, Node] = {}
    own: dict[str, Node] = {}
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            continue
        if key.value == "<<":
            parents = value.value if isinstance(value, SequenceNode) else [value]
            for parent in reversed(parents):
                merged.update(entries(parent, (*inside, node)))
        else:
            own[key.value] = value
    return {**merged, **own}


def scalars(node: Node | None) -> list[ScalarNode]:
    """Items of a list of scalars; empty for anything else."""
    if not isinstance(node, SequenceNode):
        return []
    items = [item for item in node.value if isinstance(item, ScalarNode)]
    return items if len(items) == len(node.value) else []


def texts(nodes: Sequence[ScalarNode]) -> list[str]:
    """Values of scalars."""
    return [node.value for node in nodes]
