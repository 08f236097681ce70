"""Texts that remember where in a file each of their characters stands."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A position in a file; lines and columns count from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class SourceText:
    """A piece of a file: the text, and the place of each run of characters that lie together.

    Fences of Markdown lose their indentation and scalars of YAML their line breaks, so the text
    that is read is not the text of the file. `starts` are offsets in `text`, ascending from 0;
    characters from `starts[i]` on lie side by side in the file from `places[i]` on.
    """

    text: str
    starts: Sequence[int]
    places: Sequence[Place]

    def place(self, offset: int) -> Place:
        """Where the character at `offset` stands."""
        index = max(bisect_right(self.starts, offset) - 1, 0)
        place = self.places[index]
        return Place(place.line, place.column + max(offset - self.starts[index], 0))

    def slice(self, begin: int, end: int) -> SourceText:
        """The same places for a part of the text."""
        first = max(bisect_right(self.starts, begin) - 1, 0)
        last = bisect_right(self.starts, end)
        starts = [0, *(start - begin for start in self.starts[first + 1 : last])]
        places = [self.place(begin), *self.places[first + 1 : last]]
        return SourceText(self.text[begin:end], starts, places)


def whole_text(text: str) -> SourceText:
    """A text that is a file."""
    return joined_lines((line, Place(number, 1)) for number, line in enumerate(_lines(text), 1))


def joined_lines(lines: Iterable[tuple[str, Place]]) -> SourceText:
    """A text made of lines, each with the place of its first character."""
    parts: list[str] = []
    starts: list[int] = []
    places: list[Place] = []
    offset = 0
    for line, place in lines:
        parts.append(line)
        starts.append(offset)
        places.append(place)
        offset += len(line)
    return SourceText("".join(parts), starts or [0], places or [Place(1, 1)])


def joined(pieces: Iterable[SourceText]) -> SourceText:
    """Several texts in a row, each with its places."""
    text: list[str] = []
    starts: list[int] = []
    places: list[Place] = []
    offset = 0
    for piece in pieces:
        text.append(piece.text)
        starts.extend(start + offset for start in piece.starts)
        places.extend(piece.places)
        offset += len(piece.text)
    return SourceText("".join(text), starts or [0], places or [Place(1, 1)])


def _lines(text: str) -> list[str]:
    # Not str.splitlines, which also breaks at form feeds and at U+2028, where editors do not.
    return [f"{line}\n" for line in text.split("\n")]
