"""Receipts: what one vLLM process really registered, called and allocated.

A plan is a promise; a receipt is the proof. Every process writes one into the run folder, and
the launcher compares them with the plan. This module is light: no torch and no vLLM.
"""

import os
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field, ValidationError

from ascend_recipes.findings import recipe_error
from ascend_recipes.paths import display_path
from ascend_recipes.schema.base import Spec
from ascend_recipes.schema.complaints import complaint
from ascend_recipes.schema.patch import PatchReceipt

Phase: TypeAlias = Literal["frontend", "core", "worker", "inspect"]
"""Role of a vLLM process: API front-end, engine core, device worker, model inspection."""

RECEIPT_FOLDER = "receipts"
"""Name of the folder inside the run folder."""


class EffectiveValues(Spec):
    """What vLLM ended up with after its own defaults, caps and downgrades."""

    block_size: int
    """Tokens of one block of the KV cache manager."""
    kernel_block_sizes: tuple[int, ...] = ()
    """Tokens of one block as the attention kernels see it, per cache group."""
    num_blocks: int
    num_kv_tokens: int
    """Tokens of context that fit, by vLLM's own count over all cache groups."""
    cache_layout: str
    """vLLM's name of the physical order of layers, blocks, heads, tokens and content."""
    cache_groups: tuple[str, ...] = ()
    """One line a cache group: specification, layers, block size."""
    kv_dtype: str
    state_dtypes: tuple[str, ...] = ()
    """Types of the recurrent states, convolution first; empty without state layers."""
    state_cache_mode: str = "none"
    prefix_caching: bool = False
    prefix_retention: int | None = None
    """Tokens between ends of prefixes that windows and states keep; 0 for the last one only."""
    graph_mode: str
    capture_sizes: tuple[int, ...] = ()
    """Token counts of the captured decode graphs."""
    attention_backends: tuple[str, ...]
    """Classes as `module:Name`, sorted."""
    layer_classes: dict[str, int]
    """Class of every module that does arithmetic, as `module:Name`, with its count."""
    model_class: str
    runner_class: str
    communicator_class: str | None = None
    async_scheduling: bool = False
    max_num_batched_tokens: int
    quantization: str | None = None


class DraftCounts(Spec):
    """Drafts that the target judged in this process."""

    proposed: int
    accepted: tuple[int, ...]
    """How often the draft of each position was accepted, first position first."""

    def to_text(self) -> str:
        """For example `412 of 570 accepted (72 %), by position 170 132 110`."""
        total = sum(self.accepted)
        share = f" ({100 * total / self.proposed:.0f} %)" if self.proposed else ""
        positions = " ".join(map(str, self.accepted))
        several = f", by position {positions}" if len(self.accepted) > 1 else ""
        return f"{total} of {self.proposed} accepted{share}{several}"


class Receipt(Spec):
    """Record of one process, replaced as more becomes known."""

    pid: int
    phase: Phase
    rank: int | None = None
    """Rank of the worker that lives in this process, if one does."""
    digest: str
    """Digest of the plan that was applied."""
    platform: str
    """Class of vLLM's current platform as `module:Name`."""
    hooks: tuple[str, ...]
    """Registry keys that were registered, sorted."""
    patches: tuple[PatchReceipt, ...] = ()
    """Changes to other packages, each with the fingerprint of what was there."""
    bindings: dict[str, str] = Field(default_factory=dict)
    """Operation -> binding that was bound."""
    calls: dict[str, int] = Field(default_factory=dict)
    """Operation -> number of calls so far."""
    drafts: DraftCounts | None = None
    """Drafts so far; none without a drafter."""
    shims: tuple[str, ...] = ()
    """Names of other packages that the device runtime substitutes, for example
    `torch.cuda.Event`."""
    torchvision_schemas: bool = False
    """Whether operator schemas were defined so that torchvision without its extension imports."""
    emulated: bool = False
    """Whether CPU kernels stand in for the NPU operators."""
    relaxed: tuple[str, ...] = ()
    """Hardware limits that emulation does not enforce."""
    effective: EffectiveValues | None = None
    """Known once the KV cache of this process exists."""


def write_receipt(run_folder: Path, receipt: Receipt) -> Path:
    """Write the receipt beside its final name, then rename, so that no reader sees half a file."""
    folder = run_folder / RECEIPT_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{receipt.phase}-{receipt.pid}.json"
    unfinished = folder / f".{path.name}.{os.getpid()}"
    unfinished.write_text(receipt.model_dump_json(indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path)
    return path


def load_receipts(run_folder: Path) -> tuple[Receipt, ...]:
    """Read every receipt of a run, sorted by file name.

    Raises:
        RecipeError: a file is no receipt.
    """
    paths = sorted((run_folder / RECEIPT_FOLDER).glob("[!.]*.json"))
    return tuple(_load_receipt(path) for path in paths)


def _load_receipt(path: Path) -> Receipt:
    try:
        return Receipt.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "document"
        raise recipe_error(
            "receipt.invalid", path=display_path(path), where=where, said=complaint(first)
        ) from None
