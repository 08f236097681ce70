"""The pool of cache blocks of a device: what a block costs, and how many a sequence holds.

All caches of a model share block numbers. A block number is worth `block_bytes` on every layer
together; each group of layers has its own tokens per block and its own blocks per sequence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class PoolGroup:
    """Layers that share a block table."""

    name: str
    layers: int
    block_tokens: int
    """Raw tokens of one block."""
    window: int | None = None
    """Tokens that are kept; none keeps all."""
    state_blocks: int | None = None
    """Blocks of a sequence whatever its length: states are not per token."""

    def blocks_of(self, length: int, step_tokens: int) -> int:
        """Most blocks that one sequence holds.

        vLLM's admission formulas (vllm/v1/kv_cache_interface.py, max_memory_usage_bytes): a window
        keeps what is behind it and the tokens of the steps in flight, plus one block because it
        may start inside a block.

        Args:
            length: tokens of the sequence.
            step_tokens: largest number of tokens in flight.
        """
        if self.state_blocks is not None:
            return self.state_blocks
        if self.window is not None:
            return -(-min(self.window - 1 + step_tokens, length) // self.block_tokens) + 1
        return -(-length // self.block_tokens)

    def blocks_of_batch(self, length: int, step_tokens: int, sequences: int) -> int:
        """Most blocks that `sequences` of one length hold together: they share a step's tokens."""
        if self.window is None:
            return sequences * self.blocks_of(length, step_tokens)
        behind = -(-min(self.window - 1, length) // self.block_tokens) + 1
        return sequences * behind + -(-step_tokens // self.block_tokens)

    @property
    def keeps_all(self) -> bool:
        """Whether blocks are kept for every token."""
        return self.window is None and self.state_blocks is None


@dataclass(frozen=True, kw_only=True)
class CachePool:
    """How one runtime lays out the caches of one device."""

    runtime: str
    block_bytes: int
    """Bytes of one block number over all layers."""
    groups: tuple[PoolGroup, ...]
    payload: Mapping[str, float] = field(default_factory=dict)
    """Bytes of a token by what it holds, without padding; windows and states are not in it."""
    states: Mapping[str, int] = field(default_factory=dict)
    """Bytes of a sequence by what it holds, without padding."""
    notes: tuple[str, ...] = ()

    @property
    def payload_bytes(self) -> float:
        """Bytes of a token without padding."""
        return sum(self.payload.values())

    @property
    def token_bytes(self) -> float:
        """Bytes that a token of a long context takes from the pool, padding included."""
        return self.block_bytes * sum(
            1 / group.block_tokens for group in self.groups if group.keeps_all
        )

    @property
    def state_bytes(self) -> int:
        """Bytes that a sequence takes from the pool for its states."""
        return self.block_bytes * sum(group.state_blocks or 0 for group in self.groups)

    def sequence_blocks(self, length: int, step_tokens: int) -> int:
        """Blocks of one sequence over all groups."""
        return sum(group.blocks_of(length, step_tokens) for group in self.groups)

    def num_blocks(self, available: int) -> int:
        """Blocks in `available` bytes."""
        return max(0, available) // self.block_bytes

    def concurrency(self, available: int, length: int, step_tokens: int) -> float:
        """Sequences of `length` tokens at a time, as vLLM reports it at its start."""
        return self.num_blocks(available) / self.sequence_blocks(length, step_tokens)

    def longest(self, available: int, step_tokens: int, sequences: int = 1) -> int:
        """Longest context that `sequences` can have at a time; 0 if not even states fit."""
        blocks = self.num_blocks(available)
        widest = max(group.block_tokens for group in self.groups)
        low, high = 0, blocks * widest if any(group.keeps_all for group in self.groups) else 0
        while low < high:
            middle = (low + high + 1) // 2
            held = sum(g.blocks_of_batch(middle, step_tokens, sequences) for g in self.groups)
            low, high = (middle, high) if held <= blocks else (low, middle - 1)
        return low
