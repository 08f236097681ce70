"""Rules about placing experts by load: replicas, the two balancers of vllm-ascend, their switches.

The first model runner has a balancer of its own, which two variables open and keys of
`eplb_config` tune; the second one uses vLLM's (`--enable-eplb`). Neither reads the other's options.
"""

from collections.abc import Iterator

from ascend_recipes.errors import Finding, Severity
from ascend_recipes.findings import finding
from ascend_recipes.planning.degrees import legal_redundant
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules import options
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.moe import spread_experts
from ascend_recipes.schema.base import Json

_UNMOVABLE = frozenset({"w4a8_mxfp4", "w4a16", "w4a16_mxfp4"})
"""Formats whose experts the balancer refuses (eplb/adaptor/vllm_adaptor.py:141)."""

_ONLY_FUSED = frozenset({"w4a8"})
"""Formats that the documents offer for the first runner with the fused exchange only."""

_SECOND_RUNNER_KEYS = frozenset({"load_collection_phase"})
"""The only key of `eplb_config` that the second runner reads (platform.py:757)."""

_COMMUNICATORS = (None, "torch_nccl", "torch_gloo")

_RANDOM_RANKS = 4
"""Fewest ranks of the random policy."""


@holds("vllm_ascend")
def balancer_moves_format(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The balancer knows how experts of the format are laid out."""
    dynamic, layout = _balancing(resolved), spread_experts(resolved)
    if dynamic is None or not layout.experts:
        return
    refused = layout.quantization in _UNMOVABLE
    doubtful = layout.quantization in _ONLY_FUSED and not layout.fused
    if refused or (doubtful and not options.second_runner(resolved)):
        yield finding(
            "moe.eplb_quant",
            severity=Severity.ERROR if refused else Severity.WARNING,
            at=dynamic.at,
            fix=options.off(dynamic),
            format=layout.quantization,
        )


@holds("vllm_ascend")
def balancer_has_ranks(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Experts move between ranks: there must be some, and the policy must have enough."""
    dynamic, layout = _balancing(resolved), spread_experts(resolved)
    if dynamic is None:
        return
    if not layout.experts or layout.ep == 1:
        yield finding("moe.eplb_world", at=dynamic.at, fix=options.off(dynamic))
        return
    moe = resolved.recipe.moe
    if moe.placement_policy == "random" and layout.ep < _RANDOM_RANKS:
        yield finding(
            "moe.eplb_random",
            at="moe.placement_policy",
            fix="moe.placement_policy=swift",
            ranks=layout.ep,
            fewest=_RANDOM_RANKS,
        )
    if moe.placement_policy == "greedy" and moe.redundant_experts > layout.ep:
        yield finding(
            "moe.eplb_greedy",
            at="moe.redundant_experts",
            fix=f"moe.redundant_experts={layout.ep - layout.experts % layout.ep}",
            replicas=moe.redundant_experts,
            ranks=layout.ep,
        )


@holds("vllm_ascend")
def balancer_belongs_to_runner(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Each model runner refuses the other one's balancer options (platform.py:749-795)."""
    if options.second_runner(resolved):
        yield from _first_runner_options(resolved)
        yield from _upstream_options(resolved)
        return
    upstream = options.switched_on(options.argument(resolved, "enable_eplb"))
    if upstream is not None:
        yield finding("moe.eplb_runner", at=upstream.at, fix=options.off(upstream))
    phase = options.key(resolved, "eplb_config.load_collection_phase")
    if phase is not None:
        yield finding("moe.eplb_phase", at=phase.at, fix=options.removed(phase.at))


def _first_runner_options(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Options that only the first runner takes; the second one stops at them."""
    dynamic = options.dynamic_balancing(resolved)
    given = [dynamic] if dynamic is not None and dynamic.at == "moe.load_balancing" else []
    block = options.key(resolved, "eplb_config")
    keys: Json = block.value if block is not None else {}
    for name in sorted(keys) if isinstance(keys, dict) else ():
        found = options.key(resolved, f"eplb_config.{name}")
        if name not in _SECOND_RUNNER_KEYS and found is not None:
            given.append(found)
    for name in ("DYNAMIC_EPLB", "EXPERT_MAP_RECORD"):
        if found := options.switched_on(options.variable(resolved, name)):
            given.append(found)
    for item in given:
        plain = item.at == "moe.load_balancing"
        fix = options.off(item) if plain else options.removed(item.at)
        yield finding("moe.eplb_first_runner", at=item.at, fix=fix, option=item.at)


def _upstream_options(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """What of vLLM's own balancer the second runner does not take."""
    if options.switched_on(options.argument(resolved, "enable_eplb")) is None:
        return
    asynchronous = options.argument(resolved, "eplb_config.use_async")
    if asynchronous is None or asynchronous.on:
        yield finding(
            "moe.eplb_async",
            at="extra_args.eplb_config.use_async",
            fix="extra_args.eplb_config.use_async=false",
        )
    communicator = options.argument(resolved, "eplb_config.communicator")
    if communicator is not None and communicator.value not in _COMMUNICATORS:
        yield finding(
            "moe.eplb_communicator",
            at=communicator.at,
            fix=options.removed(communicator.at),
            communicator=communicator.value,
        )


@holds("vllm_ascend")
def balancer_is_opened(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The first runner's balancer needs a variable as well as the option; alone each is idle."""
    if options.second_runner(resolved) or "moe" not in resolved.model.traits:
        return
    dynamic = options.dynamic_balancing(resolved)
    opened = options.variable(resolved, "DYNAMIC_EPLB")
    recorded = options.variable(resolved, "EXPERT_MAP_RECORD")
    on = options.switched_on(opened) or options.switched_on(recorded)
    if dynamic is None and on is not None:
        fix = "moe.load_balancing=dynamic"
        yield finding("moe.eplb_idle", at=on.at, fix=fix, variable=on.at.partition(".")[2])
    named = dynamic is not None and dynamic.at == "moe.load_balancing"
    # A recipe's own field brings the variable along, unless the recipe says otherwise.
    if dynamic is not None and on is None and (opened is not None or not named):
        yield finding(
            "moe.eplb_closed", at=dynamic.at, fix="env.DYNAMIC_EPLB=true", option=dynamic.at
        )


@holds("vllm_ascend")
def replicas_are_used(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Replicas of experts exist only where the balancer is on."""
    moe = resolved.recipe.moe
    if moe.redundant_experts and _balancing(resolved) is None and moe.load_balancing == "off":
        yield finding(
            "moe.replicas_idle",
            at="moe.redundant_experts",
            fix="moe.redundant_experts=0",
            replicas=moe.redundant_experts,
        )


@holds("vllm_ascend")
def replicas_stay_even(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Experts with their replicas spread evenly over the ranks."""
    layout, moe = spread_experts(resolved), resolved.recipe.moe
    balanced = _balancing(resolved) is not None
    if not layout.experts or layout.ep == 1 or layout.experts % layout.ep == 0:
        return
    replicas = moe.redundant_experts if moe.load_balancing != "off" else 0
    routed = layout.experts - replicas
    legal = legal_redundant(routed, layout.ep, replicas + layout.ep)
    nearest = min(legal, key=lambda n: abs(n - replicas))
    with_balancer = "" if balanced else " moe.load_balancing=dynamic"
    yield finding(
        "moe.uneven",
        severity=Severity.ERROR if balanced else Severity.WARNING,
        at="moe.redundant_experts" if balanced else "parallel.ep",
        fix=f"moe.redundant_experts={nearest}{with_balancer}",
        experts=layout.experts,
        ranks=layout.ep,
    )


def _balancing(resolved: ResolvedRecipe) -> options.Setting | None:
    """Either balancer, where it is on."""
    upstream = options.switched_on(options.argument(resolved, "enable_eplb"))
    return options.dynamic_balancing(resolved) or upstream
