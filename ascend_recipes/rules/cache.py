"""Rules about caches."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding, Severity
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
        yield Finding(
            id="cache.kind_mismatch",
            message=f"attention {recipe.attention.kind} fills a {expected} cache",
            at="cache.kind",
            fix=f"cache={expected}",
        )
    elif recipe.cache.kind == "hybrid":
        aligned = recipe.cache.state_mode == "align"
        if recipe.cache.prefix_caching and not aligned:
            yield Finding(
                id="cache.state_mode",
                message="prefix caching of recurrent states keeps snapshots at block boundaries",
                at="cache.state_mode",
                fix="cache.state_mode=align",
            )


def block_size_fits_kernel(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Every attention backend's kernels accept the block size."""
    size = resolved.recipe.cache.block_size
    for key in sorted(set(resolved.backends.values())):
        legal = resolved.registry.backends[key].block_sizes
        if legal and size not in legal:
            yield Finding(
                id="cache.block_size",
                message=f"{key} reads blocks of {', '.join(map(str, legal))} tokens, not {size}",
                at="cache.block_size",
                fix=f"cache.block_size={min(legal, key=lambda n: abs(n - size))}",
            )


def aligned_block_fits_batch(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A state snapshot needs a whole unified block in one step."""
    block = unified_block_size(resolved)
    batch = resolved.recipe.scheduler.max_num_batched_tokens
    if "prefix_align" in resolved.traits and block is not None and block > batch:
        yield Finding(
            id="cache.aligned_block_exceeds_batch",
            message=(
                f"states and pages unify to blocks of {block} tokens, more than one step's "
                f"{batch}: a block boundary would never be reached"
            ),
            at="scheduler.max_num_batched_tokens",
            fix=f"scheduler.max_num_batched_tokens={block}",
            evidence="vllm/config/vllm.py: block_size <= max_num_batched_tokens in align mode",
        )


def context_fits_model(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """No request is longer than the model was made for."""
    length = resolved.recipe.scheduler.max_model_len
    factor = resolved.recipe.checkpoint.rope_factor
    longest = int(resolved.model.max_model_len * factor)
    if length > longest:
        stretched = f" with rope_factor {factor:g}" if factor > 1 else ""
        yield Finding(
            id="scheduler.context_too_long",
            message=f"{resolved.recipe.model} reads {longest} tokens at most{stretched}",
            at="scheduler.max_model_len",
            fix=f"scheduler.max_model_len={longest}",
        )


def decode_batch_fits_step(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A decode role takes its full batch in one step; a smaller step makes requests wait."""
    recipe = resolved.recipe
    drafter = recipe.drafter
    query = 1 if drafter.kind == "none" else 1 + drafter.num_draft_tokens
    batch, step = recipe.scheduler.max_num_seqs * query, recipe.scheduler.max_num_batched_tokens
    if batch > step:
        yield Finding(
            id="scheduler.decode_batch_exceeds_step",
            severity=Severity.WARNING,
            message=(
                f"{recipe.scheduler.max_num_seqs} requests of {query} token(s) are {batch}, more "
                f"than one step's {step}: a full decode batch never runs"
            ),
            at="scheduler.max_num_batched_tokens",
            fix=f"scheduler.max_num_batched_tokens={batch}",
            evidence="vllm-ascend docs/source/tutorials/models/GLM5.2.md:1662 at 182b75ea",
        )
