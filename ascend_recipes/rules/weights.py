"""Rules about checkpoints and quantization."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.resolve import ResolvedRecipe


def format_matches_quant(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The `quant` section says what the chosen weights are."""
    recipe = resolved.recipe
    expected = "none" if resolved.checkpoint.format == "bf16" else resolved.checkpoint.format
    if recipe.quant.kind != expected:
        matching = [
            variant
            for variant, facts in resolved.model.checkpoints.items()
            if facts.format == recipe.quant.kind
        ]
        yield Finding(
            id="quant.format_mismatch",
            message=(
                f"checkpoint {recipe.checkpoint.variant} of {recipe.model} holds "
                f"{resolved.checkpoint.format} weights, but quant is {recipe.quant.kind}"
            ),
            at="quant.kind",
            fix=f"checkpoint.variant={matching[0]}" if matching else f"quant={expected}",
        )


def format_runs_on_hardware(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Some formats need units that only some generations have."""
    recipe, row = resolved.recipe, resolved.quantization
    if recipe.hardware not in row.hardware:
        yield Finding(
            id="quant.hardware",
            message=(
                f"{resolved.checkpoint.format} weights run on {', '.join(row.hardware)}, "
                f"not on {recipe.hardware}"
            ),
            at="checkpoint.variant",
            fix=f"hardware={row.hardware[0]}, or a checkpoint.variant of another format",
        )
    if row.max_tp is not None and recipe.parallel.tp > row.max_tp:
        yield Finding(
            id="quant.tp",
            message=f"{resolved.checkpoint.format} experts split over at most {row.max_tp} dies",
            at="parallel.tp",
            fix=f"parallel.tp={row.max_tp}",
        )


def variant_holds_drafter(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The weights of the drafter stand in the chosen checkpoint."""
    kind = resolved.recipe.drafter.kind
    elsewhere = resolved.drafter is not None and resolved.drafter.hub is not None
    if kind != "none" and kind not in resolved.checkpoint.drafters and not elsewhere:
        holding = [
            variant
            for variant, facts in resolved.model.checkpoints.items()
            if kind in facts.drafters
        ]
        yield Finding(
            id="drafter.weights_missing",
            message=(
                f"checkpoint {resolved.recipe.checkpoint.variant} of {resolved.recipe.model} "
                f"holds no {kind} weights"
            ),
            at="drafter.kind",
            fix=f"checkpoint.variant={holding[0]}" if holding else "drafter=none",
        )
