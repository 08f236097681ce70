"""Findings, the error family and the exit codes of the command line.

A *finding* is one thing that is wrong (or worth a look) in what the user asked for. Stages
collect findings and raise them together in one `RecipeError`, so that a user never has to fix
mistakes one at a time. Broken invariants of our own code use `assert` and are not findings.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class ExitCode(IntEnum):
    """Process exit status of `ascend-run`."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    FINDINGS = 3
    ENVIRONMENT = 4
    LAUNCH = 5
    INTERRUPTED = 130


class Severity(StrEnum):
    """How much a finding weighs: an error stops the launch, a warning does not."""

    ERROR = "error"
    WARNING = "warn"
    INFO = "info"


COMMAND_LINE = "command line"
"""Origin of what was typed."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a value was set: a file and line, the command line, or a default of the schema."""

    origin: str
    line: int | None = None

    def __str__(self) -> str:
        return self.origin if self.line is None else f"{self.origin}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem with its place, reason and remedy."""

    id: str
    """Stable identifier `family.name`, for example `parallel.heads_not_divisible`."""
    message: str
    """What is wrong, in English."""
    severity: Severity = Severity.ERROR
    at: str = ""
    """Dotted recipe path, for example `parallel.tensor`."""
    source: Source | None = None
    fix: str = ""
    """What to type instead."""
    evidence: str = ""
    """Source line, issue or measurement that supports the finding."""
    why: str = ""
    """What would happen, and what else helps, in English."""
    message_zh: str = ""
    """The message in Chinese; empty where nobody has written it."""
    why_zh: str = ""
    fix_zh: str = ""
    """The remedy in Chinese; empty where it is something to type, which has no language."""

    def to_json(self) -> dict[str, str]:
        """Render the finding as the flat object that `--json` prints."""
        record = {"id": self.id, "severity": self.severity.value, "message": self.message}
        optional = {
            "at": self.at,
            "source": str(self.source) if self.source else "",
            "fix": self.fix,
            "evidence": self.evidence,
            "why": self.why,
            "message_zh": self.message_zh,
            "why_zh": self.why_zh,
            "fix_zh": self.fix_zh,
        }
        return record | {key: value for key, value in optional.items() if value}


@dataclass(eq=False)
class RecipeError(Exception):
    """A mistake of the user's, with every finding of the stage that noticed it."""

    findings: tuple[Finding, ...]
    exit_code: ExitCode = field(default=ExitCode.FINDINGS)
    complete: bool = False
    """Whether the rules were asked; an earlier stage hides what they would find."""

    def __str__(self) -> str:
        return "\n".join(f"{item.id}: {item.message}" for item in self.findings)

    def __reduce__(self) -> tuple[type, tuple[tuple[Finding, ...], ExitCode, bool]]:
        return type(self), (self.findings, self.exit_code, self.complete)
