"""Rules: named functions over a resolved recipe; each yields the findings of one kind."""

from collections.abc import Callable, Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules import cache, drafter, graph, hardware, parallel, runtime, weights

Rule = Callable[[ResolvedRecipe], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    runtime.version_exists,
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
)


def check_rules(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Every finding of every rule, in the order of the table."""
    for rule in RULES:
        yield from rule(resolved)
