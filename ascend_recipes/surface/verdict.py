"""What is wrong with a name or its value, before anybody knows where it was written."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any, Literal, TypeAlias

from ascend_recipes.errors import Finding, Severity
from ascend_recipes.findings import finding


class Unset(Enum):
    """Marks a value that is not known."""

    TOKEN = 0


UNSET = Unset.TOKEN


VerdictId: TypeAlias = Literal[
    "cli.unknown_flag",
    "cli.dead_flag",
    "cli.later_flag",
    "cli.reset",
    "cli.deprecated_flag",
    "cli.wrong_type",
    "cli.wrong_value",
    "cli.duplicate_flag",
    "cli.same_flag_twice",
    "config.unknown_key",
    "config.dead_key",
    "config.renamed_key",
    "config.moved_key",
    "config.later_key",
    "config.wrong_type",
    "config.wrong_value",
    "env.unknown",
    "env.dead",
    "env.gone",
    "env.later",
    "env.deprecated",
]
"""Findings of these tables; texts in `registry/findings/`."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A finding without a place."""

    id: VerdictId
    values: Mapping[str, Any] = field(default_factory=dict)
    """What the text of the finding names."""
    names: tuple[str, ...] = ()
    """What to write instead; the value moves to the first."""
    severity: Severity | None = None
    evidence: str = ""

    def finding(self, *, at: str = "", fix: str = "") -> Finding:
        """The finding at a place, with a fix that can be typed there."""
        return finding(
            self.id,
            at=at,
            fix=fix,
            severity=self.severity,
            evidence=self.evidence,
            **self.values,
        )


def near(name: str, options: Iterable[str], *, cutoff: float = 0.75) -> tuple[str, ...]:
    """The one option that looks most like a name, if any does."""
    return tuple(get_close_matches(name, list(options), n=1, cutoff=cutoff))
