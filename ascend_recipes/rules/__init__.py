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
    attention,
    balancing,
    cache,
    disaggregation,
    drafter,
    environment,
    fused,
    graph,
    graph_modes,
    hardware,
    installed,
    key_values,
    machines,
    memory,
    moe,
    parallel,
    parallel_groups,
    quantization,
    rendered,
    roles,
    runtime,
    scheduler,
    shapes,
    surface,
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
    hardware.settings_are_of_the_generation,
    weights.format_matches_quant,
    weights.format_runs_on_hardware,
    weights.variant_holds_drafter,
    quantization.method_is_served,
    quantization.scales_have_their_dtype,
    quantization.four_bit_experts_are_spread,
    quantization.description_is_right,
    quantization.loader_reads_one_way,
    parallel.heads_divide,
    parallel.key_value_heads_divide,
    parallel.world_fits_nodes,
    parallel.cards_are_not_dies,
    parallel.experts_exist,
    parallel.stages_hold_layers,
    parallel.stages_are_tried,
    parallel.sequence_parallel_has_ranks,
    parallel.prefill_context_is_whole,
    parallel_groups.context_ways_are_legal,
    parallel_groups.context_blocks_are_whole,
    parallel_groups.context_parallel_is_sound,
    parallel_groups.context_pages_are_equal,
    parallel_groups.drafter_shares_context,
    parallel_groups.fine_sizes_divide,
    parallel_groups.fine_sizes_have_their_role,
    shapes.feed_forward_splits,
    shapes.requests_fit_step,
    shapes.cache_type_is_stored,
    shapes.reshaped_writes_have_a_cache,
    shapes.compressed_heads_fit_a5,
    shapes.small_machines_split_tensors_only,
    shapes.backends_are_the_plans,
    attention.latent_heads_fit_operator,
    attention.widths_fit_operator,
    cache.kind_matches_attention,
    cache.block_size_fits_kernel,
    cache.aligned_block_fits_batch,
    cache.context_fits_model,
    cache.decode_batch_fits_step,
    cache.state_pages_are_equal,
    cache.prefixes_can_be_found,
    cache.caches_keep_their_kinds,
    cache.pooled_states_are_aligned,
    cache.cache_dtype_is_read,
    drafter.draft_length_is_offered,
    drafter.stated_length_is_read,
    drafter.draft_tensor_parallel_is_legal,
    drafter.block_drafter_is_eager,
    drafter.block_drafter_is_greedy,
    drafter.drafts_fit_hardware,
    graph.sizes_fit_decode,
    graph.drafts_fit_token_split,
    graph.largest_batch_is_captured,
    graph.largest_size_is_one,
    graph.sizes_fit_token_split,
    graph.hardware_keeps_sizes,
    graph.streams_hold_graphs,
    graph_modes.launches_do_not_block,
    graph_modes.eager_is_said_once,
    graph_modes.compilation_serves_the_mode,
    graph_modes.drafts_keep_their_number,
    graph_modes.drafter_batches_are_padded,
    graph_modes.context_parallel_is_decode_only,
    graph_modes.model_has_the_mode,
    graph_modes.encoder_decoder_is_piecewise,
    graph_modes.fusion_has_full_graphs,
    graph_modes.xlite_is_alone,
    graph_modes.flash_backend_fits,
    graph_modes.sleep_has_an_allocator,
    memory.fraction_leaves_room,
    memory.deployment_fits,
    memory.allocator_grows,
    memory.wide_exchange_is_bounded,
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
    fused.fused_keeps_every_token,
    fused.fused_leaves_drafts_right,
    balancing.balancer_moves_format,
    balancing.balancer_has_ranks,
    balancing.balancer_belongs_to_runner,
    balancing.balancer_is_opened,
    balancing.replicas_are_used,
    balancing.replicas_stay_even,
    scheduler.chunks_have_stages,
    scheduler.short_requests_have_a_queue,
    scheduler.batch_jobs_stand_alone,
    scheduler.replicas_to_level,
    scheduler.single_role_schedules,
    roles.single_role_may,
    disaggregation.own_size_is_true,
    environment.devices_are_chosen,
    environment.variables_are_of_the_vendor,
    environment.numbers_are_numbers,
    environment.keys_win_over_variables,
    environment.steps_may_take_their_time,
    environment.variables_fit_generation,
    environment.second_runner_takes_it,
    key_values.numbers_are_in_range,
    key_values.maps_are_json,
    key_values.dumps_are_told_once,
    key_values.single_role_offloads,
    surface.known_arguments,
    surface.known_keys,
    surface.known_variables,
    surface.version_serves_model,
)

PAIR_RULES: tuple[PairRule, ...] = (
    parallel_groups.fine_sizes_are_not_for_prefill,
    roles.both_roles_may,
    scheduler.both_roles_schedule,
    key_values.both_roles_offload,
    disaggregation.pages_agree,
    disaggregation.degrees_agree,
    disaggregation.drafts_agree,
    disaggregation.split_context_drafts,
    disaggregation.eight_bit_latents_move,
    disaggregation.ends_meet,
    disaggregation.connectors_exist,
    disaggregation.declared_sizes_are_true,
    disaggregation.dense_replicas_are_apart,
    disaggregation.seeds_agree,
    disaggregation.decode_reads_long_requests,
)

INSTALLED_RULES: tuple[InstalledRule, ...] = (
    hardware.chip_is_served,
    drafter.drafts_have_no_known_fault,
    graph.early_releases_round_nothing,
    surface.installed_serves_model,
    installed.release_is_the_recipes,
    installed.patched_release_is_there,
    installed.parts_belong_together,
    installed.version_is_understood,
    installed.others_leave_it_alone,
    machines.generations_agree,
    machines.requirements_are_met,
    machines.driver_holds_graphs,
    machines.stack_has_no_known_fault,
    machines.processor_is_served,
    machines.transfers_have_their_parts,
    machines.ports_are_free,
    machines.release_has_the_feature,
)


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
