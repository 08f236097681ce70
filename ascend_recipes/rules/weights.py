"""Rules about checkpoints and quantization."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import holds

_FLOAT_OUTPUTS = ("bf16", "w8a8")
"""Formats that leave the grouped projection of attention in float."""


def format_matches_quant(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The `quant` section says what the chosen weights are."""
    recipe = resolved.recipe
    expected = "none" if resolved.checkpoint.format == "bf16" else resolved.checkpoint.format
    if recipe.quant.kind != expected:
        matching = [
            variant
            for variant, facts in resolved.model.checkpoints.items()
            if facts.format == recipe.quant.kind
            and recipe.hardware in resolved.registry.quantization[facts.format].hardware
        ]
        yield finding(
            "quant.format_mismatch",
            at="quant.kind",
            fix=f"checkpoint.variant={matching[0]}" if matching else f"quant={expected}",
            variant=recipe.checkpoint.variant,
            model=recipe.model,
            format=resolved.checkpoint.format,
            kind=recipe.quant.kind,
        )


def format_runs_on_hardware(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Some formats need units that only some generations have."""
    recipe, row = resolved.recipe, resolved.quantization
    if recipe.hardware not in row.hardware:
        yield finding(
            "quant.hardware",
            at="checkpoint.variant",
            fix=_other_weights(resolved),
            format=resolved.checkpoint.format,
            able=row.hardware,
            hardware=recipe.hardware,
        )
    if row.max_tp is not None and recipe.parallel.tp > row.max_tp:
        yield finding(
            "quant.tp",
            at="parallel.tp",
            fix=f"parallel.tp={row.max_tp}",
            format=resolved.checkpoint.format,
            most=row.max_tp,
        )


@holds("vllm_ascend")
def output_groups_are_microscaled(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A5's attention over compressed context multiplies its grouped projection in MXFP8 only."""
    compressed = "compressed_context" in resolved.model.traits
    format_ = resolved.checkpoint.format
    if resolved.recipe.hardware == "a5" and compressed and format_ in _FLOAT_OUTPUTS:
        yield finding(
            "quant.output_groups",
            at="checkpoint.variant",
            fix=_other_weights(resolved, without=_FLOAT_OUTPUTS),
            format=format_,
            hardware=resolved.recipe.hardware,
        )


def _other_weights(resolved: ResolvedRecipe, without: tuple[str, ...] = ()) -> str:
    """Overrides for the smallest checkpoint that the hardware runs; empty if there is none.

    One that holds the drafter comes before smaller ones.
    """
    formats, drafter = resolved.registry.quantization, resolved.recipe.drafter.kind
    able = [
        (drafter not in ("none", *facts.drafters), formats[facts.format].weight_bits, variant)
        for variant, facts in resolved.model.checkpoints.items()
        if resolved.recipe.hardware in formats[facts.format].hardware
        and facts.format not in without
    ]
    if not able:
        return ""
    undrafted, _, variant = min(able)
    format_ = resolved.model.checkpoints[variant].format
    quant = "none" if format_ == "bf16" else format_
    rest = " drafter=none" if undrafted else ""
    return f"checkpoint.variant={variant} quant={quant}{rest}"


def variant_holds_drafter(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The weights of the drafter stand in the chosen checkpoint."""
    kind = resolved.recipe.drafter.kind
    elsewhere = resolved.drafter is not None and resolved.drafter.hub is not None
    if kind != "none" and kind not in resolved.checkpoint.drafters and not elsewhere:
        holding = [
            variant
            for variant, facts in resolved.model.checkpoints.items()
            if kind in facts.drafters and facts.format == resolved.checkpoint.format
        ]
        held = next(iter(resolved.checkpoint.drafters), "none")
        yield finding(
            "drafter.weights_missing",
            at="drafter.kind",
            fix=f"checkpoint.variant={holding[0]}" if holding else f"drafter={held}",
            variant=resolved.recipe.checkpoint.variant,
            model=resolved.recipe.model,
            kind=kind,
        )
