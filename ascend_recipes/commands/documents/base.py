"""What the documents of all commands share."""

from typing import Literal, TypeAlias

from pydantic import Field

from ascend_recipes.schema.base import Spec

Code: TypeAlias = Literal[0, 1, 2, 3, 4, 5, 130]
"""Exit code of the process."""


class FindingObject(Spec):
    """One thing that is wrong, or worth a look."""

    id: str = Field(pattern=r"^[a-z_]+\.[a-z0-9_]+$")
    """Stable identifier; docs/errors.md has a text for each."""
    severity: Literal["error", "warn", "info"]
    message: str
    message_zh: str | None = None
    at: str | None = None
    """Dotted path in the recipe."""
    source: str | None = None
    """Where the value was set, as `file:line`, `command line` or `default`."""
    file: str | None = None
    """File that lint read."""
    line: int | None = Field(default=None, ge=1)
    """Line in that file."""
    fix: str | None = None
    """What to type instead."""
    why: str | None = None
    why_zh: str | None = None
    fix_zh: str | None = None
    evidence: str | None = None
    """Source that supports the finding."""


class Document(Spec):
    """What all documents share."""

    command: str
    """The command that printed it; empty if the command line could not be read."""
    ok: bool
    """Whether the exit code is 0."""
    exit_code: Code


class StoppedDocument(Document):
    """A command that ended early: only the findings that stopped it."""

    ok: Literal[False]
    findings: tuple[FindingObject, ...] = Field(min_length=1)
