"""Rotary position embeddings through operations.

Legend: T tokens, N query heads, K kv heads, D head dimension.
"""

from typing import Any

import torch
from vllm.model_executor.layers.rotary_embedding import MRotaryEmbedding, RotaryEmbedding

from ascend_recipes.ops import operations


class AscendRotaryEmbedding(RotaryEmbedding):
    """Rotation by one position per token."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # vLLM's own rotation would stay in the module tree without ever being called.
        del self.apply_rotary_emb

    def forward_oot(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rotate.

        Args:
            positions: int64 `[T]`.
            query: `[T, N * D]`.
            key: `[T, K * D]`; a layer that shares another's keys has none.
        """
        assert key is not None, "rotation without keys has no operation"
        return operations.rotary_embedding(
            positions.flatten(),
            query,
            key,
            self._match_cos_sin_cache_dtype(query),
            head_size=self.head_size,
            rotary_dim=self.rotary_dim,
            neox=self.is_neox_style,
            mrope_section=None,
            mrope_interleaved=False,
        )


class AscendMRotaryEmbedding(MRotaryEmbedding):
    """Rotation by time, height and width positions, each for its share of the frequencies."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # As above.
        del self.apply_rotary_emb

    def forward_oot(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor | None = None,
        offsets: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rotate.

        Args:
            positions: int64 `[3, T]`, or `[T]` for text.
            query: `[T, N * D]`.
            key: `[T, K * D]`.
            offsets: refused.
        """
        assert key is not None, "rotation without keys has no operation"
        assert offsets is None, "rotation with offsets has no operation"
        section = self.mrope_section if positions.ndim == 2 else None
        return operations.rotary_embedding(
            positions,
            query,
            key,
            self._match_cos_sin_cache_dtype(query),
            head_size=self.head_size,
            rotary_dim=self.rotary_dim,
            neox=self.is_neox_style,
            mrope_section=section,
            mrope_interleaved=self.mrope_interleaved,
        )
