"""Rules about who serves the plan, and on what."""

from collections import Counter
from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.planning.dispatch import expert_layout
from ascend_recipes.planning.nodes import deployment_nodes
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.hardware import missing_backends, reference_operations


def launch_blockers(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """What stops a launch although the plan is sound: missing implementations, missing evidence."""
    if resolved.recipe.runtime.kind == "native":
        yield from _more_nodes(resolved)
        yield from _replicated_experts(resolved)
        missing = tuple(_missing_implementations(resolved))
        yield from missing or _slow_operations(resolved)
        yield from _missing_evidence(resolved)


def _more_nodes(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The native runtime is the processes of one machine, so a site's addresses do not help it."""
    recipe = resolved.recipe
    roles = Counter(place.role for place in deployment_nodes(recipe))
    if roles.total() > 1:
        one = recipe.scale.kind == "tiny" and len(roles) == 1
        yield finding(
            "runtime.one_node",
            at="nodes" if len(roles) == 1 else "roles",
            fix="nodes=1" if one else f"ascend-run recipe={recipe.name} runtime=vllm_ascend",
            roles=[f"{role} x {count}" for role, count in roles.items()],
        )


def _replicated_experts(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Routed experts of the native runtime exchange no tokens between replicas."""
    recipe = resolved.recipe
    if recipe.parallel.dp > 1 and resolved.model.native and expert_layout(resolved).experts:
        instead = f"ascend-run recipe={recipe.name} runtime=vllm_ascend"
        yield finding(
            "runtime.replicated_experts",
            at="parallel.dp",
            fix="parallel.dp=1" if recipe.scale.kind == "tiny" else instead,
            dp=recipe.parallel.dp,
        )


def _missing_implementations(resolved: ResolvedRecipe) -> Iterator[Finding]:
    instead = f"ascend-run recipe={resolved.recipe.name} runtime=vllm_ascend"
    if not resolved.model.native:
        yield finding(
            "runtime.family_not_implemented",
            at="model",
            fix=instead,
            model=resolved.recipe.model,
        )
    elif missing := missing_backends(resolved):
        yield finding(
            "runtime.backend_not_implemented",
            at="hardware",
            fix=instead,
            missing=missing,
            hardware=resolved.recipe.hardware,
        )
    elif not _reads_format(resolved):
        yield finding(
            "runtime.format_not_implemented",
            at="checkpoint.variant",
            fix=instead,
            format=resolved.checkpoint.format,
        )
    elif (kind := resolved.recipe.drafter.kind) not in ("none", *resolved.model.native_drafters):
        yield finding("runtime.drafter_not_implemented", at="drafter.kind", fix=instead, kind=kind)


def _reads_format(resolved: ResolvedRecipe) -> bool:
    return resolved.quantization.native and (
        resolved.checkpoint.format in resolved.model.native_formats
    )


def _slow_operations(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A heavy operation is no plain PyTorch on an NPU unless the recipe allows it by name."""
    if resolved.recipe.device.kind == "npu":
        yield from reference_operations(resolved)


def _missing_evidence(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Nobody is sent to hardware by a claim that was never measured."""
    recipe = resolved.recipe
    recorded = any(run.recipe == recipe.name for run in resolved.model.verified)
    if recipe.device.kind == "npu" and not recorded and not recipe.accept_unverified:
        yield finding(
            "runtime.unverified",
            at="runtime.kind",
            recipe=recipe.name,
        )


def version_exists(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A named runtime version has a row."""
    if resolved.runtime_version not in resolved.runtime.versions:
        yield finding(
            "runtime.unknown_version",
            at="runtime.version",
            fix=f"runtime.version={resolved.runtime.versions[-1]}",
            kind=resolved.recipe.runtime.kind,
            version=resolved.runtime_version,
            options=resolved.runtime.versions,
        )


def device_is_served(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Emulation, tiny models and float32 belong to the native runtime on the CPU."""
    recipe = resolved.recipe
    if recipe.runtime.kind == "vllm_ascend" and recipe.device.kind == "emulated":
        yield finding("runtime.no_emulation", at="device.kind", fix="device=npu")
    if recipe.scale.kind == "real" and recipe.device.kind == "emulated":
        yield finding("scale.real_on_cpu", at="scale.kind", fix="scale=tiny", model=recipe.model)
