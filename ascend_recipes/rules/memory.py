"""Rules about memory, from the planner's numbers: weights, what is left for caches, settings."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.options import argument, key, switched_on, variable

_GIB = 2**30
_FULLEST = 0.98
"""Share above which nothing is left for graphs and the driver; documents go to 0.96."""

_USUAL_FRACTION = 0.92
_QUEUE = 4
"""Times as many requests as there are states for, above which the limit was hardly meant."""

_MEGA_TOKENS = 131072
"""Default of mega_moe_max_tokens (ascend_config.py:276)."""

_EXCLUDING = ("max_split_size_mb", "garbage_collection_threshold")
"""Allocator options that expandable segments exclude."""


def fraction_leaves_room(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Graphs, communication buffers and the driver stand outside the engine's share."""
    fraction = resolved.recipe.cache.memory_fraction
    if fraction >= _FULLEST and resolved.recipe.scale.kind == "real":
        at = "cache.memory_fraction"
        yield finding("memory.util_range", at=at, fix=f"{at}={_USUAL_FRACTION}", fraction=fraction)


def deployment_fits(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Weights fit the device, and one request of the longest context fits what they leave."""
    if resolved.recipe.scale.kind != "real":
        return
    # Deferred: the planner is needed here only, and rules are imported by every command.
    from ascend_recipes.memory.forecast import forecast
    from ascend_recipes.memory.views import role_view

    view = role_view(resolved)
    try:
        memory = forecast(view, pools=None)
    except (KeyError, ZeroDivisionError):
        return
    weights, device = memory.weights.device_bytes, memory.device_bytes
    if weights > device:
        yield finding(
            "memory.weights",
            at="parallel.tp",
            fix=_smaller(resolved),
            weights=_gib(weights),
            device=_gib(device),
            tp=resolved.recipe.parallel.tp,
        )
    elif memory.cache.available[1] <= 0:
        yield finding(
            "memory.no_cache",
            at="parallel.tp",
            fix=_smaller(resolved),
            weights=_gib(weights),
            budget=_gib(memory.budget),
            least=_gib(sum(item.low for item in memory.ranges)),
        )
    elif memory.cache.concurrency[1] < 1:
        longest = memory.cache.pool.longest(memory.cache.available[1], view.step_tokens)
        at = "scheduler.max_model_len"
        yield finding(
            "memory.concurrency",
            at=at,
            fix=f"{at}={longest}" if longest else "",
            share=round(memory.cache.concurrency[1], 2),
            length=memory.context,
            longest=longest,
        )
    elif memory.cache.pool.state_bytes * memory.sequences > _QUEUE * memory.cache.available[1]:
        pool, at = memory.cache.pool, "scheduler.max_num_seqs"
        most = max(1, memory.cache.available[0] // pool.state_bytes)
        yield finding(
            "memory.states",
            at=at,
            fix=f"{at}={most}",
            each=round(pool.state_bytes / 2**20, 1),
            sequences=memory.sequences,
            most=most,
        )


def _gib(size: int) -> float:
    return round(size / _GIB, 1)


def _smaller(resolved: ResolvedRecipe) -> str:
    """Spread experts, the next tensor-parallel size or number of nodes with room; or nothing."""
    from ascend_recipes.memory.forecast import changed, forecast, smallest_nodes
    from ascend_recipes.memory.views import role_view
    from ascend_recipes.planning.degrees import legal_tp

    view, parallel = role_view(resolved), resolved.recipe.parallel
    if not parallel.ep and forecast(changed(view, "parallel", ep=True)).verdict == "fits":
        return "parallel.ep=true"
    per_node, stage = resolved.hardware.dies_per_node, parallel.tp * parallel.pp
    dies = resolved.recipe.nodes * per_node // (parallel.dp * parallel.pp)
    dies = min(dies, resolved.quantization.max_tp or dies)
    for tp in legal_tp(view.split_sizes, dies):
        if tp > parallel.tp and forecast(changed(view, "parallel", tp=tp)).verdict == "fits":
            return f"parallel.tp={tp}"
    nodes = smallest_nodes(view).for_sure
    dp = (nodes or 0) * per_node // stage
    if not parallel.ep or nodes is None or dp <= parallel.dp or dp % nodes:
        return ""
    return f"nodes={nodes} parallel.dp={dp}"


@holds("vllm_ascend")
def allocator_grows(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Two allocator options switch growing segments off, which only sleep mode wants."""
    stated = variable(resolved, "PYTORCH_NPU_ALLOC_CONF")
    asleep = switched_on(argument(resolved, "enable_sleep_mode"))
    named = [name for name in _EXCLUDING if stated is not None and name in str(stated.value)]
    if stated is not None and named and asleep is None:
        fix = f"{stated.at}=expandable_segments:True"
        yield finding("memory.alloc_conf", at=stated.at, fix=fix, option=named[0])


@holds("vllm_ascend")
def wide_exchange_is_bounded(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The wide fused operator's workspace grows with the tokens it may receive."""
    stated = key(resolved, "mega_moe_max_tokens")
    if stated is None:
        return
    if isinstance(stated.value, bool) or not isinstance(stated.value, int) or stated.value < 1:
        fix = f"{stated.at}={_MEGA_TOKENS}"
        yield finding("memory.megamoe_value", at=stated.at, fix=fix, stated=stated.value)
    elif stated.value > _MEGA_TOKENS:
        yield finding(
            "memory.megamoe",
            at=stated.at,
            fix=f"{stated.at}={_MEGA_TOKENS}",
            stated=stated.value,
            times=stated.value / _MEGA_TOKENS,
            usual=_MEGA_TOKENS,
        )
