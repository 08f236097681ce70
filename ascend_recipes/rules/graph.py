"""Rules about the capture sizes of static graphs; what a mode excludes is in `graph_modes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ascend_recipes.errors import Finding, Severity
from ascend_recipes.findings import finding
from ascend_recipes.planning.capture import (
    CAPTURE_CAP,
    default_capture_sizes,
    rounded_sizes,
    stock_capture_sizes,
)
from ascend_recipes.planning.capture_sets import (
    CaptureDemand,
    capture_demand,
    propose_sizes,
    sequence_parallel,
)
from ascend_recipes.planning.streams import StreamDemand, stream_budget
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.options import Setting, argument
from ascend_recipes.schema.graph import StaticGraphSpec
from ascend_recipes.versions import in_range

if TYPE_CHECKING:
    from ascend_recipes.machine import InstalledVersions

_FULL = ("full", "full_decode", "full_and_piecewise")
_PIECEWISE = ("piecewise", "full_and_piecewise")


def sizes_fit_decode(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Full decode graphs are captured for whole requests: multiples of 1 + draft tokens.

    vLLM rounds other sizes up, and stops where none is left.
    """
    graph, query = resolved.recipe.graph, query_length(resolved)
    off = sizes_off_requests(resolved)
    if graph.kind == "none" or graph.kind not in _FULL or not graph.capture_sizes:
        return
    rounded = _whole(graph.capture_sizes, query)
    taken = rounded_sizes(graph.capture_sizes, query, max(graph.capture_sizes))
    if off and not taken:
        yield finding(
            "graph.spec_void",
            at="graph.capture_sizes",
            fix=_sizes(rounded),
            sizes=graph.capture_sizes,
            query=query,
        )
    elif off:
        yield finding(
            "graph.spec_multiple",
            at="graph.capture_sizes",
            fix=_sizes(rounded),
            off=off,
            query=query,
            taken=taken,
        )
    elif graph.kind == "full" and query > 1:
        # Where tokens are split over dies, one request is padded to a multiple of them.
        smallest = capture_demand(resolved).stride
        if smallest not in graph.capture_sizes:
            yield finding(
                "graph.spec_min",
                at="graph.capture_sizes",
                fix=_sizes(sorted({smallest, *graph.capture_sizes})),
                query=smallest,
                smallest=min(graph.capture_sizes),
            )


def sizes_off_requests(resolved: ResolvedRecipe) -> list[int]:
    """Listed sizes of full decode graphs that hold no whole number of requests."""
    graph = resolved.recipe.graph
    if graph.kind == "none" or graph.kind not in _FULL:
        return []
    return [size for size in graph.capture_sizes if size % query_length(resolved)]


def early_releases_round_nothing(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """Before 0.12 vllm-ascend refused what vLLM rounds since."""
    off, query = sizes_off_requests(resolved), query_length(resolved)
    graph = resolved.recipe.graph
    if off and graph.kind != "none" and in_range(installed.vllm_ascend, _REFUSING):
        rounded = _whole(graph.capture_sizes, query)
        yield finding(
            "graph.spec_multiple",
            severity=Severity.ERROR,
            at="graph.capture_sizes",
            fix=_sizes(rounded),
            evidence="vllm_ascend/worker/model_runner_v1.py:3572 at v0.11.0; issue 3910",
            off=off,
            query=query,
            taken=rounded,
        )


_REFUSING = "<0.12"
"""0.12.0rc1 calls vLLM's rounding (worker/model_runner_v1.py:3046 there)."""


def _whole(sizes: Sequence[int], multiple: int) -> list[int]:
    return sorted({-(-size // multiple) * multiple for size in sizes})


@holds("vllm_ascend")
def drafts_fit_token_split(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Where tokens are split, the larger of 1 + drafts and the ranks must hold the other whole."""
    recipe, graph = resolved.recipe, resolved.recipe.graph
    query, ranks = query_length(resolved), recipe.parallel.tp
    if graph.kind not in _FULL or 1 in (query, ranks) or not sequence_parallel(resolved):
        return
    chosen = resolved.runtime_version in _CHOSEN_SPLIT
    if max(query, ranks) % min(query, ranks):
        fitting = max(n for n in range(1, query) if ranks % n == 0)
        yield finding(
            "graph.sp_drafts",
            # Later documents state such drafts for deployments whose tokens are split unasked.
            severity=None if chosen else Severity.WARNING,
            at="drafter.num_draft_tokens",
            fix=f"drafter.num_draft_tokens={fitting - 1}" if fitting > 1 else "drafter=none",
            drafts=query - 1,
            query=query,
            tp=ranks,
        )


def largest_batch_is_captured(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A decode batch above the largest capture size runs eagerly, and nobody is told."""
    graph = resolved.recipe.graph
    if graph.kind == "none" or _stated_largest(resolved) is not None:
        return
    scheduler, query = resolved.recipe.scheduler, query_length(resolved)
    # No step holds more whole requests than its tokens: `decode_batch_exceeds_step` says that.
    seqs = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens // query)
    needed = seqs * query
    if not graph.capture_sizes:
        if needed > CAPTURE_CAP:
            yield _capped(resolved, needed)
        return
    largest = max(graph.capture_sizes)
    if largest < needed:
        yield finding(
            "graph.off_stride",
            at="graph.capture_sizes",
            fix=_sizes((*graph.capture_sizes, _covering(resolved, needed))),
            needed=needed,
            sizes=graph.capture_sizes,
            first=largest + 1,
            fewer=largest // query,
        )


def largest_size_is_one(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The largest size is said once: by the list, or by the number."""
    graph, stated = resolved.recipe.graph, _stated_largest(resolved)
    if graph.kind == "none" or stated is None:
        return
    if graph.capture_sizes and stated.value != max(graph.capture_sizes):
        yield finding(
            "graph.max_mismatch",
            at=stated.at,
            fix=f"{stated.at}={max(graph.capture_sizes)}",
            stated=stated.value,
            largest=max(graph.capture_sizes),
        )
    needed = resolved.recipe.scheduler.max_num_seqs * query_length(resolved)
    if not graph.capture_sizes and isinstance(stated.value, int) and stated.value < needed:
        yield finding(
            "graph.max_too_small",
            at=stated.at,
            fix=f"{stated.at}={_covering(resolved, needed)}",
            stated=stated.value,
            needed=needed,
        )


_CHOSEN_SPLIT = ("0.23.0", "0.26.0rc1")
"""Versions that split tokens only where they are told to."""


@holds("vllm_ascend")
def sizes_fit_token_split(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Where tokens are split over tensor parallelism, other sizes are dropped.

    The same for sizes that are listed and for the ladder that is taken where none are.
    """
    graph, demand = resolved.recipe.graph, capture_demand(resolved)
    if graph.kind == "none" or demand.split_over == 1:
        return
    sizes = graph.capture_sizes or _ladder(resolved)
    dropped = [size for size in sizes if size % demand.split_over]
    kept = [size for size in sizes if size not in dropped]
    missed = max(kept, default=0) < min(demand.needed, demand.largest)
    at, fix, tp = "graph.capture_sizes", _sizes(propose_sizes(demand)), demand.split_over
    if not kept:
        # One document calls a ladder without such a size validated, against the source.
        severity = None if graph.capture_sizes else Severity.WARNING
        yield finding("graph.sp_multiple", severity=severity, at=at, fix=fix, sizes=sizes, tp=tp)
    elif dropped and (graph.capture_sizes or missed):
        yield finding("graph.sp_dropped", at=at, fix=fix, dropped=dropped, tp=tp, kept=kept)


@holds("vllm_ascend")
def hardware_keeps_sizes(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Some generations take only few sizes; the rest is thinned out or cannot be captured."""
    graph = resolved.recipe.graph
    if graph.kind == "none":
        return
    sizes = _planned_sizes(resolved, graph)
    most = resolved.hardware.graph.max_piecewise_sizes
    demand = capture_demand(resolved)
    if graph.kind in _PIECEWISE and most is not None and len(sizes) > most:
        yield finding(
            "graph.a5_prune",
            at="graph.capture_sizes",
            fix=_sizes(propose_sizes(demand)),
            hardware=resolved.recipe.hardware,
            most=most,
            count=len(sizes),
        )
    few = resolved.hardware.graph.max_sizes_with_tp
    if resolved.recipe.parallel.tp > 1 and few is not None and len(sizes) > few:
        yield finding(
            "graph.too_many_events",
            at="graph.capture_sizes",
            fix=_sizes(propose_sizes(demand)),
            hardware=resolved.recipe.hardware,
            few=few,
            count=len(sizes),
        )


@holds("vllm_ascend")
def streams_hold_graphs(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Piecewise graphs take streams for every layer and size, on drivers before HDK 25.5.1."""
    graph = resolved.recipe.graph
    if graph.kind not in _PIECEWISE or graph.kind == "none" or resolved.recipe.requires.driver:
        return
    sizes, most = _planned_sizes(resolved, graph), stream_budget(_streams(resolved)).max_sizes
    if len(sizes) > most or most <= _SCARCE:
        yield finding(
            "graph.stream_budget",
            at="graph.capture_sizes" if graph.capture_sizes else "graph.kind",
            fix="graph.kind=full_decode",
            count=len(sizes),
            layers=sum(layer.count for layer in resolved.model.layers),
            most=most,
        )


_SCARCE = 3
"""Sizes for which the formula has been too generous (vllm-ascend issue 3869: none left at one)."""


def _streams(resolved: ResolvedRecipe) -> StreamDemand:
    recipe = resolved.recipe
    return StreamDemand(
        layers=sum(layer.count for layer in resolved.model.layers),
        draft_layers=(resolved.drafter.layers or 0) if resolved.drafter else 0,
        dp=recipe.parallel.dp,
        tp=recipe.parallel.tp,
        expert_parallel=recipe.parallel.ep,
        moe="moe" in resolved.model.traits,
        side_stream=recipe.moe.overlap_shared_expert,
        context_parallel=recipe.parallel.dcp > 1,
        vector_expansion=recipe.env.get("HCCL_OP_EXPANSION_MODE") == "AIV",
    )


def _planned_sizes(resolved: ResolvedRecipe, graph: StaticGraphSpec) -> Sequence[int]:
    """What the recipe lists, or the ladder that is planned for it."""
    seqs = resolved.recipe.scheduler.max_num_seqs
    return graph.capture_sizes or default_capture_sizes(seqs, query_length(resolved))


def _ladder(resolved: ResolvedRecipe) -> Sequence[int]:
    """What vllm-ascend is told, or takes by itself, before sizes are dropped or rounded."""
    from ascend_recipes.rendering.derived import on_ladder

    scheduler, query = resolved.recipe.scheduler, query_length(resolved)
    tokens = scheduler.max_num_seqs * query
    if not on_ladder(min(tokens, CAPTURE_CAP)):
        return default_capture_sizes(scheduler.max_num_seqs, query)
    return stock_capture_sizes(tokens, 1, scheduler.max_num_batched_tokens)


def _capped(resolved: ResolvedRecipe, needed: int) -> Finding:
    demand = capture_demand(resolved)
    raised = CaptureDemand(
        largest_batch=demand.largest_batch,
        query_length=demand.query_length,
        split_over=demand.split_over,
        max_sizes=demand.max_sizes,
        cap=-(-needed // demand.stride) * demand.stride,
    )
    return finding(
        "graph.cap_512",
        at="graph.capture_sizes",
        fix=_sizes(propose_sizes(raised)),
        seqs=resolved.recipe.scheduler.max_num_seqs,
        query=demand.query_length,
        needed=needed,
        cap=CAPTURE_CAP,
        fewer=CAPTURE_CAP // demand.query_length,
    )


def _covering(resolved: ResolvedRecipe, needed: int) -> int:
    """The smallest legal size that holds `needed` tokens."""
    stride = capture_demand(resolved).stride
    return -(-needed // stride) * stride


def _stated_largest(resolved: ResolvedRecipe) -> Setting | None:
    nested = argument(resolved, "compilation_config.max_cudagraph_capture_size")
    return nested or argument(resolved, "max_cudagraph_capture_size")


def _sizes(sizes: Sequence[int]) -> str:
    return f"graph.capture_sizes=[{','.join(map(str, sizes))}]"


def query_length(resolved: ResolvedRecipe) -> int:
    """Tokens per request in a decode step."""
    spec = resolved.recipe.drafter
    return 1 if spec.kind == "none" else 1 + spec.num_draft_tokens
