"""Cache layouts: what a token and a sequence cost on one device, for either runtime."""

from collections.abc import Mapping

from ascend_recipes.memory.compressed import compressed_caches
from ascend_recipes.memory.grouping import cache_layers, repeating_groups, tuple_groups
from ascend_recipes.memory.hybrid import DTYPE_BYTES, HybridPages, hybrid_pages
from ascend_recipes.memory.pool import CachePool, PoolGroup
from ascend_recipes.memory.views import RoleView
from ascend_recipes.planning.degrees import prefix_alignment

RUNTIMES = ("native", "vllm_ascend")

_INDEXED = "indexed_latent_attention"
_TILE = 128
"""Elements of a latent that share a scale in the packed 8-bit cache."""


def cache_pool(view: RoleView, runtime: str) -> CachePool:
    """The pool of one device of a role.

    `native` is vLLM 0.32's own arithmetic with our pages; `vllm_ascend` is that of vllm-ascend at
    182b75ea. They differ where pages have several sizes.
    """
    kind = view.recipe.cache.kind
    if kind == "hybrid":
        return _hybrid_pool(view, runtime)
    if kind == "heterogeneous":
        return _heterogeneous_pool(view, runtime)
    return _paged_pool(view, runtime)


def alignment_tokens(view: RoleView, pool: CachePool) -> int | None:
    """Tokens in whose multiples a cached prefix is found; none without prefix caching."""
    if not view.recipe.cache.prefix_caching:
        return None
    blocks = [group.block_tokens for group in pool.groups]
    return prefix_alignment(blocks, 1)


def _paged_pool(view: RoleView, runtime: str) -> CachePool:
    """One group; with decode context parallelism a block is spread over the dies of its group.

    An indexer's keys are on each of those dies in full.
    """
    block, dcp = view.recipe.cache.block_size, view.recipe.parallel.dcp
    main, index = _token_parts(view)
    tokens = block * dcp
    group = PoolGroup(
        name="all layers", layers=sum(view.cache_layers.values()), block_tokens=tokens
    )
    payload = {name: size / dcp for name, size in main.items()} | index
    size = block * sum(main.values()) + tokens * sum(index.values())
    return CachePool(
        runtime=runtime, block_bytes=size, groups=(group,), payload=payload, notes=_notes(view)
    )


def _token_parts(view: RoleView) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of a token over all layers: what is read by attention, and what by the indexer."""
    counts = view.cache_layers
    total = sum(counts.values())
    if "kv_lora_rank" not in view.config:
        return {"keys and values": total * _grouped_query_bytes(view)}, {}
    main = {
        "latent": total * latent_bytes(view.config, view.kv_dtype, view.recipe.checkpoint.dtype)
    }
    indexed = counts.get(_INDEXED, 0)
    return main, {"index keys": indexed * _index_bytes(view)} if indexed else {}


def _grouped_query_bytes(view: RoleView) -> int:
    heads = max(1, _size(view.config, "num_key_value_heads") // view.recipe.parallel.tp)
    return 2 * heads * _size(view.config, "head_dim") * DTYPE_BYTES[view.kv_dtype]


def latent_bytes(config: Mapping[str, object], kv_dtype: str, model_dtype: str) -> int:
    """Bytes of a latent of one token: plain, or packed in 8 bits.

    Packed is the latent in 8 bits, the rotary part in the model's dtype, and a float32 scale for
    every 128 elements (vllm-ascend attention/utils.py:22-44 at 182b75ea: 656 bytes).
    """
    latent, rotary = _size(config, "kv_lora_rank"), _size(config, "qk_rope_head_dim")
    if kv_dtype == model_dtype:
        return (latent + rotary) * DTYPE_BYTES[model_dtype]
    return latent + rotary * DTYPE_BYTES[model_dtype] + 4 * (latent // _TILE)


def _index_bytes(view: RoleView) -> int:
    """Bytes of one token's index key: 8 bits have a scale each, float16 beside int8, else float32.

    On A5 the 8-bit index is float8 whatever the recipe calls it.
    """
    attention = view.recipe.attention
    chosen = attention.indexer_cache if attention.kind == "sfa" else "model"
    head = _size(view.config, "index_head_dim")
    if chosen == "model":
        return head * DTYPE_BYTES[view.recipe.checkpoint.dtype]
    floating = chosen == "fp8" or "cache_fp8" in view.hardware.capabilities
    return head + (4 if floating else 2)


def _hybrid_pool(view: RoleView, runtime: str) -> CachePool:
    recipe = view.recipe
    pages = hybrid_pages(
        view.config,
        tp=recipe.parallel.tp,
        kernel_block=recipe.cache.block_size,
        model_dtype=view.kv_dtype,
        state_dtype=view.state_dtype,
        num_draft_tokens=view.draft_tokens,
    )
    counts = view.cache_layers
    states = sum(count for kind, count in counts.items() if keeps_state(kind))
    attention = sum(counts.values()) - states
    overlaid = runtime == "vllm_ascend" and recipe.hardware != "310p"
    block, page = _overlaid_page(pages, recipe.cache.block_size) if overlaid else _page(pages)
    length = group_length(attention, states)
    held = 1 + view.draft_tokens + (1 if view.keeps_snapshots else 0)
    groups = [
        PoolGroup(name="attention", layers=n, block_tokens=block) for n in _cut(attention, length)
    ]
    groups += [
        PoolGroup(name="states", layers=n, block_tokens=block, state_blocks=held)
        for n in _cut(states, length)
    ]
    notes = _notes(view)
    if overlaid and pages.key_bytes * block != pages.recurrent_bytes:
        notes += ("vllm-ascend stops here: state pages and key pages are not equal",)
    return CachePool(
        runtime=runtime,
        block_bytes=length * page,
        groups=tuple(groups),
        payload={"keys and values": attention * pages.token_bytes},
        states={
            "recurrent states": states * pages.recurrent_bytes,
            "convolution windows": states * pages.window_bytes,
        },
        notes=notes,
    )


def keeps_state(kind: str) -> bool:
    """Whether layers of a kind keep a recurrent state in place of tokens."""
    return kind == "linear_attention" or kind.endswith("delta_attention")


def _page(pages: HybridPages) -> tuple[int, int]:
    """vLLM, and vllm-ascend on 310P: a state page is filled up to an attention page."""
    return pages.block_tokens, pages.block_tokens * pages.token_bytes


def _overlaid_page(pages: HybridPages, kernel_block: int) -> tuple[int, int]:
    """vllm-ascend: the state lies over the keys, the convolution window before them."""
    block = pages.overlaid_block(kernel_block)
    return block, block * pages.token_bytes + pages.window_bytes


def group_length(attention: int, states: int) -> int:
    """Layers of a group: the smaller count, unless filling up to the larger one wastes less.

    vllm/v1/core/kv_cache_utils.py, _get_kv_cache_groups_uniform_page_size.
    """
    small, large = sorted(count for count in (attention, states) if count) or (1, 1)
    return large if large < small * 1.5 else small


def _cut(layers: int, length: int) -> list[int]:
    """Layers of each group."""
    parts = -(-layers // length)
    return [len(range(index, layers, parts)) for index in range(parts)]


def _heterogeneous_pool(view: RoleView, runtime: str) -> CachePool:
    cache = view.recipe.cache
    caches = compressed_caches(
        view.config,
        hardware=view.recipe.hardware,
        block=cache.block_size,
        dtype=view.recipe.checkpoint.dtype,
        float_index=cache.kind == "heterogeneous" and cache.precision == "float",
    )
    ratios = [
        ratio
        for kind, ratio in (("sliding_attention", 0), ("compressed_4", 4), ("compressed_128", 128))
        for _ in range(-(-view.layers.get(kind, 0) // view.recipe.parallel.pp))
    ]
    layers = cache_layers(caches, ratios, view.draft_layers)
    grouping = tuple_groups(layers) if runtime == "vllm_ascend" else repeating_groups(layers)
    payload = {"compressed keys": 0.0, "index keys": 0.0}
    for layer in layers:
        shape = layer.shape
        if shape.window is None:
            name = "index keys" if shape.role == "index_keys" else "compressed keys"
            payload[name] += shape.page_bytes / shape.block_tokens
    return CachePool(
        runtime=runtime,
        block_bytes=grouping.block_bytes,
        groups=grouping.groups,
        payload=payload,
        notes=_notes(view),
    )


def _notes(view: RoleView) -> tuple[str, ...]:
    if view.drafter is not None and view.drafter.layers is None:
        return ("the drafter's caches are not counted: its layers are not published",)
    return ()


def _size(config: Mapping[str, object], field: str) -> int:
    value = config[field]
    assert isinstance(value, int), f"{field} is {value!r}"
    return value
