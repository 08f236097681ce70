"""Cache layouts: what a token and a sequence cost on one device, for either runtime."""

from collections.abc import Mapping, Sequence

from ascend_recipes.memory.compressed import compressed_caches
from ascend_recipes.memory.grouping import CacheLayer, cache_layers, repeating_groups, tuple_groups
from ascend_recipes.memory.hybrid import HybridPages, hybrid_pages
from ascend_recipes.memory.pages import ITEM_BYTES, CacheRole, CacheShape, index_row_bytes, size_of
from ascend_recipes.memory.pool import CachePool, PoolGroup
from ascend_recipes.memory.views import RoleView
from ascend_recipes.planning.degrees import prefix_alignment

RUNTIMES = ("native", "vllm_ascend")

_INDEXED = "indexed_latent_attention"
_PAYLOAD: Mapping[CacheRole, str] = {
    "keys": "keys and values",
    "latent": "latent",
    "compressed": "compressed keys",
    "index_keys": "index keys",
}
"""What is kept for every token, by the name that people read."""

_TILE = 128
"""Elements of a latent that share a scale in the packed 8-bit cache."""


def cache_pool(view: RoleView, runtime: str) -> CachePool:
    """The pool of one device of a role.

    `native` is vLLM 0.32's own arithmetic with our pages; `vllm_ascend` is that of vllm-ascend at
    182b75ea. They differ where pages have several sizes.
    """
    hybrid = view.recipe.cache.kind == "hybrid"
    return _hybrid_pool(view, runtime) if hybrid else _group_pool(view, runtime)


def alignment_tokens(view: RoleView, pool: CachePool) -> int | None:
    """Tokens in whose multiples a cached prefix is found; none without prefix caching."""
    if not view.recipe.cache.prefix_caching:
        return None
    blocks = [group.block_tokens for group in pool.groups]
    return prefix_alignment(blocks, 1)


def _group_pool(view: RoleView, runtime: str) -> CachePool:
    """Pages of any number of sizes, side by side."""
    compressed = view.recipe.cache.kind == "heterogeneous"
    layers = _compressed_layers(view) if compressed else _token_layers(view)
    tuples = compressed and runtime == "vllm_ascend"
    grouping = tuple_groups(layers) if tuples else repeating_groups(layers)
    payload: dict[str, float] = {}
    for shape in (layer.shape for layer in layers):
        if name := _PAYLOAD.get(shape.role):
            payload[name] = payload.get(name, 0.0) + shape.page_bytes / shape.block_tokens
    return CachePool(
        runtime=runtime,
        block_bytes=grouping.block_bytes,
        groups=grouping.groups,
        payload=payload,
        notes=_notes(view),
    )


def _token_layers(view: RoleView) -> Sequence[CacheLayer]:
    """Caches that keep every token: keys and values, or latents and the keys of an indexer.

    With decode context parallelism a row stands for a token of each die of its group; an indexer's
    keys are on each of those dies in full.
    """
    block, dcp = view.recipe.cache.block_size, view.recipe.parallel.dcp
    role, width = _row_of_token(view)
    row = CacheShape(role=role, ratio=dcp, rows=block, width=width, dtype="uint8")
    layers = [CacheLayer(row)] * sum(view.cache_layers.values())
    if indexed := view.cache_layers.get(_INDEXED):
        index = CacheShape(
            role="index_keys", ratio=1, rows=block * dcp, width=_index_bytes(view), dtype="uint8"
        )
        layers += [CacheLayer(index)] * indexed
    return layers


def _row_of_token(view: RoleView) -> tuple[CacheRole, int]:
    """What attention keeps of a token, and its bytes on one die."""
    if "kv_lora_rank" in view.config:
        return "latent", latent_bytes(view.config, view.kv_dtype, view.recipe.checkpoint.dtype)
    heads = max(1, size_of(view.config, "num_key_value_heads") // view.recipe.parallel.tp)
    return "keys", 2 * heads * size_of(view.config, "head_dim") * ITEM_BYTES[view.kv_dtype]


def _compressed_layers(view: RoleView) -> Sequence[CacheLayer]:
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
    return cache_layers(caches, ratios, view.draft_layers)


def latent_bytes(config: Mapping[str, object], kv_dtype: str, model_dtype: str) -> int:
    """Bytes of a latent of one token: plain, or packed in 8 bits.

    Packed is the latent in 8 bits, the rotary part in the model's dtype, and a float32 scale for
    every 128 elements (vllm-ascend attention/utils.py:22-44 at 182b75ea: 656 bytes).
    """
    latent, rotary = size_of(config, "kv_lora_rank"), size_of(config, "qk_rope_head_dim")
    if kv_dtype == model_dtype:
        return (latent + rotary) * ITEM_BYTES[model_dtype]
    return latent + rotary * ITEM_BYTES[model_dtype] + 4 * (latent // _TILE)


def _index_bytes(view: RoleView) -> int:
    """Bytes of one token's index key; on A5 the 8-bit index is float8 whatever the recipe says."""
    attention = view.recipe.attention
    chosen = attention.indexer_cache if attention.kind == "sfa" else "model"
    head = size_of(view.config, "index_head_dim")
    if chosen == "model":
        return head * ITEM_BYTES[view.recipe.checkpoint.dtype]
    return index_row_bytes(head, "fp8" if "cache_fp8" in view.hardware.capabilities else chosen)


def _hybrid_pool(view: RoleView, runtime: str) -> CachePool:
    """Pages of one size, into which states are fitted: both runtimes group these another way."""
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


def _notes(view: RoleView) -> tuple[str, ...]:
    if view.drafter is not None and view.drafter.layers is None:
        return ("the drafter's caches are not counted: its layers are not published",)
    return ()
