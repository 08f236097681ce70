"""Rules about the fused exchange of experts: where its operator exists, and what it excludes.

Read from vllm-ascend; without the Python package `cann_ops_transformer` the operator is
`dispatch_ffn_combine`, with it the wide one.
"""

from collections.abc import Iterator
from dataclasses import replace

from ascend_recipes.errors import Finding, Severity
from ascend_recipes.findings import finding
from ascend_recipes.planning.dispatch import ExpertLayout, wide_operator_fits
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules import options
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.moe import limits_of, spread_experts
from ascend_recipes.schema.exchange import ExchangeLimits

_UNEVEN = 4
"""How many times its share a rank is reckoned to receive when load is uneven: assumed."""


@holds("vllm_ascend")
def fused_operator_runs(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The fused exchange is asked for where its operator exists and takes the shapes."""
    fused, layout = options.fused_communication(resolved), spread_experts(resolved)
    if fused is None:
        return
    if "fused_mc2" not in resolved.hardware.capabilities:
        yield finding(
            "moe.fused_mc2_hw",
            at=fused.at,
            fix=options.off(fused),
            hardware=resolved.recipe.hardware,
        )
        return
    if not layout.experts or layout.ep == 1:
        yield finding("moe.fused_idle", at=fused.at, fix=options.off(fused))
        return
    limits = limits_of(resolved)
    usual, most = limits.fused.ranks, limits.wide.ranks
    if layout.ep > usual:
        yield finding(
            "moe.fused_mc2_ep",
            severity=Severity.WARNING if layout.ep > most else Severity.INFO,
            at=fused.at,
            fix=options.off(fused),
            ranks=layout.ep,
            most=most,
            usual=usual,
        )
    if not _wide_takes(layout, limits):
        yield finding(
            "moe.megamoe_shape",
            at=fused.at,
            fix=options.off(fused),
            hidden=layout.hidden,
            intermediate=layout.intermediate,
            format=layout.quantization,
        )


@holds("vllm_ascend")
def fused_excludes(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """What the fused exchange cannot stand beside."""
    fused = options.fused_communication(resolved)
    if fused is None or "moe" not in resolved.model.traits:
        return
    if other := options.hierarchical_communication(resolved):
        yield finding("moe.exclusive", at=fused.at, fix=options.off(fused), other=other.at)
    overlap = options.switched_on(
        options.field(resolved.recipe.moe.overlap_shared_expert, "moe.overlap_shared_expert"),
        options.key(resolved, "multistream_overlap_shared_expert"),
    )
    if overlap is not None:
        yield finding("moe.overlap_dropped", at=overlap.at, fix=options.off(overlap))
    if dynamic := options.dynamic_balancing(resolved):
        yield finding("moe.fused_eplb", at=fused.at, fix=options.off(fused), other=dynamic.at)
    if refused := _refused_architecture(resolved, "fused_communication"):
        yield finding(
            "moe.fused_mc2_model", at=fused.at, fix=options.off(fused), architecture=refused
        )
    if "routed_expert_hidden_size" in resolved.config:
        yield finding("moe.fused_latent", at=fused.at, fix=options.off(fused))


@holds("vllm_ascend")
def fused_results_stay_right(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Deployments for which wrong results of the fused exchange are documented or reported."""
    fused, recipe = options.fused_communication(resolved), resolved.recipe
    if fused is None or "fused_mc2" not in resolved.hardware.capabilities:
        return
    alone = "serve" in recipe.roles and recipe.nodes == 1
    if "recurrent_state" in resolved.model.traits and recipe.parallel.dp > 1 and alone:
        yield finding("moe.fused_recompute", at=fused.at, fix=options.off(fused))
    if pool := options.pooled_cache(resolved):
        yield finding("moe.fused_mc2_pool", at=fused.at, fix=options.off(fused), connector=pool)


@holds("vllm_ascend")
def fused_keeps_every_token(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The fused operators drop what a rank receives beyond a limit, and nobody is told."""
    fused, layout = options.fused_communication(resolved), spread_experts(resolved)
    limits = limits_of(resolved)
    reaches = 1 < layout.ep <= limits.wide.ranks
    runs = "fused_mc2" in resolved.hardware.capabilities and reaches
    if fused is None or not layout.experts or not runs:
        return
    limit = options.key(resolved, "mega_moe_max_tokens")
    most = limit.value if limit is not None else limits.received_tokens
    each = -(-resolved.recipe.scheduler.max_num_batched_tokens // layout.tp)
    even, local = each * layout.top_k, layout.experts // layout.ep
    worst = each * layout.ep * min(layout.top_k, local)
    if isinstance(most, int) and min(worst, _UNEVEN * even) > most > 0:
        yield finding(
            "moe.fused_drops",
            severity=Severity.WARNING if even > most else Severity.INFO,
            at=limit.at if limit is not None else fused.at,
            fix=f"{options.KEYS}.mega_moe_max_tokens={worst}",
            most=most,
            even=even,
            worst=worst,
        )


@holds("vllm_ascend")
def fused_leaves_drafts_right(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Without the wide operator the fused exchange is documented for plain decoding."""
    fused, kind = options.fused_communication(resolved), resolved.recipe.drafter.kind
    runs = "fused_mc2" in resolved.hardware.capabilities and spread_experts(resolved).ep > 1
    if fused is not None and kind != "none" and runs:
        yield finding("moe.fused_drafter", at=fused.at, fix=options.off(fused), kind=kind)


def _wide_takes(layout: ExpertLayout, limits: ExchangeLimits) -> bool:
    """Whether the wide operator takes the model, where its package is installed."""
    plain = layout.quantization == "bf16"
    shaped = replace(layout, wide=True, quantization="w8a8" if plain else layout.quantization)
    return wide_operator_fits(shaped, limits)


def _refused_architecture(resolved: ResolvedRecipe, option: str) -> str:
    prefixes = resolved.runtime.refused.get(option, ())
    architecture = resolved.model.architecture
    return architecture if architecture.startswith(tuple(prefixes)) and prefixes else ""
