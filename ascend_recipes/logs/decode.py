"""Reads a log once, from its beginning to its end, and sums what is known of its lines."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from ascend_recipes.errors import Severity
from ascend_recipes.logs.patterns import Known, Literal
from ascend_recipes.schema.log_message import LogMessage

_CHUNK = 1 << 22
_LONGEST_LINE = 1 << 20
"""Bytes after which a line without an end is taken as one."""
_EXCERPT = 240
"""Characters of a line that are shown."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EXCEPTIONS = (b"Error: ", b"Exception: ")
_ERROR_LINES = (b"[ERROR]", b" ERROR ")


@dataclass
class Match:
    """One message of a log: where it is first, and how often it comes."""

    known: Known
    first_line: int
    """Counted from 1."""
    excerpt: str
    count: int = 1

    @property
    def name(self) -> str:
        """Name of the message's row."""
        return self.known.name

    @property
    def message(self) -> LogMessage:
        """The message's row."""
        return self.known.message

    @property
    def is_cause(self) -> bool:
        """Whether it is an error that does not merely report another one."""
        return self.message.severity == "error" and not self.message.consequence


@dataclass(frozen=True)
class Unknown:
    """A line that says it is an error and is none of the known messages."""

    line: int
    excerpt: str
    is_exception: bool


@dataclass
class Decoded:
    """What a log says."""

    matches: tuple[Match, ...] = ()
    """The likely root first."""
    lines: int = 0
    size: int = 0
    """Bytes."""
    is_binary: bool = False
    unknown: Unknown | None = None
    """First exception, else first line of level error, that no message explains."""
    last_line: str = ""


def decode_log(stream: BinaryIO, terms: Mapping[bytes, tuple[Literal, ...]]) -> Decoded:
    """Look for known messages.

    Args:
        stream: the log; read in pieces, so that its size does not matter.
        terms: what to look for, as `search_terms` gives it.
    """
    reader = _Reader(terms)
    for chunk in _whole_lines(stream):
        if reader.size == 0 and b"\0" in chunk[:4096]:
            return Decoded(is_binary=True)
        reader.read(chunk)
    return Decoded(
        matches=tuple(sorted(reader.found.values(), key=_rank)),
        lines=reader.lines,
        size=reader.size,
        unknown=reader.unknown,
        last_line=reader.last_line,
    )


def _rank(match: Match) -> tuple[bool, int, int]:
    """Causes before what follows from them, errors before warnings, then as they came."""
    severity = list(Severity).index(Severity(match.message.severity))
    return match.message.consequence, severity, match.first_line


def _whole_lines(stream: BinaryIO) -> Iterator[bytes]:
    rest = b""
    while piece := stream.read(_CHUNK):
        piece = rest + piece
        end = piece.rfind(b"\n") + 1
        if end == 0 and len(piece) > _LONGEST_LINE:
            end = len(piece)
        rest = piece[end:]
        if end:
            yield piece[:end]
    if rest:
        yield rest


@dataclass
class _Reader:
    terms: Mapping[bytes, tuple[Literal, ...]]
    lines: int = 0
    size: int = 0
    found: dict[str, Match] = field(default_factory=dict)
    unknown: Unknown | None = None
    last_line: str = ""

    def read(self, chunk: bytes) -> None:
        """Look through lines that end in this chunk."""
        hits = self._hits(chunk)
        number, position = self.lines + 1, 0
        explained = set()
        for start in sorted(hits):
            number += chunk.count(b"\n", position, start)
            position = start
            if self._note(_line_at(chunk, start), hits[start], number):
                explained.add(start)
        self._note_unknown(chunk, explained)
        self.lines += chunk.count(b"\n") + (not chunk.endswith(b"\n"))
        self.size += len(chunk)
        self.last_line = _shown(chunk.rstrip()[-_EXCERPT * 4 :].rpartition(b"\n")[2])

    def _hits(self, chunk: bytes) -> dict[int, list[Literal]]:
        """Start of each line that holds an anchor, with the literals that it may hold."""
        hits: dict[int, list[Literal]] = {}
        for anchor, literals in self.terms.items():
            position = chunk.find(anchor)
            while position >= 0:
                hits.setdefault(chunk.rfind(b"\n", 0, position) + 1, []).extend(literals)
                end = chunk.find(b"\n", position)
                position = chunk.find(anchor, end) if end >= 0 else -1
        return hits

    def _note(self, line: bytes, literals: list[Literal], number: int) -> bool:
        """Whether a message explains the line."""
        named = {item.known.name: item.known for item in literals if item.is_in(line)}
        text = line.decode("utf-8", errors="replace") if named else ""
        meant = [known for known in named.values() if known.explains(text)]
        special = [known for known in meant if not known.message.general]
        for known in special or meant:
            if match := self.found.get(known.name):
                match.count += 1
            else:
                self.found[known.name] = Match(known, number, _shown(line))
        return bool(meant)

    def _note_unknown(self, chunk: bytes, explained: set[int]) -> None:
        if self.unknown is not None and self.unknown.is_exception:
            return
        raised = [start for text in _EXCEPTIONS for start in _first_line(chunk, text, explained)]
        if raised:
            self.unknown = self._unknown_at(chunk, min(raised), is_exception=True)
            return
        places = [place for text in _ERROR_LINES if (place := chunk.find(text)) >= 0]
        if places and self.unknown is None:
            start = chunk.rfind(b"\n", 0, min(places)) + 1
            self.unknown = self._unknown_at(chunk, start, is_exception=False)

    def _unknown_at(self, chunk: bytes, start: int, *, is_exception: bool) -> Unknown:
        number = self.lines + 1 + chunk.count(b"\n", 0, start)
        return Unknown(number, _shown(_line_at(chunk, start)), is_exception)


def _first_line(chunk: bytes, text: bytes, without: set[int]) -> Iterator[int]:
    """Start of the first line with a text that is not among some lines."""
    place = chunk.find(text)
    while place >= 0:
        start = chunk.rfind(b"\n", 0, place) + 1
        if start not in without:
            yield start
            return
        place = chunk.find(text, place + 1)


def _line_at(chunk: bytes, start: int) -> bytes:
    end = chunk.find(b"\n", start)
    return chunk[start:] if end < 0 else chunk[start:end]


def _shown(line: bytes) -> str:
    # A progress bar writes over itself; what is read on a terminal is its last state.
    written = line.rstrip().rpartition(b"\r")[2]
    text = _COLOUR.sub("", written.decode("utf-8", errors="replace")).strip()
    return text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 1]}…"
