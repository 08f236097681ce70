"""Rules about caches."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding, Severity
from ascend_recipes.findings import finding
from ascend_recipes.memory.hybrid import hybrid_pages
from ascend_recipes.planning.cache import cache_alignment, kv_dtype, unified_block_size
from ascend_recipes.planning.degrees import divisors
from ascend_recipes.resolve import ResolvedRecipe, state_dtype
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.options import (
    Setting,
    argument,
    field,
    pooled_cache,
    removed,
    switched_on,
    variable,
)

CACHE_OF_ATTENTION = {
    "full": "paged",
    "hybrid": "hybrid",
    "mla": "paged",
    "sfa": "paged",
    "dsa": "heterogeneous",
}


def kind_matches_attention(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Each attention kind fills one kind of cache."""
    recipe = resolved.recipe
    expected = CACHE_OF_ATTENTION[recipe.attention.kind]
    if recipe.cache.kind != expected:
        yield finding(
            "cache.kind_mismatch",
            at="cache.kind",
            fix=f"cache={expected}",
            attention=recipe.attention.kind,
            expected=expected,
        )
    elif recipe.cache.kind == "hybrid":
        aligned = recipe.cache.state_mode == "align"
        if recipe.cache.prefix_caching and not aligned:
            yield finding("cache.state_mode", at="cache.state_mode", fix="cache.state_mode=align")


def block_size_fits_kernel(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Every attention backend's kernels accept the block size.

    vllm-ascend puts 128 in the place of other sizes, except where caches are of several kinds.
    """
    size = resolved.recipe.cache.block_size
    for key in sorted(set(resolved.backends.values())):
        legal = resolved.registry.backends[key].block_sizes
        if legal and size not in legal:
            replaced = resolved.recipe.runtime.kind == "vllm_ascend" and legal == (128,)
            yield finding(
                "cache.block_size",
                severity=Severity.WARNING if replaced else None,
                at="cache.block_size",
                fix=f"cache.block_size={min(legal, key=lambda n: abs(n - size))}",
                backend=key,
                legal=legal,
                size=size,
            )


def aligned_block_fits_batch(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A state snapshot needs a whole unified block in one step."""
    block = unified_block_size(resolved)
    batch = resolved.recipe.scheduler.max_num_batched_tokens
    if "prefix_align" in resolved.traits and block is not None and block > batch:
        yield finding(
            "cache.aligned_block_exceeds_batch",
            at="scheduler.max_num_batched_tokens",
            fix=f"scheduler.max_num_batched_tokens={block}",
            block=block,
            step=batch,
        )


def context_fits_model(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """No request is longer than the model was made for."""
    length = resolved.recipe.scheduler.max_model_len
    factor = resolved.recipe.checkpoint.rope_factor
    longest = int(resolved.model.max_model_len * factor)
    if length > longest:
        # vLLM only warns where it is told so; positions it was not made for may give nonsense.
        allowed = switched_on(variable(resolved, "VLLM_ALLOW_LONG_MAX_MODEL_LEN"))
        yield finding(
            "scheduler.context_too_long",
            severity=Severity.WARNING if allowed is not None else None,
            at="scheduler.max_model_len",
            fix=f"scheduler.max_model_len={longest}",
            model=resolved.recipe.model,
            longest=longest,
            factor=factor,
        )


def decode_batch_fits_step(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A decode role takes its full batch in one step; a smaller step makes requests wait."""
    recipe = resolved.recipe
    drafter = recipe.drafter
    query = 1 if drafter.kind == "none" else 1 + drafter.num_draft_tokens
    batch, step = recipe.scheduler.max_num_seqs * query, recipe.scheduler.max_num_batched_tokens
    if batch > step >= recipe.scheduler.max_num_seqs:
        yield finding(
            "scheduler.decode_batch_exceeds_step",
            at="scheduler.max_num_batched_tokens",
            fix=f"scheduler.max_num_batched_tokens={batch}",
            seqs=recipe.scheduler.max_num_seqs,
            query=query,
            batch=batch,
            step=step,
        )


@holds("vllm_ascend")
def state_pages_are_equal(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """vllm-ascend lays recurrent states over keys: both must take the same bytes of a block."""
    recipe = resolved.recipe
    if recipe.cache.kind != "hybrid" or "state_cache" not in resolved.traits:
        return
    if recipe.hardware == "310p" or not _heads_split(resolved, recipe.parallel.tp):
        return
    if not _pages_match(resolved, recipe.parallel.tp):
        legal = [n for n in divisors(recipe.parallel.tp) if n < recipe.parallel.tp]
        fitting = [n for n in legal if _heads_split(resolved, n) and _pages_match(resolved, n)]
        yield finding(
            "cache.state_pages",
            at="parallel.tp",
            fix=f"parallel.tp={max(fitting)}" if fitting else "",
            tp=recipe.parallel.tp,
        )


def prefixes_can_be_found(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A cached prefix ends where a block of every group ends; shorter prompts never hit."""
    recipe = resolved.recipe
    if not recipe.cache.prefix_caching or recipe.cache.kind == "paged":
        return
    alignment, length = _alignment(resolved), recipe.scheduler.max_model_len
    if alignment is not None and alignment >= length:
        at = "cache.prefix_caching"
        yield finding(
            "cache.prefix_min", at=at, fix=f"{at}=false", alignment=alignment, length=length
        )


def kept_prefixes_can_end(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Prefixes are kept where blocks of all caches end, else vLLM stops while it starts.

    Natively the interval is not told without prefix caching; a variable is read in any case.
    """
    recipe, stated = resolved.recipe, _retention(resolved)
    native = recipe.runtime.kind == "native"
    if stated is None or recipe.cache.kind != "heterogeneous":
        return
    if native and not recipe.cache.prefix_caching:
        return
    alignment, interval = _alignment(resolved), stated.value
    if alignment is None:
        return
    if not isinstance(interval, int) or interval < 0 or interval % alignment:
        fix = f"{stated.at}={alignment}"
        yield finding(
            "cache.retention", at=stated.at, fix=fix, interval=interval, alignment=alignment
        )
    elif interval == 0 and _drops_draft_blocks(resolved) and recipe.cache.prefix_caching:
        fix = f"{stated.at}={alignment}"
        yield finding("cache.retention_drafts", at=stated.at, fix=fix, shortest=2 * alignment)


def _alignment(resolved: ResolvedRecipe) -> int | None:
    """Tokens in whose multiples cached prefixes end.

    None where the model or the generation has no such caches, or blocks are too small for them,
    which other rules say.
    """
    try:
        return cache_alignment(resolved) or None
    except KeyError:
        return None


def _retention(resolved: ResolvedRecipe) -> Setting | None:
    """Interval at which prefixes are kept, as the engine is told; none where all are."""
    cache = resolved.recipe.cache
    if resolved.recipe.runtime.kind == "native":
        told = argument(resolved, "prefix_cache_retention_interval")
    else:
        told = variable(resolved, "VLLM_PREFIX_CACHE_RETENTION_INTERVAL")
    if told is not None:
        number = isinstance(told.value, str) and told.value.isdecimal()
        return Setting(int(str(told.value)), told.at) if number else told
    chosen = cache.retention_interval_tokens if cache.kind == "heterogeneous" else 0
    return field(chosen, "cache.retention_interval_tokens")


def _drops_draft_blocks(resolved: ResolvedRecipe) -> bool:
    """Whether the last block of a prefix is computed anew, for what the drafter reads of it."""
    kept = switched_on(argument(resolved, "speculative_config.disable_eagle_block_drop"))
    return resolved.recipe.drafter.kind != "none" and kept is None


def caches_keep_their_kinds(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Without the manager of several kinds every layer's cache is as large as the largest."""
    recipe = resolved.recipe
    at = "extra_args.disable_hybrid_kv_cache_manager"
    stated = argument(resolved, "disable_hybrid_kv_cache_manager")
    if recipe.cache.kind == "paged":
        return
    if switched_on(stated):
        yield finding("cache.uniform", at=at, fix=f"{at}=false", kind=recipe.cache.kind)
    elif stated is None and recipe.cache.kind == "heterogeneous" and _typed_transfer(resolved):
        yield finding("cache.hybrid_manager", at=at, fix=f"{at}=false", kind=recipe.cache.kind)


def _typed_transfer(resolved: ResolvedRecipe) -> bool:
    """Whether a connector is named among the engine arguments; for roles the plan asks itself."""
    return argument(resolved, "kv_transfer_config") is not None


def pooled_states_are_aligned(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A pool of caches finds recurrent states at block boundaries only."""
    recipe = resolved.recipe
    if recipe.cache.kind != "hybrid" or not pooled_cache(resolved):
        return
    if "state_cache" in resolved.traits and not recipe.cache.prefix_caching:
        at = "cache.prefix_caching"
        yield finding("cache.pool_states", at=at, fix=f"{at}=true cache.state_mode=align")


def state_blocks_are_cached(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Blocks of states have a size of their own where prefixes are kept; images may be cut there.

    vllm/config/vllm.py:2302 and 2323 at 0.27.1, the same at 0.23.0, 0.26.0 and 0.32.0.
    """
    cache = resolved.recipe.cache
    stated = argument(resolved, "mamba_block_size")
    whole = resolved.recipe.scheduler.max_model_len
    if stated is not None and stated.value != whole and not cache.prefix_caching:
        yield finding("cache.state_block", at=stated.at, fix=removed(stated.at))
    uncut = switched_on(argument(resolved, "disable_chunked_mm_input"))
    if uncut is not None and "prefix_align" in resolved.traits:
        yield finding("cache.uncut_inputs", at=uncut.at, fix=removed(uncut.at))


@holds("vllm_ascend")
def cache_dtype_is_read(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """With an indexer the engine sets the cache's dtype itself."""
    stated = argument(resolved, "kv_cache_dtype")
    if stated is None or "lightning_indexer" not in resolved.model.traits:
        return
    if stated.value not in ("auto", resolved.recipe.checkpoint.dtype):
        fix = removed(stated.at)
        yield finding("cache.dtype_ignored", at=stated.at, fix=fix, stated=stated.value)


def _pages_match(resolved: ResolvedRecipe, tp: int) -> bool:
    recipe, drafter = resolved.recipe, resolved.recipe.drafter
    pages = hybrid_pages(
        resolved.config,
        tp=tp,
        kernel_block=recipe.cache.block_size,
        model_dtype=kv_dtype(resolved),
        state_dtype=state_dtype(recipe, resolved.config),
        num_draft_tokens=0 if drafter.kind == "none" else drafter.num_draft_tokens,
    )
    block = pages.overlaid_block(recipe.cache.block_size)
    return pages.key_bytes * block == pages.recurrent_bytes


def _heads_split(resolved: ResolvedRecipe, tp: int) -> bool:
    sizes = [resolved.config[field] for field in resolved.model.heads_split]
    return all(isinstance(size, int) and size % tp == 0 for size in sizes)
