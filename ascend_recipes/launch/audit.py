"""Compares what vLLM's processes report with the plan: the silent-downgrade alarm."""

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding, phrase
from ascend_recipes.receipts import Receipt, load_receipts

if TYPE_CHECKING:
    from ascend_recipes.registry.load import Registry
    from ascend_recipes.schema.plan import LaunchPlan

_PARALLEL_ARGUMENTS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
)


def world_size(plan: "LaunchPlan") -> int:
    """Workers of the deployment on this node."""
    sizes = (plan.engine.get(name) or 1 for name in _PARALLEL_ARGUMENTS)
    nodes = plan.engine.get("nnodes") or 1
    return math.prod(int(str(size)) for size in sizes) // int(str(nodes))


def await_receipts(plan: "LaunchPlan", folder: Path, *, seconds: float) -> tuple[Receipt, ...]:
    """Wait until the core and every rank have reported, or until the deadline has passed."""
    deadline = time.monotonic() + seconds
    while True:
        receipts = load_receipts(folder)
        if not list(missing_receipts(plan, receipts)) or time.monotonic() > deadline:
            return receipts
        time.sleep(0.1)


def missing_receipts(plan: "LaunchPlan", receipts: Sequence[Receipt]) -> Iterator[Finding]:
    """One error for each process that never reported what it runs."""
    if not any(receipt.phase == "core" for receipt in receipts):
        yield finding("receipt.missing", who=phrase("receipt.core"))
    ranks = {receipt.rank for receipt in receipts if receipt.effective is not None}
    for rank in range(world_size(plan)):
        if rank not in ranks:
            yield finding("receipt.missing", who=phrase("receipt.worker", rank=rank))


def audit_receipts(
    plan: "LaunchPlan", receipts: Sequence[Receipt], registry: "Registry"
) -> list[Finding]:
    """Errors for processes that are missing, foreign or run another plan; warnings for values."""
    findings = list(missing_receipts(plan, receipts))
    for receipt in receipts:
        findings.extend(_identity(plan, receipt, registry))
        findings.extend(_effective(plan, receipt, registry))
    return list(dict.fromkeys(findings))


def _identity(plan: "LaunchPlan", receipt: Receipt, registry: "Registry") -> Iterator[Finding]:
    who = phrase("receipt.process", phase=receipt.phase, pid=receipt.pid)
    if receipt.digest != plan.digest:
        yield finding("receipt.digest", who=who, found=receipt.digest, wanted=plan.digest)
    wanted = registry.hooks[plan.platform].implementation
    if receipt.platform != wanted:
        yield finding("receipt.platform", who=who, found=receipt.platform, wanted=wanted)
    if receipt.phase == "inspect":
        return
    for hook in sorted(set(plan.hooks) - set(receipt.hooks)):
        yield finding("receipt.hook", who=who, hook=hook)
    if receipt.bindings != plan.operations:
        yield finding("receipt.bindings", who=who, operations=_other(plan, receipt))


def _effective(plan: "LaunchPlan", receipt: Receipt, registry: "Registry") -> Iterator[Finding]:
    effective = receipt.effective
    if effective is None:
        return
    backends = (registry.backends[layer.backend].implementation for layer in plan.layers)
    wanted_backends = sorted({backend for backend in backends if backend})
    retention = effective.prefix_retention
    pairs: tuple[tuple[str, object, object], ...] = (
        ("effective.block_size", plan.cache.block_size, effective.block_size),
        ("effective.prefix_caching", plan.cache.prefix_caching, effective.prefix_caching),
        (
            "effective.prefix_retention",
            plan.engine.get("prefix_cache_retention_interval", retention),
            retention,
        ),
        ("effective.state_mode", plan.cache.state_mode, effective.state_cache_mode),
        ("effective.graph_mode", plan.graph.mode, effective.graph_mode),
        (
            "effective.capture_sizes",
            sorted(plan.graph.capture_sizes),
            sorted(effective.capture_sizes),
        ),
        ("effective.attention_backends", wanted_backends, sorted(effective.attention_backends)),
    )
    for name, planned, actual in pairs:
        if planned != actual:
            yield finding(name, actual=str(actual), planned=str(planned))


def _other(plan: "LaunchPlan", receipt: Receipt) -> list[str]:
    """Operations that the process bound to something else, or not at all."""
    names = sorted(set(plan.operations) | set(receipt.bindings))
    return [name for name in names if plan.operations.get(name) != receipt.bindings.get(name)]
