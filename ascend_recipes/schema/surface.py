"""Rows of the surface tables: what a release of vLLM or vllm-ascend takes from its user."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from ascend_recipes.schema.base import Json
from ascend_recipes.schema.patch import LateSpec

ValueKind: TypeAlias = Literal[
    "switch",
    "store_true",
    "bool",
    "int",
    "float",
    "text",
    "optional_text",
    "list",
    "json",
    "json_or_text",
    "any",
]
"""Form of a value: `switch` is `--x` and `--no-x`, `store_true` is `--x` alone, `bool` a value of a
key, `json` an object, `any` what the sources do not tell."""

Release = Annotated[str, Field(pattern=r"^[0-9a-z][0-9a-z.\-]*$")]
"""Name of a release: `0.23.0`, `0.26.0rc1`, or a state of the main branch, `main-2026-08`."""


class SurfaceRow(LateSpec):
    """One name in a range of releases."""

    name: str
    """What the user types: a flag, a dotted key, a variable, an architecture."""
    since: Release
    """First recorded release that has it."""
    until: Release | None = None
    """Last recorded release that has it; none where the newest has it too."""
    source: str
    """File and line in the newest release of the range."""


class FlagRow(SurfaceRow):
    """A flag of `vllm serve`, or a field of one that takes JSON: `--compilation-config.mode`."""

    kind: ValueKind
    aliases: tuple[str, ...] = ()
    """Other spellings: `-tp`."""
    choices: tuple[Json, ...] | None = None
    """Every legal value; none where any value of the kind is taken."""
    nullable: bool = False
    """Whether `None` is a value."""
    field: str = ""
    """Configuration class and field behind the flag: `ParallelConfig.enable_dbo`."""
    deprecated: bool = False
    """Whether the release itself calls the flag deprecated."""


class KeyRow(SurfaceRow):
    """A key of vllm-ascend's `--additional-config`."""

    kind: ValueKind
    default: Json = None
    """Value where the key is absent, as far as the sources tell."""
    choices: tuple[Json, ...] | None = None
    """Every legal value; none where there is no closed list."""
    closed: bool = False
    """Of a block: an unknown key inside stops the server; elsewhere it is ignored in silence."""
    variable: str = ""
    """Environment variable that is read where the key is absent."""
    effect: Literal["", "ignored", "refused"] = ""
    """Of a removed key whose presence is still noticed: a warning, or the end of the server."""


class VariableRow(SurfaceRow):
    """An environment variable."""

    reader: Literal["vllm", "vllm_ascend"]
    """Whose sources read it."""
    kind: ValueKind = "any"
    registered: bool = False
    """Whether it stands in the reader's own table of variables; else it is read somewhere."""


class ArchitectureRow(SurfaceRow):
    """A model architecture, as `config.json` names it."""

    registrar: Literal["vllm", "vllm_ascend"]
    """Whose table registers it."""


class ResetRow(SurfaceRow):
    """A field of vLLM's configuration that vllm-ascend overwrites, whatever the user says."""

    value: Json = None
    """What it is set to."""


class ExternalVariable(LateSpec):
    """A variable that CANN, HCCL, torch_npu or the system reads, not vLLM."""

    purpose: str
    """What it does, in a few words."""
    source: str
    """Where that is documented."""


class NameNote(LateSpec):
    """What the sources of a release cannot tell about a name: where it went, and why."""

    moved_to: tuple[str, ...] = ()
    """Names that took its place; a fix is typed with the first."""
    since: Release | None = None
    """First release that the note holds for; none holds for all."""
    effect: Literal["removed", "ignored", "deprecated", "converted"] = "removed"
    """What happens to a value that is given all the same."""
    text: str = ""
    """Reason in one sentence."""
    source: str
    """Public source of the note."""


class SurfaceNotes(LateSpec):
    """The hand-written part; `registry/surface/notes.yaml`."""

    flags: dict[str, NameNote] = Field(default_factory=dict)
    """By flag."""
    keys: dict[str, NameNote] = Field(default_factory=dict)
    """By dotted key of `--additional-config`."""
    variables: dict[str, NameNote] = Field(default_factory=dict)
    """By variable."""
    external: dict[str, ExternalVariable] = Field(default_factory=dict)
    """Variables of the software below."""
    models: dict[str, NameNote] = Field(default_factory=dict)
    """By row in `registry/models`: first release of vllm-ascend that serves the model."""
