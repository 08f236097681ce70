"""Rules about mixtures of experts: which exchange runs, and what it needs.

Almost all of it is read from vllm-ascend and holds for that runtime; the native runtime has one
exchange and decides for itself (planning/dispatch.py says what is whose).
"""

from collections.abc import Iterator
from dataclasses import replace

from ascend_recipes.errors import Finding, Severity
from ascend_recipes.findings import finding
from ascend_recipes.planning.capture import CAPTURE_CAP
from ascend_recipes.planning.dispatch import (
    ExpertLayout,
    communication_method,
    expert_layout,
    fused_window_mib,
    meets_needs,
    token_capacity,
    window_mib,
)
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules import options
from ascend_recipes.rules.graph import query_length
from ascend_recipes.rules.holding import holds
from ascend_recipes.schema.exchange import ExchangeLimits
from ascend_recipes.schema.operator import of_generation

_DISPATCH = "torch_npu.npu_moe_distribute_dispatch_v2"
"""Row of the operator that dispatches, without the two levels."""

_TRUSTED_EXCESS = 2.5
"""How many times the set window the formula must ask for to call it an error.

The formula gives the operator's own number where that was reported (vllm-ascend issue 5287), but
documented deployments of releases run at up to 2.1 times less than it asks for.
"""


@holds("vllm_ascend")
def window_suffices(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The HCCL window holds what the dispatch operators exchange in the largest decode step."""
    layout, tokens = spread_experts(resolved), _largest_step(resolved)
    if not layout.experts or layout.hardware not in ("a2", "a3"):
        return
    limits = limits_of(resolved)
    capacity = token_capacity(layout, tokens, limits)
    method = communication_method(layout, min(tokens, capacity), capacity, limits).method
    if method == "fused_mc2":
        needed = fused_window_mib(layout, -(-_step(resolved) // layout.tp))
    elif method == "mc2":
        hierarchical = _two_levels(resolved)
        needed = window_mib(layout, -(-capacity // layout.tp), hierarchical=hierarchical)
    else:
        return
    default = resolved.registry.collectives["hccl"].buffer_mib
    text = resolved.recipe.env.get("HCCL_BUFFSIZE", str(default))
    given = int(text) if text.isdigit() else 0
    if 0 < given < needed:
        sure = needed > _TRUSTED_EXCESS * given
        yield finding(
            "moe.hccl_buffsize",
            severity=Severity.ERROR if sure else Severity.WARNING,
            at="env.HCCL_BUFFSIZE",
            fix=f"env.HCCL_BUFFSIZE={-(-needed // 64) * 64}",
            given=given,
            needed=needed,
            ranks=layout.ep,
            each=layout.experts // layout.ep,
            tokens=-(-capacity // layout.tp),
        )


@holds("vllm_ascend")
def small_groups_gather(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A2 dispatches only over enough ranks with few experts each."""
    layout, limits = spread_experts(resolved), limits_of(resolved)
    needs = limits.dispatch_needs.get(layout.hardware)
    spread = layout.experts and layout.ep > 1
    if spread and needs is not None and not meets_needs(layout, limits):
        yield finding(
            "moe.a2_mc2",
            at="parallel.ep",
            ranks=layout.ep,
            each=layout.experts // layout.ep,
            least=needs.ranks,
            most=needs.experts_per_rank,
        )


@holds("vllm_ascend")
def hierarchy_is_possible(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The two-level exchange: generations, number of experts, and something to exchange over."""
    hierarchical, layout = options.hierarchical_communication(resolved), spread_experts(resolved)
    if hierarchical is None:
        return
    named = hierarchical.at == "moe.hierarchical_communication"
    if "mc2_hierarchy" not in resolved.hardware.capabilities and not named:
        yield finding(
            "moe.hierarchy",
            at=hierarchical.at,
            fix=options.off(hierarchical),
            hardware=resolved.recipe.hardware,
        )
    most = limits_of(resolved).hierarchical_experts
    if layout.experts > most:
        yield finding(
            "moe.hierarchy_experts",
            at=hierarchical.at,
            fix=options.off(hierarchical),
            experts=layout.experts,
            most=most,
        )


@holds("vllm_ascend")
def placements_exclude(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Shared experts among the routed ones leave nothing to replicate or to overlap."""
    mixed = options.switched_on(options.key(resolved, "mix_placement"))
    moe = resolved.recipe.moe
    others = (
        options.field(moe.shared_expert == "dp", "moe.shared_expert"),
        options.field(moe.overlap_shared_expert, "moe.overlap_shared_expert"),
        options.key(resolved, "enable_shared_expert_dp"),
        options.key(resolved, "multistream_overlap_shared_expert"),
    )
    for other in others:
        if mixed is not None and other is not None and other.on:
            yield finding("moe.mix_placement", at=mixed.at, fix=options.off(mixed), other=other.at)
            return


@holds("vllm_ascend")
def shared_expert_is_replicated(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A shared expert per die needs expert parallelism and something to be split over."""
    recipe = resolved.recipe
    chosen = options.switched_on(
        options.field(recipe.moe.shared_expert == "dp", "moe.shared_expert"),
        options.key(resolved, "enable_shared_expert_dp"),
    )
    if chosen is None or "serve" not in recipe.roles:
        return
    if not recipe.parallel.ep or recipe.parallel.tp == 1:
        fix = "moe.shared_expert=tp" if chosen.at == "moe.shared_expert" else options.off(chosen)
        yield finding("moe.shared_idle", at=chosen.at, fix=fix, tp=recipe.parallel.tp)


@holds("vllm_ascend")
def prefill_fits_dispatch(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Experts dispatch so many tokens of a rank at most, also where prefill shall do it."""
    recipe, chosen = resolved.recipe, _prefill_dispatch(resolved)
    most = limits_of(resolved).tokens_per_rank * recipe.parallel.tp
    if chosen is not None and spread_experts(resolved).experts and _step(resolved) > most:
        yield finding(
            "moe.prefill_capacity",
            at="scheduler.max_num_batched_tokens",
            fix=f"scheduler.max_num_batched_tokens={most}",
            step=_step(resolved),
            most=most,
        )


@holds("vllm_ascend")
def decode_fits_dispatch(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A decode step of more tokens leaves the dispatch operator, and nobody is told."""
    layout, recipe, limits = spread_experts(resolved), resolved.recipe, limits_of(resolved)
    if not layout.experts or layout.ep == 1 or layout.hardware == "310p":
        return
    tokens = recipe.scheduler.max_num_seqs * query_length(resolved)
    most = limits.tokens_per_rank * layout.tp
    if tokens > most and meets_needs(layout, limits) and not _prefill_only(resolved):
        requests = most // query_length(resolved)
        yield finding(
            "moe.decode_capacity",
            at="scheduler.max_num_seqs",
            fix=f"scheduler.max_num_seqs={requests}",
            tokens=tokens,
            most=most,
        )


@holds("vllm_ascend")
def operator_takes_the_step(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The dispatch operator of a generation may take less than what the runtime gives it."""
    layout, limits = spread_experts(resolved), limits_of(resolved)
    capacity = token_capacity(layout, _largest_step(resolved), limits)
    chosen = communication_method(layout, capacity, capacity, limits).method
    if chosen != "mc2" or _two_levels(resolved):
        return
    legal = resolved.registry.operators[_DISPATCH].limits["tokens"]
    (_, each), *_ = of_generation(legal, layout.hardware) or ((1, capacity),)
    most = each * layout.tp
    if capacity > most:
        at, value = _smaller_step(resolved, most)
        yield finding(
            "moe.operator_tokens",
            at=at,
            fix=f"{at}={value}",
            hardware=layout.hardware,
            tokens=capacity,
            most=most,
        )


def _smaller_step(resolved: ResolvedRecipe, most: int) -> tuple[str, str]:
    """The field that the dispatch capacity follows from, and a value for `most` tokens."""
    recipe = resolved.recipe
    if _prefill_dispatch(resolved):
        return "scheduler.max_num_batched_tokens", str(most)
    captured = () if recipe.graph.kind == "none" else recipe.graph.capture_sizes
    if sizes := [size for size in captured if size <= most]:
        return "graph.capture_sizes", f"[{','.join(map(str, sizes))}]"
    return "scheduler.max_num_seqs", str(most // query_length(resolved))


@holds("vllm_ascend")
def adapters_exchange_all_to_all(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Adapters cannot enter the dispatch operators."""
    lora = options.switched_on(options.argument(resolved, "enable_lora"))
    if lora is not None and resolved.recipe.parallel.ep:
        yield finding("moe.lora", at=lora.at)


def experts_split_evenly(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Without expert parallelism every expert is split over all dies of a stage.

    Both runtimes: vLLM's FusedMoE asserts it.
    """
    layout, parallel = spread_experts(resolved), resolved.recipe.parallel
    split = parallel.tp * parallel.dp
    if layout.experts and not parallel.ep and layout.intermediate % split:
        yield finding(
            "moe.shard",
            at="parallel.ep",
            fix="parallel.ep=true",
            intermediate=layout.intermediate,
            split=split,
        )


def limits_of(resolved: ResolvedRecipe) -> ExchangeLimits:
    """Numbers of the runtime; only rules that hold for one which has them may ask."""
    limits = resolved.runtime.exchange
    assert limits is not None, f"runtime {resolved.recipe.runtime.kind} states no limits"
    return limits


def spread_experts(resolved: ResolvedRecipe) -> ExpertLayout:
    """How experts are spread; replicas count where the balancer is on only."""
    layout = expert_layout(resolved)
    moe = resolved.recipe.moe
    idle = layout.experts and moe.load_balancing == "off"
    fused = options.fused_communication(resolved) is not None
    experts = layout.experts - moe.redundant_experts if idle else layout.experts
    lora = options.switched_on(options.argument(resolved, "enable_lora")) is not None
    return replace(layout, experts=experts, fused=fused, lora=lora)


def _largest_step(resolved: ResolvedRecipe) -> int:
    """Tokens that the dispatch capacity is computed from (ascend_forward_context.py:176-200)."""
    recipe = resolved.recipe
    if _prefill_dispatch(resolved):
        return _step(resolved)
    batch = recipe.scheduler.max_num_seqs * query_length(resolved)
    if recipe.graph.kind == "none":
        return batch
    return max(recipe.graph.capture_sizes, default=min(batch, CAPTURE_CAP))


def _prefill_dispatch(resolved: ResolvedRecipe) -> options.Setting | None:
    """What asks prefill to dispatch too."""
    return options.switched_on(
        options.field(resolved.recipe.moe.prefill_dispatch, "moe.prefill_dispatch"),
        options.key(resolved, "enable_prefill_mc2"),
    )


def _step(resolved: ResolvedRecipe) -> int:
    return resolved.recipe.scheduler.max_num_batched_tokens


def _two_levels(resolved: ResolvedRecipe) -> bool:
    """Two levels are also chosen by two variables of HCCL's (utils.py:1011-1015)."""
    env = resolved.recipe.env
    chosen = (env.get("HCCL_INTRA_ROCE_ENABLE"), env.get("HCCL_INTRA_PCIE_ENABLE")) == ("0", "1")
    return chosen or options.hierarchical_communication(resolved) is not None


def _prefill_only(resolved: ResolvedRecipe) -> bool:
    """A view of a disaggregated deployment that runs eagerly is its prefill role."""
    return "prefill" in resolved.recipe.roles and resolved.recipe.graph.kind == "none"
