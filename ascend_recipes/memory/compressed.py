"""Pages of the five kinds of caches that a model with compressed context keeps.

One block of the pool holds, per kind of cache, a different number of raw tokens; all kinds share
block numbers and each layer has the same page in every block of its group.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ascend_recipes.memory.pages import CacheRole, CacheShape, index_row_bytes, size_of
from ascend_recipes.schema.base import Json

OVERLAPPED = 4
"""Ratio at which a compressed row also takes the block before it."""

_PACKED_ROW = 640
"""Bytes of a packed row on A5: 64 rotated values, 448 in fp8, 7 scales, padding."""

_STATE_ROWS = {
    # Tokens per page of states by (hardware, ratio), at a block size of 128 tokens.
    ("a2", 4): 8,
    ("a3", 4): 8,
    ("a5", 4): 8,
    ("a2", 128): 32,
    ("a3", 128): 32,
    ("a5", 128): 16,
}
"""vllm-ascend's page geometry (models/layer/attention/layer.py:34-49 at 182b75ea)."""

_GEOMETRY_BLOCK = 128


@dataclass(frozen=True, kw_only=True)
class CompressedCaches:
    """Facts from which the page of every cache follows."""

    hardware: str
    block: int
    """Tokens of a window block, the recipe's block size."""
    head: int
    index_head: int
    window: int
    dtype: str
    """Model dtype."""
    float_index: bool = False
    """Indexer keys and packed caches in float, for tests."""

    def window_rows(self) -> CacheShape:
        """Raw keys of the sliding window."""
        return self._key_rows("window", ratio=1, window=self.window)

    def compressed_rows(self, ratio: int) -> CacheShape:
        """Compressed keys."""
        return self._key_rows("compressed", ratio=ratio, window=None)

    def index_rows(self) -> CacheShape:
        """Indexer keys with a scale each, as bytes: keys of a page first, then its scales."""
        return CacheShape(
            role="index_keys",
            ratio=OVERLAPPED,
            rows=self.block,
            width=index_row_bytes(self.index_head, self.index_dtype),
            dtype="uint8",
        )

    def state_rows(self, ratio: int, *, index: bool = False) -> CacheShape:
        """Keys and scores of the tokens that a compressor has not finished with, in float32."""
        head = self.index_head if index else self.head
        factor = 2 if ratio == OVERLAPPED else 1
        rows = _STATE_ROWS[self.hardware, ratio] * self.block // _GEOMETRY_BLOCK
        return CacheShape(
            role="index_state" if index else "state",
            ratio=1,
            rows=rows,
            width=2 * factor * head,
            dtype="float32",
            window=factor * ratio,
        )

    @property
    def index_dtype(self) -> str:
        """Element type of indexer keys."""
        if self.float_index:
            return "float32"
        return "float8_e4m3fn" if self.hardware == "a5" else "int8"

    def _key_rows(self, role: CacheRole, *, ratio: int, window: int | None) -> CacheShape:
        packed = self.hardware == "a5" and not self.float_index
        return CacheShape(
            role=role,
            ratio=ratio,
            rows=self.block,
            width=_PACKED_ROW if packed else self.head,
            dtype="uint8" if packed else self.dtype,
            window=window,
            # The operator that packs rows finds them by one stride, that of a row.
            block_alignment=_PACKED_ROW if packed else 1,
        )


def compressed_caches(
    config: Mapping[str, Json], *, hardware: str, block: int, dtype: str, float_index: bool
) -> CompressedCaches:
    """Read what matters from a model's configuration."""
    return CompressedCaches(
        hardware=hardware,
        block=block,
        head=size_of(config, "head_dim"),
        index_head=size_of(config, "index_head_dim"),
        window=size_of(config, "sliding_window"),
        dtype=dtype,
        float_index=float_index,
    )
