"""What a script's variables hold, as far as the script says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ascend_recipes.lint.command import Hole, Word
from ascend_recipes.lint.lexer import Part, PartKind, Token
from ascend_recipes.lint.source import Place, SourceText

Value = tuple[Word, ...] | None
"""Words of a variable (one, or an array's); none if only a run would know."""

_LONGEST_WORD = 50_000
"""Characters; variables that double themselves from line to line end here and are unknown."""
_MOST_HOLES = 100


@dataclass
class Variables:
    """Variables in the order of assignment, and which of them later commands inherit."""

    values: dict[str, Value] = field(default_factory=dict)
    exported: dict[str, Word] = field(default_factory=dict)

    def copy(self) -> Variables:
        """The same values for a script of its own, which changes nothing here."""
        return Variables(dict(self.values), dict(self.exported))

    def assign(self, name: str, value: Value, *, conditional: bool) -> None:
        """Set a variable; two branches that disagree leave it unknown."""
        if value is not None and any(_is_excessive(word) for word in value):
            value = None
        if conditional and name in self.values and not _agree(self.values[name], value):
            value = None
        self.values[name] = value
        if name in self.exported and value is not None:
            self.exported[name] = _joined(value)

    def export(self, name: str, unknown: Word) -> None:
        """Let later commands inherit a variable; `unknown` stands for it if nothing sets it."""
        value = self.values.get(name)
        self.exported[name] = unknown if value is None else _joined(value)

    def unset(self, name: str) -> None:
        """Forget a variable."""
        self.values.pop(name, None)
        self.exported.pop(name, None)


def _is_excessive(word: Word) -> bool:
    return len(word.text) > _LONGEST_WORD or len(word.holes) > _MOST_HOLES


def _agree(first: Value, second: Value) -> bool:
    texts = [None if value is None else [word.text for word in value] for value in (first, second)]
    return texts[0] == texts[1]


def _joined(words: tuple[Word, ...]) -> Word:
    builder = _Builder(split=False)
    for index, word in enumerate(words):
        if index:
            builder.add_text(" ", word.place())
        builder.add_word(word)
    joined = builder.finish()
    return joined[0] if joined else _empty(words[0].place() if words else Place(1, 1))


def _empty(place: Place) -> Word:
    return Word("", place.line, SourceText("", [0], [place]))


def expand(
    token: Token, source: SourceText, variables: Mapping[str, Value], *, split: bool = True
) -> list[Word]:
    """Words that a token becomes: none or many where variables hold none or many.

    Args:
        token: a word or an array of the lexer.
        source: the text that the lexer read.
        variables: what variables hold.
        split: whether unquoted values fall apart at blanks, as they do outside assignments.
    """
    return _expand_parts(token.parts, token.begin, source, variables, split=split)


def expand_tail(
    token: Token, begin: int, source: SourceText, variables: Mapping[str, Value]
) -> Word:
    """The word from offset `begin` on, such as the value in `NAME=value`, in one piece."""
    parts = []
    for part in token.parts:
        if part.begin >= begin or part.kind is not PartKind.TEXT:
            parts.append(part)
        elif part.begin + len(part.text) > begin:
            cut = begin - part.begin
            parts.append(Part(PartKind.TEXT, begin, part.text[cut:], part.quoted))
    return _expand_parts(parts, begin, source, variables, split=False)[0]


def _expand_parts(
    parts: list[Part] | tuple[Part, ...],
    begin: int,
    source: SourceText,
    variables: Mapping[str, Value],
    *,
    split: bool,
) -> list[Word]:
    builder = _Builder(split=split)
    for part in parts:
        builder.add_part(part, source, variables)
    words = builder.finish()
    return words or ([] if split else [_empty(source.place(begin))])


@dataclass
class _Builder:
    """Collects the characters of words, each run with its place."""

    split: bool
    words: list[Word] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    length: int = 0
    is_open: bool = False
    """Whether a word has begun, if only by quotes."""

    def add_part(self, part: Part, source: SourceText, variables: Mapping[str, Value]) -> None:
        if part.kind is PartKind.TEXT:
            self.is_open = self.is_open or part.quoted
            self._add_source(source, part.begin, part.text)
        elif part.kind is PartKind.UNKNOWN:
            self._add_hole(part.text, part.text, source.place(part.begin))
        else:
            self._add_variable(part, source, variables)

    def _add_variable(self, part: Part, source: SourceText, variables: Mapping[str, Value]) -> None:
        value = variables.get(part.text)
        if part.operation in (":-", "-", ":=", "=") and part.text not in variables:
            for inner in part.default:
                quoted = Part(**{**inner.__dict__, "quoted": inner.quoted or part.quoted})
                self.add_part(quoted, source, variables)
        elif value is None or part.operation == "?" or self.length > _LONGEST_WORD:
            self._add_hole(part.written, part.text, source.place(part.begin))
        elif part.operation == "[@]":
            self._add_array(value)
        else:
            self._add_value(value[:1], splits=self.split and not part.quoted)

    def _add_array(self, value: tuple[Word, ...]) -> None:
        for index, word in enumerate(value):
            if index:
                self._end() if self.split else self.add_text(" ", word.place())
            self.add_word(word)
            self.is_open = True

    def _add_value(self, value: tuple[Word, ...], *, splits: bool) -> None:
        for word in value:
            if not splits:
                self.is_open = True
                self.add_word(word)
                continue
            for begin, end, is_blank in _fields(word):
                if is_blank:
                    self._end()
                else:
                    self._add_slice(word, begin, end)

    def add_word(self, word: Word) -> None:
        self._add_slice(word, 0, len(word.text))

    def _add_slice(self, word: Word, begin: int, end: int) -> None:
        self.holes.extend(
            Hole(hole.start - begin + self.length, hole.end - begin + self.length, hole.name)
            for hole in word.holes
            if begin <= hole.start and hole.end <= end
        )
        self._add_source(word.source, begin, word.text[begin:end])

    def add_text(self, text: str, place: Place) -> None:
        if not text:
            return
        self.is_open = True
        self.starts.append(self.length)
        self.places.append(place)
        self.text.append(text)
        self.length += len(text)

    def _add_source(self, source: SourceText, begin: int, text: str) -> None:
        if not text:
            return
        self.is_open = True
        piece = source.slice(begin, begin + len(text))
        self.starts.extend(start + self.length for start in piece.starts)
        self.places.extend(piece.places)
        self.text.append(text)
        self.length += len(text)

    def _add_hole(self, written: str, name: str, place: Place) -> None:
        self.holes.append(Hole(self.length, self.length + len(written), name))
        self.add_text(written, place)

    def _end(self) -> None:
        if self.is_open:
            text = "".join(self.text)
            source = SourceText(text, self.starts or [0], self.places or [Place(1, 1)])
            self.words.append(Word(text, source.place(0).line, source, tuple(self.holes)))
        self.text, self.starts, self.places, self.holes = [], [], [], []
        self.length, self.is_open = 0, False

    def finish(self) -> list[Word]:
        self._end()
        return self.words


def _fields(word: Word) -> list[tuple[int, int, bool]]:
    """Runs of blanks and of other characters of a value; unknown parts hold together."""
    fields: list[tuple[int, int, bool]] = []
    holes = [(hole.start, hole.end) for hole in word.holes]
    begin = 0
    for at, sign in enumerate(word.text):
        is_blank = sign.isspace() and not any(start <= at < end for start, end in holes)
        if at == 0 or is_blank != fields[-1][2]:
            fields.append((at, at + 1, is_blank))
            begin = at
        else:
            fields[-1] = (begin, at + 1, is_blank)
    return fields
