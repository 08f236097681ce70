"""Compares what vLLM's processes report with the plan: the silent-downgrade alarm."""

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_recipes.errors import Finding, Severity
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
        yield _missing("the engine core")
    ranks = {receipt.rank for receipt in receipts if receipt.effective is not None}
    for rank in range(world_size(plan)):
        if rank not in ranks:
            yield _missing(f"the worker of rank {rank}")


def audit_receipts(
    plan: "LaunchPlan", receipts: Sequence[Receipt], registry: "Registry"
) -> list[Finding]:
    """Errors for processes that are missing, foreign or run another plan; warnings for values."""
    findings = list(missing_receipts(plan, receipts))
    for receipt in receipts:
        findings.extend(_identity(plan, receipt, registry))
        findings.extend(_effective(plan, receipt, registry))
    return list(dict.fromkeys(findings))


def _missing(who: str) -> Finding:
    return Finding(
        id="receipt.missing",
        message=f"{who} did not report what it runs, so nobody knows whether the plan is in force",
        fix="see the log for errors of the plugin ascend_recipes",
    )


def _identity(plan: "LaunchPlan", receipt: Receipt, registry: "Registry") -> Iterator[Finding]:
    who = f"{receipt.phase} process {receipt.pid}"
    if receipt.digest != plan.digest:
        yield Finding(
            id="receipt.digest",
            message=f"{who} applied plan {receipt.digest}, not {plan.digest}",
            fix="start again; something else wrote into this run folder",
        )
    wanted = registry.hooks[plan.platform].implementation
    if receipt.platform != wanted:
        yield Finding(
            id="receipt.platform",
            message=f"{who} runs on {receipt.platform}, not on {wanted}",
            fix="VLLM_PLUGINS names the plugins that vLLM loads; let the plan set it",
        )
    if receipt.phase == "inspect":
        return
    for hook in sorted(set(plan.hooks) - set(receipt.hooks)):
        yield Finding(id="receipt.hook", message=f"{who} did not register {hook}")
    if receipt.bindings != plan.operations:
        yield Finding(id="receipt.bindings", message=f"{who} bound other operations than planned")


def _effective(plan: "LaunchPlan", receipt: Receipt, registry: "Registry") -> Iterator[Finding]:
    effective = receipt.effective
    if effective is None:
        return
    backends = (registry.backends[layer.backend].implementation for layer in plan.layers)
    wanted_backends = sorted({backend for backend in backends if backend})
    pairs: tuple[tuple[str, object, object], ...] = (
        ("block_size", plan.cache.block_size, effective.block_size),
        ("prefix_caching", plan.cache.prefix_caching, effective.prefix_caching),
        ("state_mode", plan.cache.state_mode, effective.state_cache_mode),
        ("graph_mode", plan.graph.mode, effective.graph_mode),
        ("capture_sizes", sorted(plan.graph.capture_sizes), sorted(effective.capture_sizes)),
        ("attention_backends", wanted_backends, sorted(effective.attention_backends)),
    )
    for name, planned, actual in pairs:
        if planned != actual:
            yield _differs(name, planned, actual)


def _differs(name: str, planned: object, actual: object) -> Finding:
    return Finding(
        id=f"effective.{name}",
        severity=Severity.WARNING,
        message=f"vLLM runs with {name} = {actual}, the plan says {planned}",
        fix="vLLM changed it; the log says why",
    )
