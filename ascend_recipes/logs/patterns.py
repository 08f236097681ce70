"""Rows of `registry/log_messages` in the form in which bytes are searched."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ascend_recipes.registry.load import Table
from ascend_recipes.schema.log_message import LogMessage, LogMessagesRow

_NUMBER = re.compile(r"\d{5,6}")
_CODE = re.compile(r"[A-Z]{2,3}\d{4,5}")
_ANCHOR = 4
"""Characters of a code that are looked for first: codes of one family share them."""
_NO_PROCESS = r"(?<!pid=)(?<!PID:)(?<!PID: )"
_ERROR_WORD = r"code|ret|result|err|acl|status|fail|except|memcpy|reason"
_NEAR = r"[^\n]{0,24}?"
"""A number is an error code where a word of errors stands near it, and a token count elsewhere."""


@dataclass(frozen=True)
class Known:
    """A message by its name."""

    name: str
    message: LogMessage

    @cached_property
    def pattern(self) -> re.Pattern[str] | None:
        """What a line must match besides a literal."""
        text = self.message.pattern
        return None if text is None else re.compile(text)

    def explains(self, line: str) -> bool:
        """Whether a line that holds a literal is this message."""
        return self.pattern is None or self.pattern.search(line) is not None


@dataclass(frozen=True)
class Literal:
    """One literal of a message: what finds a line quickly, and what decides."""

    anchor: bytes
    text: bytes
    around: re.Pattern[bytes] | None
    """What must stand around the text; None where it speaks for itself."""
    known: Known

    def is_in(self, line: bytes) -> bool:
        """Whether a line holds the literal."""
        # The plain test first: a log may hold one code of a family on every line.
        return self.text in line and (self.around is None or self.around.search(line) is not None)


def known_messages(table: Table[LogMessagesRow]) -> Iterator[Known]:
    """Every message of every row."""
    for key in table:
        for name, message in table[key].messages.items():
            yield Known(name, message)


def search_terms(table: Table[LogMessagesRow]) -> Mapping[bytes, tuple[Literal, ...]]:
    """Literals by the bytes that are looked for."""
    terms: dict[bytes, list[Literal]] = {}
    for known in known_messages(table):
        for text in known.message.literals:
            literal = _literal(text, known)
            terms.setdefault(literal.anchor, []).append(literal)
    return {anchor: tuple(literals) for anchor, literals in terms.items()}


def _literal(text: str, known: Known) -> Literal:
    encoded = text.encode()
    word = r"(?<![A-Za-z0-9.])" + re.escape(text) + r"(?![A-Za-z0-9])"
    if _NUMBER.fullmatch(text):
        word = _NO_PROCESS + word
        near = f"(?i)(?:{_ERROR_WORD}){_NEAR}{word}|{word}{_NEAR}(?:{_ERROR_WORD})"
        return Literal(encoded[:_ANCHOR], encoded, re.compile(near.encode()), known)
    if _CODE.fullmatch(text):
        return Literal(encoded[:_ANCHOR], encoded, re.compile(word.encode()), known)
    return Literal(encoded, encoded, None, known)
