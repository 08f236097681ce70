"""Rules about who serves the plan, and on what."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.hardware import missing_backends, reference_operations


def launch_blockers(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """What stops a launch although the plan is sound: missing implementations, missing evidence."""
    if resolved.recipe.runtime.kind == "native":
        missing = tuple(_missing_implementations(resolved))
        yield from missing or _slow_operations(resolved)
        yield from _missing_evidence(resolved)
    else:
        yield Finding(
            id="runtime.not_rendered",
            message="plans for vllm-ascend cannot be launched yet: their own options are missing",
            at="runtime.kind",
            fix=f"ascend-run plan recipe={resolved.recipe.name} runtime=vllm_ascend",
        )


def _missing_implementations(resolved: ResolvedRecipe) -> Iterator[Finding]:
    instead = f"ascend-run recipe={resolved.recipe.name} runtime=vllm_ascend"
    if not resolved.model.native:
        yield Finding(
            id="runtime.family_not_implemented",
            message=f"the native runtime does not implement {resolved.recipe.model} yet",
            at="model",
            fix=instead,
        )
    elif missing := missing_backends(resolved):
        yield Finding(
            id="runtime.backend_not_implemented",
            message=(
                f"the native runtime has no {', '.join(missing)} on {resolved.recipe.hardware} yet"
            ),
            at="hardware",
            fix=instead,
        )
    elif not _reads_format(resolved):
        yield Finding(
            id="runtime.format_not_implemented",
            message=f"the native runtime does not read {resolved.checkpoint.format} weights yet",
            at="checkpoint.variant",
            fix=f"checkpoint.variant=bf16 quant=none, or {instead}",
        )
    elif (kind := resolved.recipe.drafter.kind) not in ("none", *resolved.model.native_drafters):
        yield Finding(
            id="runtime.drafter_not_implemented",
            message=f"the native runtime does not run the {kind} drafter of this model yet",
            at="drafter.kind",
            fix=f"drafter=none, or {instead}",
        )


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
        yield Finding(
            id="runtime.unverified",
            message=f"no run of {recipe.name} with the native runtime on an NPU has been recorded",
            at="runtime.kind",
            fix=(
                f"ascend-run recipe={recipe.name} runtime=native accept_unverified=true   or   "
                f"ascend-run recipe={recipe.name} runtime=vllm_ascend"
            ),
        )


def version_exists(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A named runtime version has a row."""
    if resolved.runtime_version not in resolved.runtime.versions:
        options = ", ".join(resolved.runtime.versions)
        yield Finding(
            id="runtime.unknown_version",
            message=(
                f"{resolved.recipe.runtime.kind} has no version {resolved.runtime_version!r}; "
                f"it has {options}"
            ),
            at="runtime.version",
            fix=f"runtime.version={resolved.runtime.versions[-1]}",
        )


def device_is_served(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Emulation, tiny models and float32 belong to the native runtime on the CPU."""
    recipe = resolved.recipe
    if recipe.runtime.kind == "vllm_ascend" and recipe.device.kind == "emulated":
        yield Finding(
            id="runtime.no_emulation",
            message="vllm-ascend runs on NPUs only",
            at="device.kind",
            fix="runtime=native device=emulated",
        )
    if recipe.scale.kind == "real" and recipe.device.kind == "emulated":
        yield Finding(
            id="scale.real_on_cpu",
            message=f"{recipe.model} at its real size cannot run on the emulated device",
            at="scale.kind",
            fix="scale=tiny",
        )
