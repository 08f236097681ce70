"""Documents of the commands that start vLLM and look after runs."""

from typing import Literal

from ascend_recipes.commands.documents.base import Document, FindingObject
from ascend_recipes.receipts import DraftCounts, EffectiveValues
from ascend_recipes.schema.base import Spec
from ascend_recipes.schema.patch import PatchReceipt


class OutputObject(Spec):
    """One prompt and its answer."""

    prompt: str
    prompt_token_ids: tuple[int, ...]
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None


class ReceiptObject(Spec):
    """What one process of vLLM registered, called and allocated."""

    pid: int
    phase: str
    rank: int | None
    digest: str
    platform: str
    patches: tuple[PatchReceipt, ...]
    calls: dict[str, int]
    drafts: DraftCounts | None
    torchvision_schemas: bool
    emulated: bool
    relaxed: tuple[str, ...]
    effective: EffectiveValues | None


class GenerateDocument(Document):
    """`generate`."""

    command: Literal["generate"]
    recipe: str
    digest: str
    run_folder: str
    stages: dict[str, float]
    """Seconds of each stage."""
    outputs: tuple[OutputObject, ...]
    receipts: tuple[ReceiptObject, ...]
    findings: tuple[FindingObject, ...]


class ServeDocument(Document):
    """`serve`, printed once the server answers."""

    command: Literal["serve"]
    url: str
    model: str
    run_folder: str
    vllm_command: str
    stages: dict[str, float]
    findings: tuple[FindingObject, ...]


class IdentityObject(Spec):
    """A process that can be told from a later one with the same pid."""

    pid: int
    started: int
    boot: str


class ProcessObject(Spec):
    """One process of a run."""

    name: str
    identity: IdentityObject
    log: str
    port: int | None
    alive: bool


class RunStateObject(Spec):
    """A run that left a state."""

    name: str
    folder: str
    condition: str
    schema_version: Literal[1]
    recipe: str
    digest: str
    status: str
    message: str
    launcher: IdentityObject
    url: str
    nodes: tuple[int, ...]
    processes: tuple[ProcessObject, ...]
    updated: float


class StatusDocument(Document):
    """`status`."""

    command: Literal["status"]
    runs: tuple[RunStateObject, ...]


class LogObject(Spec):
    """A log with its last lines."""

    path: str
    tail: tuple[str, ...]


class LogsDocument(Document):
    """`logs`."""

    command: Literal["logs"]
    run: str
    logs: dict[str, LogObject]


class StopDocument(Document):
    """`stop`."""

    command: Literal["stop"]
    run: str
    was_alive: bool
