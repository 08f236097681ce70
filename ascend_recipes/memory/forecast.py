"""Whether a role fits its devices: weights, ranges, and what is left for caches."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from ascend_recipes.memory.caches import RUNTIMES, alignment_tokens, cache_pool
from ascend_recipes.memory.headers import CheckpointSizes, read_checkpoint
from ascend_recipes.memory.overheads import MemoryRange, overheads
from ascend_recipes.memory.parameters import Sizes, expert_count
from ascend_recipes.memory.pool import CachePool
from ascend_recipes.memory.views import RoleView
from ascend_recipes.memory.weights import WeightPlan, plan_weights
from ascend_recipes.schema.base import Json, Spec
from ascend_recipes.schema.recipe import Recipe

Verdict = Literal["fits", "may fit", "does not fit"]

Changeable = Literal["cache", "parallel", "scheduler"]
"""Sections of the recipe that remedies touch."""

_MOST_NODES = 64


class CacheForecast(NamedTuple):
    """What the caches of one device hold, under one runtime. Pairs are bounds."""

    pool: CachePool
    available: tuple[int, int]
    """Bytes for caches."""
    tokens: tuple[int, int]
    """Tokens as vLLM reports them: sequences of the longest context, times their length."""
    concurrency: tuple[float, float]
    """Sequences of the longest context at a time, each with a whole step in flight."""
    full_batch_tokens: tuple[int, int]
    """Context length at which the recipe's `max_num_seqs` sequences fit at a time, one step in
    flight for all; at most the longest context."""
    alignment: int | None
    """Tokens in whose multiples a cached prefix is found."""


class RoleMemory(NamedTuple):
    """Memory of one device of a role."""

    role: str
    runtime: str
    dies: int
    nodes: int
    device_bytes: int
    budget: int
    """Bytes that the engine may use: the device's times the recipe's fraction."""
    weights: WeightPlan
    ranges: tuple[MemoryRange, ...]
    context: int
    """Longest sequence of the recipe in tokens."""
    sequences: int
    """Sequences that the recipe runs at a time, per data-parallel replica."""
    caches: Mapping[str, CacheForecast]

    @property
    def cache(self) -> CacheForecast:
        """Under the recipe's runtime."""
        return self.caches[self.runtime]

    @property
    def verdict(self) -> Verdict:
        """Whether one sequence of the longest context fits."""
        low, high = self.cache.concurrency
        return "fits" if low >= 1 else "may fit" if high >= 1 else "does not fit"


def forecast(
    view: RoleView,
    files: CheckpointSizes | None = None,
    pools: Mapping[str, CachePool] | None = None,
) -> RoleMemory:
    """Memory of one device of a role, under both runtimes.

    Args:
        view: the role.
        files: sizes of the checkpoint's tensors, where it is present.
        pools: cache pools by runtime, where they are known already.
    """
    pools = pools or {name: cache_pool(view, name) for name in RUNTIMES}
    recipe = view.recipe
    device = int((recipe.site.device_memory_gib or view.hardware.memory_gib) * 2**30)
    budget = int(device * recipe.cache.memory_fraction)
    weights, ranges = plan_weights(view, files), overheads(view)
    left = budget - weights.device_bytes
    available = (left - sum(r.high for r in ranges), left - sum(r.low for r in ranges))
    if recipe.cache.memory_bytes is not None:
        available = (recipe.cache.memory_bytes, recipe.cache.memory_bytes)
    bounds = (max(0, available[0]), max(0, available[1]))
    return RoleMemory(
        role=view.role,
        runtime=recipe.runtime.kind,
        dies=recipe.parallel.world_size,
        nodes=recipe.nodes,
        device_bytes=device,
        budget=budget,
        weights=weights,
        ranges=ranges,
        context=recipe.scheduler.max_model_len,
        sequences=recipe.scheduler.max_num_seqs,
        caches={name: _forecast_cache(view, pool, bounds) for name, pool in pools.items()},
    )


def checkpoint_sizes(folder: str) -> CheckpointSizes | None:
    """Sizes from the headers of the checkpoint, where it is present on this machine."""
    return read_checkpoint(Path(folder))


def with_recipe(view: RoleView, recipe: Recipe) -> RoleView:
    """The same role with another recipe."""
    return replace(view, recipe=recipe)


def changed(view: RoleView, section: Changeable, **values: Json) -> RoleView:
    """The same role with some values of a section changed."""
    recipe = view.recipe
    sections: dict[str, Spec] = {
        "cache": recipe.cache,
        "parallel": recipe.parallel,
        "scheduler": recipe.scheduler,
    }
    spec = sections[section].model_copy(update=values)
    return with_recipe(view, recipe.model_copy(update={section: spec}))


class NodeCount(NamedTuple):
    """Fewest nodes on which a role fits; none where no number up to 64 is enough."""

    at_best: int | None
    """With every range at its lower bound."""
    for_sure: int | None
    """With every range at its upper bound."""


def smallest_nodes(view: RoleView, files: CheckpointSizes | None = None) -> NodeCount:
    """Fewest nodes on which the role fits.

    Tensor and pipeline parallelism stay. With expert parallelism more nodes mean more replicas,
    over which experts spread; without it they change nothing.
    """
    at_best = None
    runtime = view.recipe.runtime.kind
    pools: dict[str, CachePool] = {runtime: cache_pool(view, runtime)}
    for nodes, wider in _wider_roles(view):
        verdict = forecast(wider, files, pools).verdict
        if verdict != "does not fit":
            at_best = at_best or nodes
        if verdict == "fits":
            return NodeCount(at_best, nodes)
    return NodeCount(at_best, None)


def _wider_roles(view: RoleView) -> Iterator[tuple[int, RoleView]]:
    """The role on every number of nodes that its experts spread over evenly."""
    parallel, per_node = view.recipe.parallel, view.hardware.dies_per_node
    stage = parallel.tp * parallel.pp
    first = -(-stage // per_node)
    if not parallel.ep:
        yield first, view
        return
    experts = expert_count(Sizes(view.config)) + view.recipe.moe.redundant_experts
    for nodes in range(first, _MOST_NODES + 1):
        dp = nodes * per_node // stage
        if experts % (parallel.tp * dp) == 0:
            yield nodes, changed(view, "parallel", dp=dp)


def _forecast_cache(view: RoleView, pool: CachePool, available: tuple[int, int]) -> CacheForecast:
    length, step = view.recipe.scheduler.max_model_len, view.step_tokens
    low, high = (pool.concurrency(size, length, step) for size in available)
    seqs = view.recipe.scheduler.max_num_seqs
    shares = tuple(min(length, pool.longest(size, step, seqs)) for size in available)
    return CacheForecast(
        pool=pool,
        available=available,
        tokens=(int(low * length), int(high * length)),
        concurrency=(low, high),
        full_batch_tokens=(shares[0], shares[1]),
        alignment=alignment_tokens(view, pool),
    )
