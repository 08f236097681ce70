"""Documents of the commands that change and read configurations."""

from typing import Literal

from pydantic import Field

from ascend_recipes.commands.documents.base import Document, FindingObject
from ascend_recipes.schema.base import Json, Spec


class StepObject(Spec):
    """One change that `fix` proposes."""

    change: str
    at: str
    before: Json
    after: Json
    cost: str
    returns: tuple[str, ...]
    """Findings that come back without it."""


class FixDocument(Document):
    """`fix`."""

    command: Literal["fix"]
    recipe: str
    digest: str
    found: tuple[FindingObject, ...]
    steps: tuple[StepObject, ...]
    words: tuple[str, ...]
    """Words of the acceptable command line."""
    trials: int
    path: str | None


class SwapObject(Spec):
    """One value that `transpose` changes."""

    at: str
    before: Json
    after: Json
    returns: tuple[str, ...]
    """Findings that come back without it; the hardware itself has none."""
    documented_by: str
    """Shipped recipe for the generation that says the same; empty if none does."""


class TransposeDocument(Document):
    """`transpose`."""

    command: Literal["transpose"]
    recipe: str
    source: str
    """Generation that the recipe is for."""
    target: str
    """Generation asked for."""
    digest: str
    donors: tuple[str, ...]
    """Shipped recipes of the same model for the generation, the most similar first."""
    changes: tuple[SwapObject, ...]
    lost: tuple[FindingObject, ...]
    """What the deployment gives up."""
    remaining: tuple[FindingObject, ...]
    """Warnings and obstacles that the recipe did not have."""
    words: tuple[str, ...]
    """Words of the resulting command line."""
    trials: int
    path: str | None


class UnmappedObject(Spec):
    """An argument that no field of a recipe holds."""

    target: str
    value: Json
    reason: str


class ImportDocument(Document):
    """`import`."""

    command: Literal["import"]
    recipe: dict[str, Json]
    site: dict[str, Json]
    assumed: dict[str, Json]
    unmapped: tuple[UnmappedObject, ...]
    findings: tuple[FindingObject, ...]
    text: str
    path: str | None


class ExportFileObject(Spec):
    """One file of an export."""

    name: str
    path: str | None
    """Where it was written; none where nothing was."""
    text: str


class ExportDocument(Document):
    """`export`."""

    command: Literal["export"]
    recipe: str
    digest: str
    target: Literal["shell", "compose", "k8s", "slurm", "argv"]
    image: str | None
    """Container image; none where nobody publishes one and the target needs none."""
    files: tuple[ExportFileObject, ...]
    findings: tuple[FindingObject, ...]


class LintedCommandObject(Spec):
    """One `vllm serve` command that lint found."""

    file: str
    line: int = Field(ge=1)
    model: str | None
    unresolved: tuple[str, ...]
    """Variables whose values are unknown."""
    rules: str
    """`asked`, or why the rules of recipes were not."""


class LintDocument(Document):
    """`lint`; `--format sarif` prints SARIF 2.1.0 instead."""

    command: Literal["lint"]
    runtime_version: str
    files: int = Field(ge=0)
    commands: tuple[LintedCommandObject, ...]
    findings: tuple[FindingObject, ...]


class MachineCheckObject(Spec):
    """One line of what `doctor` looked at."""

    id: str
    state: Literal["ok", "warning", "error", "not here"]
    value: str
    """What is there, for people; empty if nothing is."""
    findings: tuple[FindingObject, ...]


class DoctorDocument(Document):
    """`doctor`."""

    command: Literal["doctor"]
    recipe: str
    """Recipe that the machine was held against; empty without one."""
    checks: tuple[MachineCheckObject, ...]


class LogMatchObject(Spec):
    """One message that a log holds."""

    id: str
    first_line: int = Field(ge=1)
    count: int = Field(ge=1)
    consequence: bool
    """Whether it only reports that something else went wrong before."""
    excerpt: str
    """The first line, cut short."""


class DecodedLogDocument(Document):
    """`doctor --log`."""

    command: Literal["doctor"]
    log: str
    lines: int = Field(ge=0)
    bytes: int = Field(ge=0)
    matches: tuple[LogMatchObject, ...]
    """The likely root first."""
    findings: tuple[FindingObject, ...]
    """Causes and remedies, in the order of the matches."""
