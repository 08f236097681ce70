"""Rules about context-parallel and fine-grained tensor-parallel groups of vllm-ascend."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.planning.degrees import legal_dcp
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.options import argument, key, recompute_scheduling, transfer, whole

_FINE = ("o_proj_tp", "lm_head_tp", "embedding_tp", "mlp_tp")


@holds("vllm_ascend")
def context_ways_are_legal(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """How many dies may share the cache of one sequence follows from heads and attention."""
    recipe = resolved.recipe
    ways, kind = recipe.parallel.dcp, recipe.attention.kind
    if ways == 1:
        return
    legal = legal_dcp(kind, recipe.parallel.tp, _kv_heads(resolved))
    if kind == "sfa" and recipe.hardware == "a5":
        yield finding("parallel.sfa_dcp_hardware", at="parallel.dcp", fix="parallel.dcp=1")
    elif kind == "sfa" and ways not in legal:
        yield finding(
            "parallel.sfa_dcp",
            at="parallel.dcp",
            fix=f"parallel.dcp={recipe.parallel.tp}",
            ways=ways,
            tp=recipe.parallel.tp,
        )
    elif ways not in legal:
        yield finding(
            "parallel.dcp",
            at="parallel.dcp",
            fix=f"parallel.dcp={max((n for n in legal if n < ways), default=1)}",
            ways=ways,
            tp=recipe.parallel.tp,
            heads=_kv_heads(resolved),
            kind=kind,
            legal=legal,
        )


@holds("vllm_ascend")
def context_blocks_are_whole(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A cache that moves between engines is dealt out in whole blocks."""
    recipe = resolved.recipe
    moves = any(transfer(resolved, role) for role in recipe.roles)
    block, dealt = recipe.cache.block_size, recipe.parallel.dcp_interleave_tokens
    if recipe.parallel.dcp > 1 and moves and dealt != block:
        yield finding(
            "cache.cp_interleave",
            at="parallel.dcp_interleave_tokens",
            fix=f"parallel.dcp_interleave_tokens={block}",
            dealt=dealt,
            block=block,
        )


@holds("vllm_ascend")
def context_parallel_is_sound(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Combinations with decode context parallelism for which wrong text or stops are reported."""
    recipe, parallel = resolved.recipe, resolved.recipe.parallel
    if parallel.dcp == 1:
        return
    packed = recipe.cache.kind == "paged" and recipe.cache.kv_dtype != "model"
    if recipe.attention.kind == "sfa" and packed:
        yield finding(
            "attention.dcp_sfa_c8",
            at="cache.kv_dtype",
            fix="cache.kv_dtype=model",
            ways=parallel.dcp,
        )


@holds("vllm_ascend", until="0.26.0rc1")
def context_pages_are_equal(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Pages of several sizes under decode context parallelism stopped the 0.23 release."""
    sizes = "lightning_indexer" in resolved.model.traits or resolved.recipe.cache.kind != "paged"
    if resolved.recipe.parallel.dcp > 1 and sizes:
        ways = resolved.recipe.parallel.dcp
        yield finding("cache.dcp_pages", at="parallel.dcp", fix="parallel.dcp=1", ways=ways)


@holds("vllm_ascend")
def drafter_shares_context(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A grouped-query drafter obeys the rule of grouped queries for context parallelism."""
    ways, facts = resolved.recipe.parallel.dcp, resolved.drafter
    stated = argument(resolved, "speculative_config.draft_tensor_parallel_size")
    if ways == 1 or facts is None or facts.layer_kind != "full_attention":
        return
    tp = stated.value if stated and isinstance(stated.value, int) else resolved.recipe.parallel.tp
    heads, queries = _kv_heads(resolved), resolved.config.get("num_attention_heads")
    assert isinstance(queries, int)
    most = tp // heads if tp > heads else 1
    if ways > most or queries // heads % ways:
        legal = [n for n in range(1, most + 1) if n < ways and queries // heads % n == 0]
        yield finding(
            "drafter.draft_dcp",
            at="parallel.dcp",
            fix=f"parallel.dcp={max(legal, default=1)}",
            heads=heads,
            tp=tp,
            ways=ways,
        )


@holds("vllm_ascend")
def fine_sizes_divide(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Own tensor-parallel sizes split data parallelism, of a mixture of experts."""
    parallel = resolved.recipe.parallel
    for name in _FINE:
        size = getattr(parallel, name)
        if not size:
            continue
        at = f"parallel.{name}"
        if "moe" not in resolved.model.traits:
            yield finding("parallel.finegrained_dense", at=at, fix=f"{at}=0", name=name)
        elif parallel.dp % size:
            yield finding(
                "parallel.finegrained_tp",
                at=at,
                fix=f"{at}=0",
                name=name,
                size=size,
                dp=parallel.dp,
            )


@holds("vllm_ascend")
def fine_sizes_have_their_role(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The output projection's own size is for decode roles with graphs and even batches."""
    recipe, parallel = resolved.recipe, resolved.recipe.parallel
    if parallel.o_proj_tp:
        at = "parallel.o_proj_tp"
        if parallel.tp > 1:
            yield finding("parallel.oproj_tp", at=at, fix=f"{at}=0", tp=parallel.tp)
        if recipe.graph.kind == "none":
            yield finding("parallel.oproj_eager", at=at, fix=f"{at}=0")
        if "serve" in recipe.roles and not transfer(resolved):
            yield finding("parallel.oproj_role", at=at, fix=f"{at}=0")
    uneven = recompute_scheduling(resolved) is None
    for name in ("o_proj_tp", "embedding_tp"):
        if getattr(parallel, name) and uneven:
            at = f"parallel.{name}"
            yield finding("parallel.oproj_recompute", at=at, fix=f"{at}=0", name=name)


@holds("vllm_ascend")
def low_rank_projection_has_its_role(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The low-rank output projection's own size: decode roles with graphs, of experts' replicas."""
    recipe = resolved.recipe
    size = key(resolved, "finegrained_tp_config.olora_tensor_parallel_size")
    ranks = whole(size) if size is not None else None
    if size is None or not ranks:
        return
    fix = f"{size.at}=0"
    receives = transfer(resolved).get("kv_role") == "kv_consumer" or "decode" in recipe.roles
    if recipe.graph.kind == "none" or not receives:
        yield finding("parallel.olora_role", at=size.at, fix=fix)
    if recipe.parallel.dp % ranks or "moe" not in resolved.model.traits:
        yield finding("parallel.olora_size", at=size.at, fix=fix, size=ranks, dp=recipe.parallel.dp)


def context_blocks_hold_shares(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A block holds a whole number of what each die takes in turn (vllm/config/vllm.py:2293)."""
    parallel, block = resolved.recipe.parallel, resolved.recipe.cache.block_size
    dealt = parallel.dcp_interleave_tokens
    if parallel.dcp > 1 and dealt and (dealt > block or block % dealt):
        at = "parallel.dcp_interleave_tokens"
        yield finding("cache.interleave", at=at, fix=f"{at}={block}", dealt=dealt, block=block)


def fine_sizes_are_not_for_prefill(
    prefill: ResolvedRecipe, _decode: ResolvedRecipe
) -> Iterator[Finding]:
    """A prefill role has no own size of the output projection."""
    if prefill.recipe.runtime.kind == "vllm_ascend" and prefill.recipe.parallel.o_proj_tp:
        at = "roles.prefill.parallel.o_proj_tp"
        yield finding("parallel.oproj_role", at=at, fix=f"{at}=0")


def _kv_heads(resolved: ResolvedRecipe) -> int:
    heads = resolved.config.get("num_key_value_heads", 1)
    assert isinstance(heads, int)
    return heads
