"""The cache part of the plan."""

from ascend_recipes.memory.hybrid import hybrid_pages
from ascend_recipes.planning.degrees import prefix_alignment
from ascend_recipes.planning.ledger import Ledger
from ascend_recipes.resolve import ResolvedRecipe, state_dtype
from ascend_recipes.schema.plan import CachePlan


def plan_cache(resolved: ResolvedRecipe, ledger: Ledger) -> CachePlan:
    """Kernel block, unified block, and element types."""
    cache = resolved.recipe.cache
    hybrid = cache.kind == "hybrid"
    for key, path in _FROM_RECIPE.items():
        ledger.from_recipe(f"cache.{key}", f"cache.{path}")
    if hybrid:
        because = "pages of attention layers and states are made equal"
        ledger.decided("cache.block_size", unified_block_size, because)
        ledger.from_recipe("cache.state_dtype", "cache.state_dtype")
    else:
        ledger.from_recipe("cache.state_dtype", "cache.kind", "no states in this kind of cache")
        ledger.from_recipe("cache.state_mode", "cache.kind", "no states in this kind of cache")
    if cache.kind == "heterogeneous":
        ledger.from_recipe("cache.kv_dtype", "cache.precision")
    return CachePlan(
        kind=cache.kind,
        kernel_block_size=cache.block_size,
        block_size=unified_block_size(resolved) or cache.block_size,
        prefix_caching=cache.prefix_caching,
        kv_dtype=kv_dtype(resolved),
        state_dtype=state_dtype(resolved.recipe, resolved.config) if hybrid else None,
        state_mode=state_mode(resolved),
    )


_FROM_RECIPE = {
    "kind": "kind",
    "kernel_block_size": "block_size",
    "block_size": "block_size",
    "prefix_caching": "prefix_caching",
    "kv_dtype": "kv_dtype",
    "state_mode": "state_mode",
}


def kv_dtype(resolved: ResolvedRecipe) -> str:
    """Element type of keys and values."""
    cache = resolved.recipe.cache
    chosen = "model" if cache.kind == "heterogeneous" else cache.kv_dtype
    return resolved.recipe.checkpoint.dtype if chosen == "model" else chosen


def state_mode(resolved: ResolvedRecipe) -> str:
    """When recurrent states are kept: `align` at block boundaries, else only the running one."""
    return "align" if "prefix_align" in resolved.traits else "none"


def cache_alignment(resolved: ResolvedRecipe) -> int:
    """Tokens in whose multiples a cached prefix ends: a block of every cache ends there."""
    from ascend_recipes.memory.caches import cache_pool
    from ascend_recipes.memory.views import role_view

    pool = cache_pool(role_view(resolved), resolved.recipe.runtime.kind)
    return prefix_alignment([group.block_tokens for group in pool.groups])


def unified_block_size(resolved: ResolvedRecipe) -> int | None:
    """Tokens per block after the runtime has unified pages and states; none without states."""
    if resolved.recipe.cache.kind != "hybrid" or "state_cache" not in resolved.traits:
        return None
    recipe = resolved.recipe
    drafter = recipe.drafter
    pages = hybrid_pages(
        resolved.config,
        tp=recipe.parallel.tp,
        kernel_block=recipe.cache.block_size,
        model_dtype=kv_dtype(resolved),
        state_dtype=state_dtype(recipe, resolved.config),
        num_draft_tokens=0 if drafter.kind == "none" else drafter.num_draft_tokens,
    )
    if recipe.runtime.kind == "vllm_ascend" and recipe.hardware != "310p":
        return pages.overlaid_block(recipe.cache.block_size)
    return pages.block_tokens
