"""What readers find: words with their places, and the commands that start vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ascend_recipes.errors import Finding
from ascend_recipes.lint.source import Place, SourceText


@dataclass(frozen=True)
class Hole:
    """A part of a word that only a run would know: a variable that nothing in the file sets."""

    start: int
    end: int
    name: str


@dataclass(frozen=True)
class Word:
    """One word of a command after quotes are removed and known variables are filled in.

    Unknown parts stand in `text` as they were written and are listed in `holes`.
    """

    text: str
    line: int
    source: SourceText = field(repr=False, compare=False)
    holes: tuple[Hole, ...] = ()

    def place(self, offset: int = 0) -> Place:
        """Where the character at `offset` stands in the file."""
        return self.source.place(offset)

    def tail(self, begin: int) -> Word:
        """The word without its first characters, such as the value in `--flag=value`."""
        holes = tuple(
            Hole(hole.start - begin, hole.end - begin, hole.name)
            for hole in self.holes
            if hole.start >= begin
        )
        source = self.source.slice(begin, len(self.text))
        return Word(source.text, source.place(0).line, source, holes)

    @property
    def is_known(self) -> bool:
        """Whether every part is known."""
        return not self.holes

    @property
    def is_open(self) -> bool:
        """Whether nothing but an unknown part stands here, which may be any number of words."""
        return len(self.holes) == 1 and (self.holes[0].start, self.holes[0].end) == (
            0,
            len(self.text),
        )


def unresolved_names(words: Iterable[Word]) -> tuple[str, ...]:
    """Names of the unknown parts, each once."""
    return tuple(dict.fromkeys(hole.name for word in words for hole in word.holes))


def plain_word(text: str, place: Place) -> Word:
    """A word whose text stands at one place as it is."""
    return Word(text, place.line, SourceText(text, [0], [place]))


@dataclass(frozen=True, kw_only=True)
class ServeCommand:
    """One command that starts a server.

    `argv` begins with `vllm serve` and the model, also where the file says
    `python -m vllm.entrypoints.openai.api_server --model MODEL`.
    """

    file: str
    line: int
    argv: tuple[Word, ...]
    env: Mapping[str, Word]
    """Variables that the file sets for the command, by name."""
    unresolved: tuple[str, ...] = ()
    """Variables in `argv` that nothing in the file sets."""
    heading: str = ""
    """Title of the tab or section that the command stands in, as far as the file has any."""
    findings: tuple[Finding, ...] = ()
    """What is wrong with the text itself, such as a quote that never ends."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The words as plain texts."""
        return tuple(word.text for word in self.argv)


@dataclass(frozen=True, kw_only=True)
class Export:
    """A variable that a file sets for later commands."""

    name: str
    value: Word


@dataclass(frozen=True)
class Reading:
    """What one file holds."""

    commands: tuple[ServeCommand, ...] = ()
    exports: tuple[Export, ...] = ()
    findings: tuple[Finding, ...] = ()
