"""Rules about static graphs."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.planning.capture import CAPTURE_CAP
from ascend_recipes.resolve import ResolvedRecipe


def sizes_fit_decode(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Full decode graphs are captured for whole requests: multiples of 1 + draft tokens."""
    graph = resolved.recipe.graph
    query = query_length(resolved)
    if graph.kind not in ("full", "full_decode") or not graph.capture_sizes:
        return
    off = [size for size in graph.capture_sizes if size % query]
    if off:
        rounded = sorted({-(-size // query) * query for size in graph.capture_sizes})
        yield finding(
            "graph.spec_multiple",
            at="graph.capture_sizes",
            fix=f"graph.capture_sizes=[{','.join(map(str, rounded))}]",
            off=off,
            query=query,
        )


def largest_batch_is_captured(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A decode batch above the largest capture size runs eagerly, and nobody is told."""
    graph = resolved.recipe.graph
    if graph.kind == "none":
        return
    needed = resolved.recipe.scheduler.max_num_seqs * query_length(resolved)
    largest = max(graph.capture_sizes, default=min(needed, CAPTURE_CAP))
    if largest < needed:
        sizes = (*graph.capture_sizes, needed) if graph.capture_sizes else ()
        covering = f"graph.capture_sizes=[{','.join(map(str, sizes))}]"
        fewer = f"scheduler.max_num_seqs={largest // query_length(resolved)}"
        yield finding(
            "graph.largest_batch_uncaptured",
            at="graph.capture_sizes",
            fix=covering if sizes else fewer,
            first=largest + 1,
            last=needed,
        )


def query_length(resolved: ResolvedRecipe) -> int:
    """Tokens per request in a decode step."""
    spec = resolved.recipe.drafter
    return 1 if spec.kind == "none" else 1 + spec.num_draft_tokens
