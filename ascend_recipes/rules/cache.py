"""Rules about caches."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.planning.cache import unified_block_size
from ascend_recipes.resolve import ResolvedRecipe

_CACHE_OF_ATTENTION = {
    "full": "paged",
    "hybrid": "hybrid",
    "mla": "paged",
    "sfa": "paged",
    "dsa": "heterogeneous",
}


def kind_matches_attention(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Each attention kind fills one kind of cache."""
    recipe = resolved.recipe
    expected = _CACHE_OF_ATTENTION[recipe.attention.kind]
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
    """Every attention backend's kernels accept the block size."""
    size = resolved.recipe.cache.block_size
    for key in sorted(set(resolved.backends.values())):
        legal = resolved.registry.backends[key].block_sizes
        if legal and size not in legal:
            yield finding(
                "cache.block_size",
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
        yield finding(
            "scheduler.context_too_long",
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
    if batch > step:
        yield finding(
            "scheduler.decode_batch_exceeds_step",
            at="scheduler.max_num_batched_tokens",
            fix=f"scheduler.max_num_batched_tokens={batch}",
            seqs=recipe.scheduler.max_num_seqs,
            query=query,
            batch=batch,
            step=step,
        )
