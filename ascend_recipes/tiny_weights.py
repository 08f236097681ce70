"""Seeded weights of tiny checkpoints: the same numbers in every dtype and for every neighbour."""

import hashlib
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

PRINTABLE = range(0x20, 0x7F)
"""Bytes that the output layer prefers, so that a demonstration prints readable characters."""


class SeededWeights:
    """Seeded weights; a tensor depends on the seed and its name only, not on its neighbours."""

    def __init__(self, *, seed: int, dtype: str) -> None:
        import torch

        self._torch = torch
        self._seed = seed
        self._dtype: torch.dtype = getattr(torch, dtype)

    def generator(self, name: str) -> "torch.Generator":
        """Source of the random numbers of one tensor."""
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        return self._torch.Generator().manual_seed(int.from_bytes(digest[:7]))

    def store(self, values: "torch.Tensor", *, float32: bool = False) -> "torch.Tensor":
        """Round to bfloat16 first, so that checkpoints of every dtype hold the same numbers."""
        rounded = values.to(self._torch.bfloat16)
        return rounded.to(self._torch.float32 if float32 else self._dtype)

    def random(
        self,
        name: str,
        shape: tuple[int, ...],
        deviation: float,
        mean: float = 0.0,
        *,
        float32: bool = False,
    ) -> "Iterator[tuple[str, torch.Tensor]]":
        """Normally distributed weights; `float32` for what is published in float32."""
        values = self._torch.randn(shape, generator=self.generator(name))
        yield name, self.store(values * deviation + mean, float32=float32)

    def linear(
        self, name: str, out_features: int, in_features: int, gain: float = 1.0
    ) -> "Iterator[tuple[str, torch.Tensor]]":
        """Weight that maps a vector of unit variance to one of variance gain²."""
        yield from self.random(name, (out_features, in_features), gain / math.sqrt(in_features))


def output_layer(weights: SeededWeights, name: str, vocabulary: int, hidden: int) -> "torch.Tensor":
    """Logits of deviation 4 for printable characters, smaller for bytes, zero for the rest.

    Ids above the bytes get zero rows: a generation hardly ever ends by chance, and the padding
    of the vocabulary, which decodes to nothing, is never the largest logit.
    """
    import torch

    rows_VH = torch.randn((vocabulary, hidden), generator=weights.generator(name))
    scale_V = torch.zeros(vocabulary)
    scale_V[:256] = 1.0
    scale_V[_printable_ids()] = 4.0
    return weights.store(rows_VH * scale_V[:, None] / math.sqrt(hidden))


def _printable_ids() -> list[int]:
    from tokenizers import pre_tokenizers

    ordered = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [ordered.index(chr(code)) for code in PRINTABLE if chr(code) in ordered]
