"""Rules about the capture sizes of static graphs; what a mode excludes is in `graph_modes`."""

from collections.abc import Iterator, Sequence

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.planning.capture import CAPTURE_CAP
from ascend_recipes.planning.capture_sets import CaptureDemand, capture_demand, propose_sizes
from ascend_recipes.planning.streams import StreamDemand, stream_budget
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.options import Setting, argument
from ascend_recipes.schema.graph import StaticGraphSpec

_FULL = ("full", "full_decode", "full_and_piecewise")
_PIECEWISE = ("piecewise", "full_and_piecewise")


def sizes_fit_decode(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Full decode graphs are captured for whole requests: multiples of 1 + draft tokens."""
    graph, query = resolved.recipe.graph, query_length(resolved)
    if graph.kind == "none" or graph.kind not in _FULL or not graph.capture_sizes:
        return
    off = [size for size in graph.capture_sizes if size % query]
    if off:
        rounded = sorted({-(-size // query) * query for size in graph.capture_sizes})
        yield finding(
            "graph.spec_multiple",
            at="graph.capture_sizes",
            fix=_sizes(rounded),
            off=off,
            query=query,
        )
    elif graph.kind == "full" and query > 1 and query not in graph.capture_sizes:
        yield finding(
            "graph.spec_min",
            at="graph.capture_sizes",
            fix=_sizes((query, *graph.capture_sizes)),
            query=query,
            smallest=min(graph.capture_sizes),
        )


def largest_batch_is_captured(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A decode batch above the largest capture size runs eagerly, and nobody is told."""
    graph = resolved.recipe.graph
    if graph.kind == "none" or _stated_largest(resolved) is not None:
        return
    seqs, query = resolved.recipe.scheduler.max_num_seqs, query_length(resolved)
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


@holds("vllm_ascend")
def sizes_fit_token_split(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Where tokens are split over tensor parallelism, other sizes are dropped."""
    graph, demand = resolved.recipe.graph, capture_demand(resolved)
    if graph.kind == "none" or demand.split_over == 1 or not graph.capture_sizes:
        return
    dropped = [size for size in graph.capture_sizes if size % demand.split_over]
    if not dropped:
        return
    kept = [size for size in graph.capture_sizes if size not in dropped]
    fix = _sizes(propose_sizes(demand))
    if kept:
        yield finding(
            "graph.sp_dropped",
            at="graph.capture_sizes",
            fix=fix,
            dropped=dropped,
            tp=demand.split_over,
            kept=kept,
        )
    else:
        yield finding(
            "graph.sp_multiple",
            at="graph.capture_sizes",
            fix=fix,
            sizes=graph.capture_sizes,
            tp=demand.split_over,
        )


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
    from ascend_recipes.planning.capture import default_capture_sizes

    seqs = resolved.recipe.scheduler.max_num_seqs
    return graph.capture_sizes or default_capture_sizes(seqs, query_length(resolved))


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
