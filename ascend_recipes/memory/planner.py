"""The memory plan of a deployment: every role, and what to change where one does not fit."""

from collections.abc import Iterator
from typing import NamedTuple

from ascend_recipes.memory.forecast import (
    CacheForecast,
    NodeCount,
    RoleMemory,
    changed,
    checkpoint_sizes,
    forecast,
    smallest_nodes,
)
from ascend_recipes.memory.headers import CheckpointSizes
from ascend_recipes.memory.views import RoleView, role_views
from ascend_recipes.planning.degrees import legal_tp
from ascend_recipes.planning.engine import checkpoint_folder
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.base import Json

_FULLEST = 0.95


class Remedy(NamedTuple):
    """A change of the recipe and whether it helps."""

    override: str
    verdict: str
    tokens: int
    """Cache tokens for sure."""


class RolePlan(NamedTuple):
    """Memory of a role with its smallest machine and remedies."""

    memory: RoleMemory
    smallest: NodeCount
    remedies: tuple[Remedy, ...]
    """Changes that help; empty where the role fits as it is."""


class MemoryPlan(NamedTuple):
    """Memory of every role of a deployment."""

    roles: tuple[RolePlan, ...]
    missing: str = ""
    """Fact that the model row lacks: then nothing is planned."""

    def to_json(self) -> dict[str, Json]:
        """The `memory` object of `plan --json`."""
        tree: dict[str, Json] = {"roles": [_role_json(role) for role in self.roles]}
        return tree | ({"missing": self.missing} if self.missing else {})


def plan_memory(resolved: ResolvedRecipe) -> MemoryPlan:
    """Plan every role; a model row without the facts gives a plan that names the first missing."""
    files = checkpoint_sizes(str(checkpoint_folder(resolved)))
    try:
        return MemoryPlan(tuple(_plan_role(view, files) for view in role_views(resolved)))
    except KeyError as error:
        return MemoryPlan((), missing=str(error.args[0]))


def _plan_role(view: RoleView, files: CheckpointSizes | None) -> RolePlan:
    memory = forecast(view, files)
    remedies = () if memory.verdict == "fits" else tuple(_remedies(view, files, memory))
    return RolePlan(memory, smallest_nodes(view, files), remedies)


def _remedies(
    view: RoleView, files: CheckpointSizes | None, memory: RoleMemory
) -> Iterator[Remedy]:
    """Single changes that leave more cache, each planned anew."""
    for override, candidate in _candidates(view, memory):
        result = forecast(candidate, files)
        if result.cache.concurrency[0] > memory.cache.concurrency[0]:
            yield Remedy(override, result.verdict, result.cache.tokens[0])


def _candidates(view: RoleView, memory: RoleMemory) -> Iterator[tuple[str, RoleView]]:
    recipe = view.recipe
    at = "" if view.role == "serve" else f"roles.{view.role}."
    low = memory.cache
    longest = low.pool.longest(low.available[0], view.step_tokens)
    if 0 < longest < memory.context:
        field = "scheduler.max_model_len"
        yield f"{at}{field}={longest}", changed(view, "scheduler", max_model_len=longest)
    for tp in _wider(view):
        yield f"{at}parallel.tp={tp}", changed(view, "parallel", tp=tp)
    if recipe.parallel.ep:
        dp = 2 * recipe.parallel.dp
        override = f"{at}parallel.dp={dp} {at}nodes={2 * recipe.nodes}"
        yield override, changed(view, "parallel", dp=dp)
    if recipe.cache.memory_fraction < _FULLEST:
        override = f"{at}cache.memory_fraction={_FULLEST}"
        yield override, changed(view, "cache", memory_fraction=_FULLEST)
    half = recipe.scheduler.max_num_batched_tokens // 2
    override = f"{at}scheduler.max_num_batched_tokens={half}"
    yield override, changed(view, "scheduler", max_num_batched_tokens=half)


def _wider(view: RoleView) -> tuple[int, ...]:
    """The next tensor-parallel size that the heads and the dies of the role admit."""
    parallel = view.recipe.parallel
    dies = view.recipe.nodes * view.hardware.dies_per_node // (parallel.dp * parallel.pp)
    legal = legal_tp(view.split_sizes, dies)
    return tuple(n for n in legal if n > parallel.tp)[:1]


def _role_json(role: RolePlan) -> dict[str, Json]:
    memory = role.memory
    ranges: list[Json] = [
        {"name": r.name, "low": r.low, "high": r.high, "label": r.label, "source": r.source}
        for r in memory.ranges
    ]
    return {
        "role": memory.role,
        "runtime": memory.runtime,
        "dies": memory.dies,
        "nodes": memory.nodes,
        "verdict": memory.verdict,
        "device_bytes": memory.device_bytes,
        "budget_bytes": memory.budget,
        "weights": {
            "source": memory.weights.source,
            "device_bytes": memory.weights.device_bytes,
            "checkpoint_bytes": memory.weights.checkpoint_bytes,
            "components": dict(memory.weights.components),
            "notes": list(memory.weights.notes),
        },
        "ranges": ranges,
        "context_tokens": memory.context,
        "sequences": memory.sequences,
        "caches": {name: _cache_json(item) for name, item in memory.caches.items()},
        "smallest_nodes": {
            "at_best": role.smallest.at_best,
            "for_sure": role.smallest.for_sure,
        },
        "remedies": [
            {"override": r.override, "verdict": r.verdict, "tokens": r.tokens}
            for r in role.remedies
        ],
    }


def _cache_json(item: CacheForecast) -> dict[str, Json]:
    pool = item.pool
    groups: list[Json] = [
        {
            "name": group.name,
            "layers": group.layers,
            "block_tokens": group.block_tokens,
            "window": group.window,
            "blocks_per_sequence": group.state_blocks,
        }
        for group in pool.groups
    ]
    return {
        "bytes_per_token": round(pool.token_bytes, 3),
        "payload_bytes_per_token": round(pool.payload_bytes, 3),
        "bytes_per_sequence": pool.state_bytes,
        "block_bytes": pool.block_bytes,
        "groups": groups,
        "available_bytes": list(item.available),
        "tokens": list(item.tokens),
        "concurrency": [round(value, 2) for value in item.concurrency],
        "full_batch_context_tokens": list(item.full_batch_tokens),
        "prefix_alignment_tokens": item.alignment,
        "notes": list(pool.notes),
    }
