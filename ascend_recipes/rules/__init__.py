"""Rules: named functions over a resolved recipe; each yields the findings of one kind.

Three tables by what a rule looks at: one recipe (or one role of it), a pair of roles, and a recipe
beside what a machine has installed. `rules.holding.holds` marks those that are true for some
runtimes or versions only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from ascend_recipes.errors import Finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules import (
    balancing,
    cache,
    drafter,
    fused,
    graph,
    hardware,
    moe,
    parallel,
    rendered,
    runtime,
    weights,
)

if TYPE_CHECKING:
    from ascend_recipes.machine import InstalledVersions

Rule: TypeAlias = Callable[[ResolvedRecipe], Iterator[Finding]]
PairRule: TypeAlias = Callable[[ResolvedRecipe, ResolvedRecipe], Iterator[Finding]]
"""Takes the deployment as prefill sees it, then as decode sees it; says `roles.…` itself."""
InstalledRule: TypeAlias = "Callable[[ResolvedRecipe, InstalledVersions], Iterator[Finding]]"

RULES: tuple[Rule, ...] = (
    runtime.version_exists,
    rendered.version_offers_choices,
    rendered.version_has_drafter,
    rendered.arguments_are_stated_once,
    rendered.replicas_spread_over_nodes,
    runtime.device_is_served,
    hardware.backend_exists,
    hardware.offers_capabilities,
    hardware.computes_dtype,
    hardware.operations_are_bound,
    weights.format_matches_quant,
    weights.format_runs_on_hardware,
    weights.variant_holds_drafter,
    parallel.heads_divide,
    parallel.world_fits_nodes,
    parallel.experts_exist,
    cache.kind_matches_attention,
    cache.block_size_fits_kernel,
    cache.aligned_block_fits_batch,
    cache.context_fits_model,
    cache.decode_batch_fits_step,
    drafter.draft_length_is_offered,
    graph.sizes_fit_decode,
    graph.largest_batch_is_captured,
    moe.window_suffices,
    moe.small_groups_gather,
    moe.hierarchy_is_possible,
    moe.placements_exclude,
    moe.shared_expert_is_replicated,
    moe.prefill_fits_dispatch,
    moe.decode_fits_dispatch,
    moe.adapters_exchange_all_to_all,
    moe.experts_split_evenly,
    fused.fused_operator_runs,
    fused.fused_excludes,
    fused.fused_results_stay_right,
    balancing.balancer_moves_format,
    balancing.balancer_has_ranks,
    balancing.balancer_belongs_to_runner,
    balancing.balancer_is_opened,
    balancing.replicas_are_used,
    balancing.replicas_stay_even,
)

PAIR_RULES: tuple[PairRule, ...] = ()

INSTALLED_RULES: tuple[InstalledRule, ...] = ()


def check_rules(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Every finding of every rule, in the order of the table."""
    for rule in RULES:
        yield from rule(resolved)


def check_pair(prefill: ResolvedRecipe, decode: ResolvedRecipe) -> Iterator[Finding]:
    """What does not fit between the roles of a disaggregated deployment."""
    for rule in PAIR_RULES:
        yield from rule(prefill, decode)


def check_installed(resolved: ResolvedRecipe, installed: InstalledVersions) -> Iterator[Finding]:
    """What of a machine does not fit the recipe."""
    for rule in INSTALLED_RULES:
        yield from rule(resolved, installed)
