"""A page: what one block number is worth in one cache of one layer.

Every kind of cache is described by a `CacheShape`: plain keys and values, latents, the caches of
compressed context and their indexer. Groups, costs and capacities follow from these alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

CacheRole: TypeAlias = Literal[
    "keys", "latent", "window", "compressed", "index_keys", "state", "index_state"
]
"""What a page holds: keys and values, latents of every token, raw keys of a window, compressed
keys, indexer keys, states of a compressor."""

ITEM_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    "uint8": 1,
    "fp8": 1,
    "float8_e4m3fn": 1,
}
"""Bytes of an element, by the name that torch or a recipe gives its type."""


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """Page of one cache of one layer."""

    role: CacheRole
    ratio: int
    """Raw tokens of one row."""
    rows: int
    """Rows of a page."""
    width: int
    """Elements of a row."""
    dtype: str
    window: int | None = None
    """Tokens behind the newest that are kept; none keeps all."""
    block_alignment: int = 1
    """Bytes in whose multiples two pages of the cache are apart."""

    @property
    def block_tokens(self) -> int:
        """Raw tokens of a block."""
        return self.rows * self.ratio

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.rows * self.width * ITEM_BYTES[self.dtype]


def index_row_bytes(head: int, dtype: str) -> int:
    """Bytes of an indexer key and its scale: float16 beside int8, float32 beside the others."""
    return head * ITEM_BYTES[dtype] + (2 if dtype == "int8" else 4)


def size_of(config: Mapping[str, object], field: str) -> int:
    """A size in a model's configuration."""
    value = config[field]
    assert isinstance(value, int), f"{field} is {value!r}"
    return value
