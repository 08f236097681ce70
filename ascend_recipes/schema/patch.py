"""Rows of the patch plane: what we change in vLLM, what vllm-ascend changes, and the evidence."""

from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Field, model_validator

from ascend_recipes.schema.base import ImplementationPath, Json, Name, Spec

Target = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
"""`module:qualname` of a name in another package."""

Phase: TypeAlias = Literal["frontend", "core", "worker", "inspect"]
"""vLLM process that a patch is applied in."""

Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{12})?$")]


class LateSpec(Spec):
    """A schema that is compiled when first used: most plans read none of these rows."""

    model_config = ConfigDict(defer_build=True)


class PatchAction(StrEnum):
    """How a target is changed; prefer the first that is enough."""

    ADD_ENTRY = "add_entry"
    """Put one new key into a mapping, or one new item into a list or set."""
    WRAP = "wrap"
    """Call ours with the original as first argument."""
    REPLACE = "replace"
    """Put ours in the original's place."""
    SET_VALUE = "set_value"
    """Give a module or class variable another value."""


class Fingerprint(LateSpec):
    """What a definition looked like when somebody verified the patch against it."""

    signature: Digest = ""
    body: Digest


class PatchNeeds(LateSpec):
    """What a plan must have for the patch to be listed; every named list must match."""

    traits: tuple[Name, ...] = ()
    """Traits of model, drafter or cache; all of them."""
    backends: tuple[Name, ...] = ()
    """Attention or state backends; any of them."""
    hardware: tuple[Name, ...] = ()
    """Hardware rows; any of them."""
    drafters: tuple[Name, ...] = ()
    """Drafter kinds; any of them."""
    roles: tuple[Name, ...] = ()
    """Roles of the deployment; any of them."""

    @model_validator(mode="after")
    def _says_something(self) -> "PatchNeeds":
        if not any(self.model_dump().values()):
            raise ValueError("a patch that every plan needs does not exist: name what needs it")
        return self


class RemoveWhen(LateSpec):
    """When the patch must go; the check fails once it is so."""

    version_at_least: str | None = None
    """First version of the package that no longer needs it."""
    symbol_exists: Target | None = None
    """Definition whose existence makes it unnecessary."""

    @model_validator(mode="after")
    def _says_something(self) -> "RemoveWhen":
        if self.version_at_least is None and self.symbol_exists is None:
            raise ValueError("name a version or a symbol")
        return self


class PatchRow(LateSpec):
    """One change to another package, verified before it is made."""

    target: Target
    action: PatchAction
    implementation: ImplementationPath | None = None
    """Our function, class or value; none if `value` says it."""
    entry: str | None = None
    """Key that `add_entry` puts into a mapping."""
    value: Json = None
    """Plain value of `set_value` or `add_entry`."""
    phases: tuple[Phase, ...] = Field(min_length=1)
    before: tuple[str, ...] = ()
    """Modules that must not be imported yet, because they copy the target's name."""
    aliases: tuple[Target, ...] = ()
    """Other names of the same object that are changed with it."""
    versions: str
    """Versions of the package that the patch is for, for example `>=0.32,<0.33`."""
    fingerprints: dict[str, Fingerprint] = Field(min_length=1)
    """Version -> what the target looked like. `wrap` holds the signature, others the body too."""
    because: str = Field(min_length=1)
    """Symptom, then cause."""
    upstream: str = Field(min_length=1)
    """Link to the change upstream, or `none: ` and why it is ours alone."""
    remove_when: RemoveWhen
    test: str
    """Test that shows the symptom without the patch."""
    needs: PatchNeeds

    @model_validator(mode="after")
    def _is_whole(self) -> "PatchRow":
        plain = self.action in (PatchAction.SET_VALUE, PatchAction.ADD_ENTRY)
        if self.implementation is None and not (plain and "value" in self.model_fields_set):
            raise ValueError(f"{self.action} needs an implementation" + " or a value" * plain)
        if self.entry is not None and self.action is not PatchAction.ADD_ENTRY:
            raise ValueError("entry belongs to add_entry")
        return self

    @property
    def package(self) -> str:
        """Top-level package that is changed."""
        return self.target.partition(".")[0].partition(":")[0]


class PatchReceipt(LateSpec):
    """What a process did for one row."""

    key: Name
    target: str
    action: PatchAction
    phase: Phase
    before: str
    """Object that was there, as `module:qualname` or its value."""
    after: str
    fingerprint: Fingerprint
    """As seen in this process."""


class Upstream(StrEnum):
    """What the pinned vLLM offers where vllm-ascend patches."""

    HOOK = "hook"
    """An official extension point reaches the same effect."""
    FIXED = "fixed"
    """The cause is gone: repaired, or the code no longer exists."""
    UNAFFECTED = "unaffected"
    """The code is never reached on our platform, or is right for it as it stands."""
    OPEN = "open"
    """Neither."""


class Action(StrEnum):
    """What we do instead of the patch."""

    OPTION = "option"
    HOOK = "hook"
    LAYER = "layer"
    MODEL = "model"
    SHIM = "shim"
    """A substitute of the device runtime, entered as a context and counted apart."""
    NOTHING = "nothing"
    PATCH = "patch"
    NOT_YET = "not_yet"
    """The feature behind it is not built; nothing stands in its place."""


class PeerTarget(LateSpec):
    """One name that vllm-ascend assigns to."""

    target: Target
    """`module:qualname`, of vLLM, torch or another package."""
    adds: bool = False
    """Whether the name is new, so that its appearance upstream is the event, not its change."""
    indirect: bool = False
    """Bound through an alias or saved constructor; not among the 138 direct assignments."""
    reads_as: Target | None = None
    """Definition that the name stands for where reading the source cannot tell."""
    also_in: tuple[str, ...] = ()
    """Other patch modules that assign to it."""
    purpose: str = Field(min_length=1)
    upstream: Upstream
    seen: str = ""
    """Evidence in the pinned vLLM, `file:line word`; the line holds the word."""
    ours: Action
    how: str = Field(min_length=1)
    """What we do, or why nothing is needed."""
    recipes: str = "all"
    """Recipes that would otherwise need it: families, hardware or a feature; `none of ours`."""


class PeerPatchRow(LateSpec):
    """One patch module of vllm-ascend and the names that it assigns to."""

    file: str
    """Path below `vllm_ascend/patch`."""
    condition: str
    """When it acts."""
    targets: tuple[PeerTarget, ...] = Field(min_length=1)


class DefinitionFacts(LateSpec):
    """A definition as one version of vLLM has it."""

    kind: Literal["function", "class", "value", "external", "module"]
    home: str = ""
    """Where the target leads, `module:qualname`; empty if it is defined where it is named."""
    signature: Digest = ""
    body: Digest = ""
    parameters: str = ""
    """Parameter names of a function, `=` behind those with a default; of a class's own
    constructor for a class."""


class VersionRow(LateSpec):
    """Fingerprints of everything that we and vllm-ascend touch, for one version of vLLM."""

    version: str
    definitions: dict[Target, DefinitionFacts | None]
    """None where the version has no such definition."""
    uses: dict[Target, tuple[str, ...]] = Field(default_factory=dict)
    """Only for the pinned version: what of ours relies on a definition."""


class UpgradeNotesRow(LateSpec):
    """What a person found by reading the differences of a version; judgement, not measurement."""

    version: str
    against: str
    requires: tuple[str, ...] = ()
    """What else must be upgraded with it."""
    notes: dict[Target, str]
    """Definition that we rely on -> what to do about its change."""
