"""Documented commands as facts, and the reasons for which a rendering differs from them."""

from pydantic import Field

from ascend_recipes.schema.base import Count, Json, Name, Spec
from ascend_recipes.schema.serving import RoleName


class DocumentedCommand(Spec):
    """One command of a document: what it says for one role of a deployment."""

    deployment: Name
    """Id of the row in `registry/deployments`."""
    role: RoleName
    version: str
    """Version of vllm-ascend that the document is about."""
    file: str
    """Path in the repository of vllm-ascend."""
    commit: str
    line: Count
    """Where the command begins."""
    arguments: dict[str, Json]
    """Flags, keys of JSON flags (`--additional-config.refresh`) and variables (`$OMP_NUM_THREADS`)
    as they are written; without those that `notes.yaml` calls the site's."""


class ArgumentPattern(Spec):
    """Differences of one argument; without a value the argument is absent on that side."""

    name: str
    """The argument, or its beginning with `*` behind."""
    documented: Json = None
    """Value in the document; `*` stands for any."""
    ours: Json = None
    """Value that we render; `*` stands for any."""


class DifferenceReason(Spec):
    """Why a rendering differs from documented commands."""

    id: Name
    because: str
    """One sentence."""
    source: str
    """Public source that shows it."""
    arguments: tuple[ArgumentPattern, ...]
    deployments: tuple[Name, ...] = ()
    """Deployments that it holds for; all if empty."""


class RuntimeDefault(Spec):
    """What the runtime does where nothing is said, so that saying it changes nothing."""

    value: Json
    source: str


class DocumentedNotes(Spec):
    """What is known about all documented commands; `registry/documented/notes.yaml`."""

    site: tuple[str, ...]
    """Arguments whose values belong to one machine or site, and variables of the scripts' own."""
    defaults: dict[str, RuntimeDefault] = Field(default_factory=dict)
    """By flag; keys of `--additional-config` have theirs in `registry/surface`."""
    reasons: tuple[DifferenceReason, ...]
    without_command: dict[Name, str]
    """Deployments without a command of their own -> what the document has instead."""
