"""Rules about what a generation of machines can do."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding, Severity
from ascend_recipes.resolve import ResolvedRecipe


def backend_exists(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Every layer kind of the model has a backend for this attention kind and hardware."""
    recipe = resolved.recipe
    if recipe.attention.kind not in resolved.model.attention_kinds:
        kinds = ", ".join(resolved.model.attention_kinds)
        yield Finding(
            id="attention.kind_not_offered",
            message=f"{recipe.model} is served by attention {kinds}, not {recipe.attention.kind}",
            at="attention.kind",
            fix=f"attention={resolved.model.attention_kinds[0]}",
        )
        return
    for layer in resolved.model.layers:
        if layer.kind not in resolved.backends:
            yield _no_backend(resolved, layer.kind)


def _no_backend(resolved: ResolvedRecipe, layer_kind: str) -> Finding:
    recipe = resolved.recipe
    legal = sorted(
        f"{attention} on {hardware}"
        for row in resolved.registry.backends.values()
        if layer_kind in row.layer_kinds
        for attention in row.attention_kinds
        for hardware in row.hardware
    )
    return Finding(
        id="attention.no_backend",
        message=(
            f"no backend serves {layer_kind} layers with attention {recipe.attention.kind} on "
            f"{recipe.hardware}; there is one for {', '.join(legal) or 'no combination'}"
        ),
        at="attention.kind",
        fix="choose one of the combinations named",
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
    if resolved.recipe.moe.fused_communication:
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
    return Finding(
        id="hardware.lacks_capability",
        message=(
            f"{asker} needs {capability}, which {resolved.recipe.hardware} lacks; "
            f"it is on {', '.join(able) or 'no generation'}"
        ),
        at=asker if "." in asker or asker in ("graph", "roles") else "hardware",
        fix=f"hardware={able[0]}" if able else f"drop {asker}",
    )


def computes_dtype(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The hardware computes the dtype; float32 is for emulation, and only where relaxed."""
    recipe = resolved.recipe
    dtype = recipe.checkpoint.dtype
    if dtype == "float32":
        relaxed = recipe.device.kind == "emulated" and "dtype.float32" in recipe.device.relaxed
        if not relaxed:
            yield Finding(
                id="hardware.dtype",
                message="NPU operators do not take float32 models; emulation can be told to",
                at="checkpoint.dtype",
                fix="checkpoint.dtype=bfloat16, or device=emulated device.relaxed=[dtype.float32]",
            )
    elif dtype not in resolved.hardware.dtypes:
        yield Finding(
            id="hardware.dtype",
            message=f"{recipe.hardware} does not compute {dtype}",
            at="checkpoint.dtype",
            fix="checkpoint.dtype=float16",
        )


def operations_are_bound(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Every operation that the plan calls has a binding."""
    recipe = resolved.recipe
    if recipe.runtime.kind != "native" or missing_backends(resolved):
        return
    called = {name for key in resolved.hooks for name in resolved.registry.hooks[key].operations}
    for key in resolved.backends.values():
        called.update(resolved.registry.backends[key].operations)
    for name in sorted(called - set(resolved.bindings)):
        yield Finding(
            id="operation.no_binding",
            message=f"no provider performs {name} on {recipe.hardware}",
            at="hardware",
            fix="choose a hardware of the contract, see ops/",
        )
    if recipe.device.kind == "emulated":
        yield from reference_operations(resolved)


def reference_operations(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Heavy operations that only the plain PyTorch reference performs."""
    recipe = resolved.recipe
    for name, binding in resolved.bindings.items():
        heavy = resolved.registry.operations[name].heavy
        if heavy and binding.provider == "torch" and name not in recipe.allow_reference:
            on_npu = recipe.device.kind == "npu"
            yield Finding(
                id="operation.reference",
                severity=Severity.ERROR if on_npu else Severity.WARNING,
                message=f"{name} would fall back to the plain PyTorch reference",
                at="hardware",
                fix=f"allow_reference=[{name}]",
            )


def missing_backends(resolved: ResolvedRecipe) -> list[str]:
    """Backends of the plan that only other runtimes have."""
    rows = resolved.registry.backends
    return [key for key in sorted(set(resolved.backends.values())) if not rows[key].implementation]
