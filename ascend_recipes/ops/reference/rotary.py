"""Reference of the rotary embedding: one complex multiplication a frequency."""

# Shapes: T tokens, N heads, D head dim, F frequencies

from collections.abc import Sequence

import torch
from torch import Tensor


def rotary_embedding(
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
    """Turn the pairs of the first `rotary_dim` elements of each head by their angle."""
    turn_TF = _turns(positions, cos_sin_cache.float(), mrope_section, mrope_interleaved)
    return tuple(  # type: ignore[return-value]
        _turn_heads(x, turn_TF, head_size, rotary_dim, neox) for x in (query, key)
    )


def _turns(
    positions: Tensor,
    cos_sin_cache: Tensor,
    mrope_section: Sequence[int] | None,
    interleaved: bool,
) -> Tensor:
    """cos + i·sin of each token and frequency."""
    cosine, sine = cos_sin_cache.chunk(2, dim=-1)
    table = torch.complex(cosine.contiguous(), sine.contiguous())
    if positions.dim() == 1:
        return table[positions]
    section = list(mrope_section or (table.shape[1], 0, 0))
    columns = []
    for frequency in range(table.shape[1]):
        axis = _axis(frequency, section, interleaved)
        columns.append(table[positions[axis], frequency])
    return torch.stack(columns, dim=-1)


def _axis(frequency: int, section: list[int], interleaved: bool) -> int:
    if interleaved:
        axis = frequency % 3
        return axis if axis and frequency < 3 * section[axis] else 0
    if frequency < section[0]:
        return 0
    return 1 if frequency < section[0] + section[1] else 2


def _turn_heads(x: Tensor, turn_TF: Tensor, head_size: int, rotary_dim: int, neox: bool) -> Tensor:
    heads_TND = x.reshape(x.shape[0], -1, head_size).float().clone()
    part = heads_TND[..., :rotary_dim]
    half = rotary_dim // 2
    if neox:
        pairs = torch.complex(part[..., :half].contiguous(), part[..., half:].contiguous())
    else:
        pairs = torch.complex(part[..., ::2].contiguous(), part[..., 1::2].contiguous())
    turned = pairs * turn_TF[:, None]
    if neox:
        heads_TND[..., :rotary_dim] = torch.cat((turned.real, turned.imag), dim=-1)
    else:
        heads_TND[..., :rotary_dim] = torch.view_as_real(turned).flatten(-2)
    return heads_TND.to(x.dtype).reshape(x.shape)
