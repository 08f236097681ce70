"""Arguments that follow from more than one field: weights, parsers, capture sizes, overrides."""

from collections.abc import Iterator
from pathlib import Path

from ascend_recipes.planning.cache import state_mode
from ascend_recipes.planning.capture import (
    CAPTURE_CAP,
    default_capture_sizes,
    stock_capture_sizes,
)
from ascend_recipes.planning.engine import (
    asks_for_hybrid_manager,
    checkpoint_origin,
    checkpoint_source,
    model_argument,
    recipe_root,
    stretched_rope,
)
from ascend_recipes.planning.environment import download_variables, plan_environment
from ascend_recipes.planning.ledger import Ledger
from ascend_recipes.rendering.arguments import Arguments
from ascend_recipes.rendering.table import ADDITIONAL, COMPILATION, SPECULATIVE
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.graph import query_length
from ascend_recipes.schema.base import Json

MODEL = "MODEL"
"""Target of the positional argument."""

OVERRIDES = "--hf-overrides"
SPARSE_CACHE = f"{ADDITIONAL}.enable_sparse_sfa_c8"
"""Of sparse latent attention only; other models state 8-bit caches in their weights."""

Entry = tuple[str, Json, str]
"""Target, value, reason."""


def put_derived(arguments: Arguments, view: ResolvedRecipe) -> None:
    """Add what no single field says; what the recipe states by name comes first."""
    for part in (_weights, _parsers, _cache, _graph, _drafter, _overrides, _variables):
        for target, value, because in part(view):
            arguments.offer(target, value, because)


def _weights(view: ResolvedRecipe) -> Iterator[Entry]:
    at = checkpoint_origin(view)
    yield MODEL, model_argument(view), at
    if view.recipe.serving.served_model_name is None:
        yield "--served-model-name", view.recipe.model, "model"
    if (source := checkpoint_source(view)) and source.revision:
        yield "--revision", source.revision, f"{at}.revision"
    for name, value, path in download_variables(view):
        yield f"${name}", value, path
    if method := view.quantization.method:
        yield "--quantization", method, f"quantization row {view.checkpoint.format}"


def _parsers(view: ResolvedRecipe) -> Iterator[Entry]:
    row, serving = view.model, view.recipe.serving
    from_row = f"models row {view.recipe.model}"
    if mode := row.tokenizer_mode:
        yield "--tokenizer-mode", mode, from_row
    if parser := serving.reasoning_parser or row.reasoning_parser:
        because = "serving.reasoning_parser" if serving.reasoning_parser else from_row
        yield "--reasoning-parser", parser, because
    if parser := serving.tool_call_parser or row.tool_call_parser:
        because = "serving.tool_call_parser" if serving.tool_call_parser else from_row
        yield "--tool-call-parser", parser, because
        if serving.auto_tool_choice:
            yield "--enable-auto-tool-choice", True, "serving.auto_tool_choice"


def _cache(view: ResolvedRecipe) -> Iterator[Entry]:
    recipe = view.recipe
    if state_mode(view) == "align":
        yield "--mamba-cache-mode", "align", "cache.state_mode"
    if asks_for_hybrid_manager(view):
        because = "caches of several kinds: with a connector vLLM would fall back to one kind"
        yield "--disable-hybrid-kv-cache-manager", False, because
    quantized = recipe.cache.kind == "paged" and recipe.cache.kv_dtype != "model"
    if recipe.attention.kind == "sfa" and quantized:
        yield SPARSE_CACHE, True, "cache.kv_dtype"


def _graph(view: ResolvedRecipe) -> Iterator[Entry]:
    """Capture sizes, where vLLM's own ladder would leave the largest batch without a graph."""
    spec = view.recipe.graph
    if spec.kind == "none" or spec.capture_sizes:
        return
    batch, query = view.recipe.scheduler.max_num_seqs, query_length(view)
    if not on_ladder(min(batch * query, CAPTURE_CAP)):
        sizes: list[Json] = list(default_capture_sizes(batch, query))
        because = f"vLLM's ladder misses {batch} requests of {query} token(s)"
        yield f"{COMPILATION}.cudagraph_capture_sizes", sizes, because


def is_stock_ladder(view: ResolvedRecipe) -> bool:
    """Whether the recipe lists the capture sizes that the runtime would take by itself."""
    spec, scheduler = view.recipe.graph, view.recipe.scheduler
    if spec.kind == "none":
        return False
    step = scheduler.max_num_batched_tokens
    stock = stock_capture_sizes(scheduler.max_num_seqs, query_length(view), step)
    return tuple(spec.capture_sizes) == tuple(stock)


def on_ladder(tokens: int) -> bool:
    """Whether vLLM captures this size by itself: 1, 2, 4, multiples of 8, from 256 on of 16.

    Source: vllm/config/vllm.py, `_set_cudagraph_sizes` of vLLM 0.23.0 to 0.27.1.
    """
    return tokens in (1, 2, 4) or (tokens % 8 == 0 if tokens < 256 else tokens % 16 == 0)


def _drafter(view: ResolvedRecipe) -> Iterator[Entry]:
    if view.drafter and (hub := view.drafter.hub):
        model = str(Path(recipe_root(view), hub.rpartition("/")[2]))
        yield f"{SPECULATIVE}.model", model, f"models row {view.recipe.model}"


def _overrides(view: ResolvedRecipe) -> Iterator[Entry]:
    recipe = view.recipe
    if recipe.checkpoint.rope_factor > 1:
        rope = stretched_rope(view.config, recipe.checkpoint.rope_factor)
        yield OVERRIDES, rope, "checkpoint.rope_factor"
    layers = getattr(recipe.attention, "index_share_layers", 0)
    if layers:
        at = "attention.index_share_layers"
        yield f"{OVERRIDES}.use_index_cache", True, at
        yield f"{OVERRIDES}.index_topk_freq", layers, at


def _variables(view: ResolvedRecipe) -> Iterator[Entry]:
    """Variables of the plan that are not the recipe's own: long contexts, downloads."""
    ledger = Ledger(view)
    for name, value in plan_environment(view, ledger).items():
        if name not in view.recipe.env:
            reason = ledger.reasons[f"env.{name}"]
            yield f"${name}", value, reason.recipe_path or reason.because
