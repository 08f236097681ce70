"""Bindings of rotary embeddings to NPU operators."""

# Shapes: T tokens, N heads, D head dim, R rotated part of a head, F = R / 2 frequencies,
#         A position rows (temporal, vertical, horizontal)

from collections.abc import Sequence

import torch
from torch import Tensor


def rotary_embedding_rotary_mul(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    *,
    head_size: int,
    rotary_dim: int,
    neox: bool,
    mrope_section: Sequence[int] | None = None,
    mrope_interleaved: bool = False,
) -> tuple[Tensor, Tensor]:
    """Rotary embedding on `npu::npu_rotary_mul`, cosines and sines gathered outside.

    Serves partial rotation and interleaved mRoPE, which `npu_mrope` does not define.
    """
    cosine_TF, sine_TF = _gather(
        positions, cos_sin_cache, rotary_dim, mrope_section, mrope_interleaved
    )
    if neox:
        cosine_TR, sine_TR = (torch.cat((x, x), dim=-1) for x in (cosine_TF, sine_TF))
    else:
        cosine_TR, sine_TR = (x.repeat_interleave(2, dim=-1) for x in (cosine_TF, sine_TF))
    factors = [x.to(query.dtype)[None, :, None] for x in (cosine_TR, sine_TR)]
    mode = "half" if neox else "interleave"
    return (
        _rotate(query, factors, head_size, rotary_dim, mode),
        _rotate(key, factors, head_size, rotary_dim, mode),
    )


def rotary_embedding_mrope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    *,
    head_size: int,
    rotary_dim: int,
    neox: bool,
    mrope_section: Sequence[int] | None = None,
    mrope_interleaved: bool = False,
) -> tuple[Tensor, Tensor]:
    """Rotary embedding on `npu::npu_mrope`: plain positions, or sections that follow each other.

    Raises:
        ValueError: interleaved sections with three position rows.
    """
    if positions.dim() == 2 and mrope_interleaved:
        raise ValueError(
            "rotary_embedding: npu_mrope has no documented interleaved mRoPE; "
            "bind torch_npu.npu_rotary_mul"
        )
    if cos_sin_cache.shape[1] != rotary_dim:
        raise ValueError(f"cos_sin_cache has rows of {cos_sin_cache.shape[1]}, not {rotary_dim}")
    plain = positions.dim() == 1 or mrope_section is None
    rotated_query, rotated_key = torch.ops.npu.npu_mrope(
        positions,
        query.reshape(query.shape[0], -1),
        key.reshape(key.shape[0], -1),
        cos_sin_cache.to(query.dtype),
        head_size,
        mrope_section=[0, 0, 0] if plain or mrope_section is None else list(mrope_section),
        rotary_mode="half" if neox else "interleave",
    )
    return rotated_query.view(query.shape), rotated_key.view(key.shape)


def _gather(
    positions: Tensor,
    cos_sin_cache: Tensor,
    rotary_dim: int,
    mrope_section: Sequence[int] | None,
    mrope_interleaved: bool,
) -> tuple[Tensor, Tensor]:
    frequencies = rotary_dim // 2
    rows = cos_sin_cache[positions]
    if positions.dim() == 1:
        return rows[:, :frequencies], rows[:, frequencies:]
    if mrope_section is None:
        return rows[0, :, :frequencies], rows[0, :, frequencies:]
    axis_F = _axis_of_frequency(tuple(mrope_section), mrope_interleaved, positions.device)
    index_1TF = axis_F.expand(1, rows.shape[1], -1)
    cosine_TF = rows[..., :frequencies].gather(0, index_1TF)[0]
    sine_TF = rows[..., frequencies:].gather(0, index_1TF)[0]
    return cosine_TF, sine_TF


def _axis_of_frequency(section: tuple[int, ...], interleaved: bool, device: torch.device) -> Tensor:
    """Position row that each frequency follows.

    Interleaved: slots 1, 4, 7, … go to the vertical and 2, 5, 8, … to the horizontal position,
    as many as the section says; all others follow the temporal one.
    """
    if not interleaved:
        axes = [axis for axis, size in enumerate(section) for _ in range(size)]
        return torch.tensor(axes, device=device)
    axis_F = torch.zeros(sum(section), dtype=torch.long, device=device)
    for axis in (1, 2):
        axis_F[axis : 3 * section[axis] : 3] = axis
    return axis_F


def _rotate(x: Tensor, factors: list[Tensor], head_size: int, rotary_dim: int, mode: str) -> Tensor:
    heads_1TND = x.view(1, x.shape[0], -1, head_size)
    turned = torch.ops.npu.npu_rotary_mul(
        heads_1TND[..., :rotary_dim].contiguous(), factors[0], factors[1], mode
    )
    if rotary_dim == head_size:
        return turned.view(x.shape)
    return torch.cat((turned, heads_1TND[..., rotary_dim:]), dim=-1).view(x.shape)
