"""Rows of `registry/log_messages/`: what a line of a log means, and what of a recipe to look at."""

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from ascend_recipes.schema.base import Name, Spec
from ascend_recipes.schema.rows import FactRow, LanguageText


class Remedy(Spec):
    """A change of a recipe that helps; exactly one of `set` and `times`."""

    at: str
    """Dotted recipe path, for example `env.HCCL_BUFFSIZE`."""
    set: str | None = None
    """Value to take, as one types it."""
    times: float | None = None
    """Factor for the recipe's own number: 2 doubles it, 0.5 halves it."""
    unset: float | None = None
    """Number that holds where the recipe states none."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.set is None) == (self.times is None):
            raise ValueError("a remedy is exactly one of `set` and `times`")
        if self.unset is not None and self.times is None:
            raise ValueError("`unset` goes with `times`")
        return self


class LogMessage(Spec):
    """One message, however it is worded over versions."""

    severity: Literal["error", "warn", "info"] = "error"
    literals: tuple[str, ...] = Field(min_length=1)
    """Texts of which a line holds at least one; as they stand, upper and lower case differ."""
    pattern: str | None = None
    """Regular expression that the line matches besides, where a literal alone says too little."""
    consequence: bool = False
    """Whether it only reports that something else went wrong before, here or on another rank."""
    general: bool = False
    """Whether it counts only on lines that no other message explains."""
    cause: LanguageText
    """What it means."""
    help: LanguageText
    """What to look at, and what helps, where no override does it alone."""
    fields: tuple[str, ...] = ()
    """Recipe paths that decide it."""
    rules: tuple[str, ...] = ()
    """Findings of rules that foresee it."""
    remedies: tuple[Remedy, ...] = ()
    """Changes to try, the mildest first; each helps on its own."""
    source: str
    """Where the text and its meaning are documented."""

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"no regular expression: {error}") from None
        return pattern

    @field_validator("literals")
    @classmethod
    def _check_literals(cls, literals: tuple[str, ...]) -> tuple[str, ...]:
        if any(len(text) < 5 or "\n" in text for text in literals):
            raise ValueError("a literal is a part of one line, of at least five characters")
        return literals


class LogMessagesRow(FactRow):
    """The messages of one component; names are unique over all files."""

    messages: dict[Name, LogMessage]
