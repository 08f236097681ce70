"""Words of commands whose parts may be known to the machine alone."""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_SPECIAL = re.compile(r'([\\$`"])')
"""What a shell does not take literally between double quotes."""


@dataclass(frozen=True)
class Variable:
    """A value that the shell on the machine has: a variable, or an element of an array."""

    name: str

    def __str__(self) -> str:
        return f"${{{self.name}}}"


@dataclass(frozen=True)
class Word:
    """One word of a command, or the value of a variable."""

    parts: tuple[str | Variable, ...]

    @classmethod
    def of(cls, *parts: str | Variable) -> Self:
        """A word from literal texts and variables."""
        return cls(parts)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Its unknown parts, in order."""
        return tuple(part for part in self.parts if isinstance(part, Variable))

    @property
    def text(self) -> str:
        """As people read it; unknown parts stand as `${NAME}`."""
        return "".join(map(str, self.parts))

    def __str__(self) -> str:
        return self.text

    def in_shell(self) -> str:
        """Quoted for bash."""
        if not self.variables:
            return shlex.quote(self.text)
        inner = (
            str(part) if isinstance(part, Variable) else _SPECIAL.sub(r"\\\1", part)
            for part in self.parts
        )
        return f'"{"".join(inner)}"'

    def in_compose(self) -> str:
        """For a Compose file, where only its own variables begin with a dollar sign."""
        parts = (
            str(part) if isinstance(part, Variable) else part.replace("$", "$$")
            for part in self.parts
        )
        return "".join(parts)

    def joined(self, before: str, after: str) -> "Word":
        """The word between two texts."""
        return Word((before, *self.parts, after))


def variables_of(words: Iterable[Word]) -> tuple[str, ...]:
    """Names of the unknown parts, each once, in order."""
    found = (part.name for word in words for part in word.variables)
    return tuple(dict.fromkeys(found))
