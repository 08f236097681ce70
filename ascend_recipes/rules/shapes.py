"""Rules about sizes that must fit each other: widths after the split, steps, capabilities."""

from collections.abc import Iterator
from math import prod
from typing import cast

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.planning.degrees import divisors
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.options import argument, removed

_BLOCK = 128
"""Rows and columns that share a scale in block-wise 8-bit float weights."""

_SCALE_PAIR = 64
"""Inputs of two scales as A5's operators take them; our loader parts blocks of weights there."""

_FRACTAL = 32
"""8-bit columns of a fractal tile."""

_CACHE_ABILITY = {"int8": "cache_int8", "fp8": "cache_fp8"}


def feed_forward_splits(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Dense feed-forward layers are split evenly, in whole blocks of what shares a scale."""
    width = resolved.config.get("intermediate_size")
    tp = resolved.recipe.parallel.tp
    sparse = resolved.config.get("first_k_dense_replace") == 0
    if not isinstance(width, int) or resolved.recipe.parallel.mlp_tp or sparse:
        return
    if "moe" in resolved.model.traits and "first_k_dense_replace" not in resolved.config:
        return
    unit = _unit(resolved)
    if width % (tp * unit) == 0 or tp == 1:
        return
    legal = [n for n in divisors(width // unit) if n < tp and tp % n == 0]
    fix = f"parallel.tp={max(legal, default=1)}"
    if width % tp:
        yield finding("parallel.width", at="parallel.tp", fix=fix, width=width, tp=tp)
    else:
        yield finding(
            "quant.tp_shard",
            at="parallel.tp",
            fix=fix,
            width=width,
            tp=tp,
            each=width // tp,
            unit=unit,
            format=resolved.checkpoint.format,
        )


def shared_experts_split(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Block-wise 8-bit layers of the shared expert are split in whole blocks, natively in less."""
    sizes = [resolved.config.get(name) for name in ("moe_intermediate_size", "n_shared_experts")]
    tp = resolved.recipe.parallel.tp
    if resolved.checkpoint.format != "fp8_fp4" or not all(isinstance(n, int) for n in sizes):
        return
    width = prod(cast(list[int], sizes))
    unit = _SCALE_PAIR if resolved.recipe.runtime.kind == "native" else _BLOCK
    if width % (tp * unit) and tp > 1:
        legal = [n for n in divisors(width // unit) if n < tp and tp % n == 0]
        yield finding(
            "quant.tp_shard",
            at="parallel.tp",
            fix=f"parallel.tp={max(legal, default=1)}",
            width=width,
            tp=tp,
            each=width // tp,
            unit=unit,
            format=resolved.checkpoint.format,
        )


def _unit(resolved: ResolvedRecipe) -> int:
    """Columns that cannot be parted."""
    if resolved.checkpoint.format == "fp8_block":
        return _BLOCK
    quant = resolved.recipe.quant
    return _FRACTAL if quant.kind != "none" and quant.weight_layout == "nz" else 1


def requests_fit_step(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A step has at least one token for each request; without chunks it holds whole prompts."""
    scheduler = resolved.recipe.scheduler
    step, seqs = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    if step < seqs:
        at = "scheduler.max_num_batched_tokens"
        fix = f"{at}={seqs * _query(resolved)}"
        yield finding("scheduler.step_below_requests", at=at, fix=fix, step=step, seqs=seqs)
    chunks = argument(resolved, "enable_chunked_prefill")
    if chunks is not None and chunks.value is False and step < scheduler.max_model_len:
        yield finding(
            "scheduler.whole_prompts",
            at=chunks.at,
            fix=removed(chunks.at),
            step=step,
            length=scheduler.max_model_len,
        )


def cache_type_is_stored(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The generation stores keys and values of the chosen type."""
    cache = resolved.recipe.cache
    needed = None if cache.kind == "heterogeneous" else _CACHE_ABILITY.get(cache.kv_dtype)
    if needed is None or needed in resolved.hardware.capabilities:
        return
    rows = resolved.registry.hardware
    yield finding(
        "cache.hardware_dtype",
        at="cache.kv_dtype",
        fix="cache.kv_dtype=model",
        dtype="" if cache.kind == "heterogeneous" else cache.kv_dtype,
        hardware=resolved.recipe.hardware,
        able=[key for key in rows if needed in rows[key].capabilities] or "-",
    )


@holds("vllm_ascend")
def reshaped_writes_have_a_cache(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Writing block by block is for 8-bit indexer caches."""
    attention = resolved.recipe.attention
    if attention.kind == "sfa" and attention.reshaped_writes and attention.indexer_cache == "model":
        at = "attention.reshaped_writes"
        yield finding("attention.reshape_idle", at=at, fix=f"{at}=false")


def heads_have_a_kernel(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The attention of some generations has kernels for few numbers of heads a die.

    A tiny model has fewer heads, and its plan lifts the limit.
    """
    recipe = resolved.recipe
    heads = resolved.config.get("num_attention_heads")
    rows = [resolved.registry.backends[key] for key in set(resolved.backends.values())]
    legal = {number for row in rows for number in row.heads_per_die.get(recipe.hardware, ())}
    if not legal or not isinstance(heads, int) or recipe.scale.kind == "tiny":
        return
    if heads // recipe.parallel.tp not in legal:
        tp = max((n for n in divisors(heads) if heads // n in legal), default=0)
        yield finding(
            "attention.heads_a5",
            at="parallel.tp",
            fix=f"parallel.tp={tp} parallel.dp={_replicas(resolved, tp)}" if tp else "",
            each=heads // recipe.parallel.tp,
            legal=sorted(legal),
        )


def _replicas(resolved: ResolvedRecipe, tp: int) -> int:
    """Data-parallel size that keeps the number of dies."""
    parallel = resolved.recipe.parallel
    return max(1, parallel.tp * parallel.dp // tp)


@holds("vllm_ascend")
def small_machines_split_tensors_only(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """310P is documented with tensor parallelism alone."""
    parallel = resolved.recipe.parallel
    if resolved.recipe.hardware == "310p" and parallel.dp * parallel.pp > 1:
        at = "parallel.dp" if parallel.dp > 1 else "parallel.pp"
        yield finding("hardware.tp_only", at=at, fix="parallel.dp=1 parallel.pp=1")


@holds("native")
def backends_are_the_plans(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The plan chooses attention backends; one that is named besides is not asked."""
    for name in ("attention_backend", "attention_config.backend"):
        named = argument(resolved, name)
        if named is not None and named.value is not None:
            fix = removed(named.at)
            yield finding("attention.backend_ignored", at=named.at, fix=fix, backend=named.value)


def _query(resolved: ResolvedRecipe) -> int:
    drafter = resolved.recipe.drafter
    return 1 if drafter.kind == "none" else 1 + drafter.num_draft_tokens
