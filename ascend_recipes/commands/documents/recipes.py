"""Documents of the commands that look at recipes."""

from typing import Literal

from pydantic import Field

from ascend_recipes.commands.documents.base import Code, Document, FindingObject
from ascend_recipes.schema.base import Json, Spec
from ascend_recipes.schema.plan import LaunchPlan


class ReasonObject(Spec):
    """Why a value of the plan is what it is."""

    source: str
    because: str


class CommandObject(Spec):
    """One `vllm serve` process of a deployment under `runtime=vllm_ascend`."""

    role: str
    node: int
    instance: int
    rank: int | None
    port: int | None
    argv: tuple[str, ...]
    env: dict[str, str]
    reasons: dict[str, str]
    """Argument or variable -> why it is there."""


class AttemptObject(Spec):
    """What became of one set of override words."""

    findings: tuple[FindingObject, ...]
    recipe: str | None = None
    digest: str | None = None
    blockers: tuple[FindingObject, ...] | None = None
    """What stops a launch, though not a plan."""
    memory: dict[str, Json] | None = None
    """Forecast of one die of every role; docs/memory.md explains the fields."""
    plan: LaunchPlan | None = None
    reasons: dict[str, ReasonObject] | None = None
    """Dotted path in the plan -> reason."""
    commands: tuple[CommandObject, ...] | None = None


class PlanDocument(Document, AttemptObject):
    """`plan` of one recipe; a refused one has findings only."""

    command: Literal["plan"]


class CheckDocument(Document, AttemptObject):
    """`check` of one recipe."""

    command: Literal["check"]


class RunObject(AttemptObject):
    """One combination of a sweep."""

    overrides: tuple[str, ...]
    exit_code: Code


class SweepDocument(Document):
    """`plan -m` and `check -m`."""

    command: Literal["plan", "check"]
    runs: tuple[RunObject, ...]


class VerdictObject(Spec):
    """What checking one recipe said."""

    recipe: str
    digest: str
    """Digest of the plan; empty if the recipe is refused."""
    findings: tuple[FindingObject, ...]


class CheckAllDocument(Document):
    """`check --all`."""

    command: Literal["check"]
    recipes: tuple[VerdictObject, ...]


class RecipeObject(Spec):
    """A recipe that can be named."""

    name: str
    about: str
    model: str
    hardware: str
    path: str


class ListDocument(Document):
    """`list`."""

    command: Literal["list"]
    recipes: tuple[RecipeObject, ...]


class ShowDocument(Document):
    """`show`."""

    command: Literal["show"]
    name: str
    about: str
    facts: dict[str, str]
    sources: tuple[str, ...]
    exceptions: tuple[str, ...]
    commands: tuple[CommandObject, ...] | None = None


class ExplanationObject(Spec):
    """One value with its history."""

    key: str
    part: str
    """`plan` or `recipe`."""
    value: Json
    layers: tuple[str, ...]
    """Who set it, the last first."""
    because: str
    follows: tuple[str, ...]
    """Values of the plan that follow from it."""
    renders: tuple[str, ...]
    """Arguments of rendered commands that a recipe value gives."""
    processes: tuple[str, ...]
    """Processes whose command says it; empty for all."""


class ExplainDocument(Document):
    """`explain`."""

    command: Literal["explain"]
    recipe: str
    values: tuple[ExplanationObject, ...]


class DifferenceObject(Spec):
    """A value that two plans do not share; a side that lacks it is left out."""

    key: str
    left: Json = None
    right: Json = None


class DiffDocument(Document):
    """`diff`."""

    command: Literal["diff"]
    left: str
    right: str
    differences: tuple[DifferenceObject, ...]


class SchemaDocument(Document):
    """`schema`."""

    command: Literal["schema"]
    name: str
    names: tuple[str, ...]
    schema_: dict[str, Json] = Field(alias="schema")


class CompletionDocument(Document):
    """`completion SHELL`."""

    command: Literal["completion"]
    shell: str
    script: str


class WordsDocument(Document):
    """`completion words PREFIX`."""

    command: Literal["completion"]
    words: tuple[str, ...]


class InitDocument(Document):
    """`init`."""

    command: Literal["init"]
    text: str
    path: str | None
    """Where it was written; null if it was only printed."""
