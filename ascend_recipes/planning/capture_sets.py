"""The smallest good set of capture sizes for full decode graphs.

A batch that is not on the set is padded to the next size; one above the largest size runs without
a graph. Every size costs capture time, memory and, on old drivers, streams. So a good set reaches
the largest batch, pads no batch to more than a given factor, and is as small as that allows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm

from ascend_recipes.planning.capture import CAPTURE_CAP
from ascend_recipes.resolve import ResolvedRecipe

PADDING_FACTOR = 2
"""Largest ratio between a padded and a real batch that a proposal allows by itself."""


@dataclass(frozen=True, kw_only=True)
class CaptureDemand:
    """What a set of capture sizes has to serve."""

    largest_batch: int
    """Requests of the largest decode batch."""
    query_length: int = 1
    """Tokens of a request in a decode step: 1 plus the draft tokens."""
    split_over: int = 1
    """Tensor-parallel size where tokens are split over it (sequence parallelism, context-parallel
    attention, data-parallel shared expert); else 1 (vllm-ascend platform.py:1036-1064)."""
    max_sizes: int | None = None
    """Most sizes that the hardware takes in this mode."""
    cap: int = CAPTURE_CAP
    """Largest size in tokens."""

    @property
    def stride(self) -> int:
        """Every size is a multiple of this many tokens."""
        return lcm(self.query_length, self.split_over)

    @property
    def needed(self) -> int:
        """Tokens of the largest decode batch."""
        return self.largest_batch * self.query_length

    @property
    def largest(self) -> int:
        """Largest size: covers the largest batch, or is what the cap admits."""
        covering = -(-self.needed // self.stride) * self.stride
        return covering if covering <= self.cap else max(1, self.cap // self.stride) * self.stride


def capture_demand(resolved: ResolvedRecipe) -> CaptureDemand:
    """What a recipe's capture sizes have to serve, with the limits of its hardware."""
    recipe, limits = resolved.recipe, resolved.hardware.graph
    tp, drafter = recipe.parallel.tp, recipe.drafter
    most = [limits.max_sizes_with_tp if tp > 1 else None]
    if recipe.graph.kind in ("piecewise", "full_and_piecewise"):
        most.append(limits.max_piecewise_sizes)
    return CaptureDemand(
        largest_batch=recipe.scheduler.max_num_seqs,
        query_length=1 if drafter.kind == "none" else 1 + drafter.num_draft_tokens,
        split_over=tp if splits_tokens(resolved) else 1,
        max_sizes=min((limit for limit in most if limit is not None), default=None),
    )


def splits_tokens(resolved: ResolvedRecipe) -> bool:
    """Whether tokens of a step are split over tensor parallelism.

    After 0.26 a replicated shared expert and context-parallel attention do it by themselves
    (vllm_ascend/platform.py:1043 at 182b75ea).
    """
    return sequence_parallel(resolved) or _replicated(resolved) or _context_split(resolved)


def sequence_parallel(resolved: ResolvedRecipe) -> bool:
    """What vllm-ascend's `enable_sp` says.

    FlashComm1 up to 0.26, to which a replicated shared expert belonged in 0.23
    (ascend_config.py:122 there, utils.py:861 at 0.26.0rc1); later experts that are spread over
    several replicas (utils.py:807 at 182b75ea; vllm/config/parallel.py:673 at 0.27.1).
    """
    recipe, version = resolved.recipe, resolved.runtime_version
    chosen = recipe.parallel.sequence or _context_split(resolved)
    if recipe.runtime.kind != "vllm_ascend" or version == "0.23.0":
        return chosen or _replicated(resolved)
    if version == "0.26.0rc1":
        return chosen
    backend = recipe.extra_args.get("all2all_backend", _SEQUENCE_PARALLEL[0])
    return recipe.parallel.ep and recipe.parallel.dp > 1 and backend in _SEQUENCE_PARALLEL


def _replicated(resolved: ResolvedRecipe) -> bool:
    # Without expert parallelism vllm-ascend drops the switch (ascend_config.py:113 at 182b75ea).
    recipe = resolved.recipe
    asked = recipe.moe.shared_expert == "dp" and recipe.parallel.ep
    return asked and resolved.runtime_version != "0.26.0rc1"


def _context_split(resolved: ResolvedRecipe) -> bool:
    attention = resolved.recipe.attention
    return attention.kind in ("sfa", "dsa") and attention.context_parallel


_SEQUENCE_PARALLEL = (
    "allgather_reducescatter",
    "deepep_high_throughput",
    "deepep_low_latency",
    "mori_high_throughput",
    "mori_low_latency",
    "nixl_ep",
)
"""Exchanges beside which experts take split tokens; the first is the default (…:675-682)."""


def legal_sizes(sizes: Iterable[int], demand: CaptureDemand) -> tuple[int, ...]:
    """Those of `sizes` that a captured decode batch can have, ascending."""
    return tuple(sorted({size for size in sizes if size > 0 and size % demand.stride == 0}))


def propose_sizes(demand: CaptureDemand, factor: int = PADDING_FACTOR) -> tuple[int, ...]:
    """Fewest sizes that pad no batch to more than `factor` times its own size.

    Batches are counted in strides. Where the hardware takes fewer sizes, the factor grows by one
    until they are enough.

    Args:
        demand: what has to be served.
        factor: largest ratio of padded to real strides, at least 2.
    """
    steps = demand.largest // demand.stride
    chosen = _fewest(steps, factor)
    while demand.max_sizes is not None and len(chosen) > max(1, demand.max_sizes):
        factor += 1
        chosen = _fewest(steps, factor)
    return tuple(step * demand.stride for step in chosen)


def worst_padding(sizes: Iterable[int], demand: CaptureDemand) -> float:
    """Largest ratio of captured to real strides over the batches that a set covers."""
    ordered = legal_sizes(sizes, demand)
    below = (0, *ordered[:-1])
    return max(
        (size / (last + demand.stride) for size, last in zip(ordered, below, strict=True)),
        default=0.0,
    )


def _fewest(largest: int, factor: int) -> tuple[int, ...]:
    """From the top down, each next size is as small as the factor allows: optimal by exchange."""
    sizes = [largest]
    while (lower := -(-sizes[-1] // factor) - 1) > 0:
        sizes.append(lower)
    return tuple(reversed(sizes))
