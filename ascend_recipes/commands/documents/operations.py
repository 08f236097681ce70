"""Documents of `ops` and `patches`."""

from typing import Literal

from ascend_recipes.commands.documents.base import Document, FindingObject
from ascend_recipes.schema.base import Json, Spec


class StepCostObject(Spec):
    """Least work of one call in a step of the deployment."""

    tokens: int
    flops: float
    bytes: float


class OperationObject(Spec):
    """One operation on one generation."""

    operation: str
    hardware: str
    binding: str | None
    others: tuple[str, ...]
    heavy: bool
    decode: StepCostObject | None
    prefill: StepCostObject | None
    falls_back: bool
    loads: bool


class ProviderObject(Spec):
    """A provider of operators beside what is installed."""

    provider: str
    wanted: dict[str, str]
    installed: dict[str, str | None]
    differences: tuple[str, ...]


class OpsDocument(Document):
    """`ops`."""

    command: Literal["ops"]
    operations: tuple[OperationObject, ...]
    providers: tuple[ProviderObject, ...]
    blockers: tuple[FindingObject, ...]


class PatchLineObject(Spec):
    """One thing of ours that relies on vLLM."""

    kind: Literal["patch", "hook", "class", "import"]
    key: str
    target: str
    change: str
    overridden: int | None = None
    without_super: int | None = None


class PatchesCheckDocument(Document):
    """`patches check`."""

    command: Literal["patches check"]
    vllm: str
    pinned: str
    lines: tuple[PatchLineObject, ...]
    findings: tuple[FindingObject, ...]
    unrecorded: tuple[str, ...]


class PeerChangesDocument(Document):
    """`patches check --targets vllm-ascend`."""

    command: Literal["patches check"]
    old: str
    new: str
    targets: dict[str, str]


class PatchRowObject(Spec):
    """A patch or a hook."""

    kind: Literal["patch", "hook"]
    key: str
    target: str
    how: str
    because: str


class PatchesListDocument(Document):
    """`patches list`."""

    command: Literal["patches list"]
    rows: tuple[PatchRowObject, ...]


class PatchesShowDocument(Document):
    """`patches show`."""

    command: Literal["patches show"]
    row: dict[str, Json]
    versions: dict[str, str]


class PatchesDiffDocument(Document):
    """`patches diff`."""

    command: Literal["patches diff"]
    old: str
    new: str
    changes: dict[str, str]
