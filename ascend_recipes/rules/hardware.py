"""Rules about what a generation of machines can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ascend_recipes.errors import Finding, Severity
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe, called_operations
from ascend_recipes.rules.cache import CACHE_OF_ATTENTION
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.options import removed, variable

if TYPE_CHECKING:
    from ascend_recipes.machine import InstalledVersions


def backend_exists(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Every layer kind of the model has a backend for this attention kind and hardware."""
    recipe = resolved.recipe
    if recipe.attention.kind not in resolved.model.attention_kinds:
        yield finding(
            "attention.kind_not_offered",
            at="attention.kind",
            fix=_other_attention(resolved),
            model=recipe.model,
            offered=resolved.model.attention_kinds,
            kind=recipe.attention.kind,
        )
        return
    for layer in resolved.model.layers:
        if layer.kind not in resolved.backends:
            yield _no_backend(resolved, layer.kind)


def _other_attention(resolved: ResolvedRecipe) -> str:
    """The model's own kind of attention, with the cache that it fills."""
    kind = resolved.model.attention_kinds[0]
    cache = CACHE_OF_ATTENTION[kind]
    return f"attention={kind}" + ("" if resolved.recipe.cache.kind == cache else f" cache={cache}")


def _no_backend(resolved: ResolvedRecipe, layer_kind: str) -> Finding:
    recipe = resolved.recipe
    legal = sorted(
        (attention, hardware)
        for row in resolved.registry.backends.values()
        if layer_kind in row.layer_kinds
        for attention in row.attention_kinds
        for hardware in row.hardware
    )
    same = [hardware for attention, hardware in legal if attention == recipe.attention.kind]
    return finding(
        "attention.no_backend",
        at="attention.kind",
        fix=f"hardware={same[0]}" if same else "",
        layers=layer_kind,
        kind=recipe.attention.kind,
        hardware=recipe.hardware,
        offered=[f"{attention}@{hardware}" for attention, hardware in legal] or "-",
    )


def offers_capabilities(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Backends and features ask the hardware for capabilities by name."""
    offered = resolved.hardware.capabilities
    needs = {
        capability: f"backend {key}"
        for key in resolved.backends.values()
        for capability in resolved.registry.backends[key].requires
    }
    if resolved.recipe.graph.kind != "none":
        needs["static_graphs"] = "graph"
    if resolved.recipe.moe.fused_communication and resolved.recipe.runtime.kind == "native":
        # vllm-ascend only leaves it out, which `moe.fused_mc2_hw` says.
        needs["fused_mc2"] = "moe.fused_communication"
    if resolved.recipe.moe.hierarchical_communication:
        needs["mc2_hierarchy"] = "moe.hierarchical_communication"
    if "prefill" in resolved.recipe.roles:
        needs["kv_transfer"] = "roles"
    for capability, asker in sorted(needs.items()):
        if capability not in offered:
            yield _lacks(resolved, capability, asker)


def _lacks(resolved: ResolvedRecipe, capability: str, asker: str) -> Finding:
    able = [
        key for key, row in resolved.registry.hardware.items() if capability in row.capabilities
    ]
    is_path = "." in asker or asker in ("graph", "roles")
    return finding(
        "hardware.lacks_capability",
        at=asker if is_path else "hardware",
        fix=_WITHOUT.get(asker, ""),
        asker=asker,
        capability=capability,
        hardware=resolved.recipe.hardware,
        able=able or "-",
    )


_WITHOUT = {
    "graph": "graph=none",
    "moe.fused_communication": "moe.fused_communication=false",
    "moe.hierarchical_communication": "moe.hierarchical_communication=false",
}
"""What to append where hardware lacks what was asked for."""


def computes_dtype(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The hardware computes the dtype; float32 is for emulation, and only where relaxed."""
    recipe = resolved.recipe
    dtype = recipe.checkpoint.dtype
    if dtype == "float32":
        relaxed = recipe.device.kind == "emulated" and "dtype.float32" in recipe.device.relaxed
        if not relaxed:
            yield _wrong_dtype(resolved)
    elif dtype not in resolved.hardware.dtypes:
        yield _wrong_dtype(resolved)


def _wrong_dtype(resolved: ResolvedRecipe) -> Finding:
    able = [name for name in ("bfloat16", "float16") if name in resolved.hardware.dtypes]
    return finding(
        "hardware.dtype",
        at="checkpoint.dtype",
        fix=f"checkpoint.dtype={able[0]}",
        hardware=resolved.recipe.hardware,
        dtype=resolved.recipe.checkpoint.dtype,
    )


def operations_are_bound(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Every operation that the plan calls has a binding."""
    recipe = resolved.recipe
    if recipe.runtime.kind != "native" or missing_backends(resolved):
        return
    called = called_operations(
        resolved.registry, resolved.backends, resolved.hooks, resolved.traits, resolved.checkpoint
    )
    for name in sorted(called - set(resolved.bindings)):
        bindings = resolved.registry.operations[name].bindings
        yield finding(
            "operation.no_binding",
            at="hardware",
            operation=name,
            hardware=recipe.hardware,
            able=sorted({item for binding in bindings for item in binding.hardware}) or "-",
        )
    if recipe.device.kind == "emulated":
        yield from reference_operations(resolved)


def reference_operations(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Heavy operations that only the plain PyTorch reference performs."""
    recipe = resolved.recipe
    slow = [
        name
        for name, binding in resolved.bindings.items()
        if resolved.registry.operations[name].heavy
        and binding.provider == "torch"
        and name not in recipe.allow_reference
    ]
    for name in slow:
        yield finding(
            "operation.reference",
            severity=Severity.ERROR if recipe.device.kind == "npu" else None,
            at="hardware",
            fix=f"allow_reference=[{','.join((*recipe.allow_reference, *slow))}]",
            operation=name,
        )


@holds("vllm_ascend")
def settings_are_of_the_generation(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Settings that other generations read are copied to 310P, where nothing answers to them."""
    if resolved.recipe.hardware != "310p":
        return
    for name in _NOT_ON_310P:
        found = variable(resolved, name)
        if found is not None and found.on:
            yield finding("hardware.variant", at=found.at, fix=removed(found.at), setting=name)
    if resolved.recipe.parallel.ep and "moe" in resolved.model.traits:
        yield finding("hardware.experts_310p", at="parallel.ep", fix="parallel.ep=false")


def chip_is_served(resolved: ResolvedRecipe, installed: InstalledVersions) -> Iterator[Finding]:
    """The chip that the driver reports is of a generation that anybody serves."""
    soc = (installed.soc or "").lower().removeprefix("ascend")
    rows = resolved.registry.hardware
    known = {name.removeprefix("ascend") for key in rows for name in rows[key].soc_names}
    if soc and not any(soc.startswith(name) for name in known):
        yield finding("hardware.unsupported", at="installed.soc", soc=soc, served=list(rows))


_NOT_ON_310P = (
    "HCCL_OP_EXPANSION_MODE",
    "VLLM_ASCEND_ENABLE_FLASHCOMM1",
    "VLLM_ASCEND_ENABLE_MLAPO",
    "VLLM_ASCEND_ENABLE_FUSED_MC2",
)


def missing_backends(resolved: ResolvedRecipe) -> list[str]:
    """Backends of the plan that only other runtimes have."""
    rows = resolved.registry.backends
    return [key for key in sorted(set(resolved.backends.values())) if not rows[key].implementation]
