"""How layers with pages of several sizes are put into groups, by either runtime.

`repeating_groups` is vLLM 0.32's packing for block-outermost layouts
(vllm/v1/core/kv_cache_utils.py, _get_packed_kv_cache_groups), which the native runtime uses.
`tuple_groups` is vllm-ascend's own (patch/platform/patch_kv_cache_utils.py:59-245 at 182b75ea):
it pads every page to one of two sizes, and gives draft layers tensors of their own.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import lcm
from typing import NamedTuple

from ascend_recipes.memory.compressed import OVERLAPPED, CompressedCaches
from ascend_recipes.memory.pages import CacheShape
from ascend_recipes.memory.pool import PoolGroup


class CacheLayer(NamedTuple):
    """One cache of one decoder layer."""

    shape: CacheShape
    draft: bool = False

    @property
    def table(self) -> tuple[int, int | None]:
        """What layers of one block table have in common: tokens of a block, and the window."""
        return self.shape.block_tokens, self.shape.window


class Grouping(NamedTuple):
    """Groups, and what a block number costs."""

    groups: tuple[PoolGroup, ...]
    block_bytes: int


def cache_layers(
    caches: CompressedCaches, ratios: Sequence[int], draft_layers: int
) -> tuple[CacheLayer, ...]:
    """Caches of every decoder layer, in the order in which a layer registers them.

    Args:
        caches: pages of the five kinds.
        ratios: raw tokens of a compressed row, by decoder layer; at most 1 for a window only.
        draft_layers: layers of the drafter, which keep a window only.
    """
    kinds = {
        ratio: [CacheLayer(shape) for shape in _of_layer(caches, ratio)] for ratio in set(ratios)
    }
    layers = [layer for ratio in ratios for layer in kinds[ratio]]
    layers += [CacheLayer(caches.window_rows(), draft=True)] * draft_layers
    return tuple(layers)


def _of_layer(caches: CompressedCaches, ratio: int) -> Iterable[CacheShape]:
    if ratio > 1:
        yield caches.state_rows(ratio)
    if ratio == OVERLAPPED:
        yield caches.index_rows()
        yield caches.state_rows(ratio, index=True)
    yield caches.window_rows()
    if ratio > 1:
        yield caches.compressed_rows(ratio)


def approximate_divisor(counts: Iterable[int], lower: int) -> int:
    """Group length of at least `lower` that needs the least filling; the larger one on a tie."""
    numbers = tuple(counts)
    candidates = range(lower, max(numbers) + 1)
    return min(candidates, key=lambda d: (sum(-n % d for n in numbers), -d), default=lower)


def repeating_groups(layers: Sequence[CacheLayer]) -> Grouping:
    """vLLM 0.32: pages side by side; a block is as wide as the widest group, in whole alignments.

    The alignment: same file, _get_kv_cache_bytes_per_block.
    """
    buckets = {table: _pages(items) for table, items in _buckets(layers).items()}
    balanced = {table for table, pages in buckets.items() if len(set(pages.values())) == 1}
    mixed = [max(buckets[table].values()) for table in balanced if len(buckets[table]) > 1]
    counts = [max(buckets[table].values()) for table in balanced]
    repeats = approximate_divisor(counts, max(mixed)) if mixed else None
    groups: list[PoolGroup] = []
    widest = 0
    for table, pages in buckets.items():
        split = -(-max(pages.values()) // repeats) if repeats and table in balanced else 1
        widest = max(widest, sum(-(-count // split) * page for page, count in pages.items()))
        groups += _split(table, sum(pages.values()), split)
    step = lcm(*(layer.shape.block_alignment for layer in layers))
    return Grouping(tuple(groups), -(-widest // step) * step)


def tuple_groups(layers: Sequence[CacheLayer]) -> Grouping:
    """vllm-ascend: tuples of one page of each size, private tensors for draft layers."""
    buckets = _buckets(layers)
    kept = sorted(table for table in buckets if table[1] is None)
    windows = [table for table in buckets if table[1] is not None]
    sizes = sorted(_pages(buckets[kept[0]]))
    counts = {table: max(_padded(items, sizes).values()) for table, items in buckets.items()}
    length = approximate_divisor(counts.values(), counts[kept[0]])
    groups: list[PoolGroup] = []
    longest = 0
    for table in (*kept, *windows):
        split = -(-counts[table] // length) if table in windows else 1
        for index in range(split):
            target = [item for item in buckets[table][index::split] if not item.draft]
            longest = max((longest, *_padded(target, sizes).values()))
        groups += _split(table, len(buckets[table]), split)
    drafts = sum(item.draft for item in layers)
    return Grouping(tuple(groups), sum(sizes) * (longest + drafts))


def _buckets(layers: Sequence[CacheLayer]) -> dict[tuple[int, int | None], list[CacheLayer]]:
    buckets: dict[tuple[int, int | None], list[CacheLayer]] = defaultdict(list)
    for layer in layers:
        buckets[layer.table].append(layer)
    return dict(buckets)


def _pages(layers: Iterable[CacheLayer]) -> Mapping[int, int]:
    """Page size -> number of layers."""
    return Counter(layer.shape.page_bytes for layer in layers)


def _padded(layers: Iterable[CacheLayer], sizes: Sequence[int]) -> Mapping[int, int]:
    """Padded page size -> number of layers: pages take the smallest size that holds them."""
    return Counter(
        next(size for size in sizes if layer.shape.page_bytes <= size) for layer in layers
    )


def _split(table: tuple[int, int | None], layers: int, parts: int) -> list[PoolGroup]:
    tokens, window = table
    name = f"window {window}" if window else "all tokens"
    return [
        PoolGroup(
            name=name,
            layers=len(range(index, layers, parts)),
            block_tokens=tokens,
            window=window,
        )
        for index in range(parts)
    ]
