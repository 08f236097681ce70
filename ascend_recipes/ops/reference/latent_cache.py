"""Plain writes into latent and indexer caches, row by row."""

# Shapes: T tokens, N heads, D row width, B blocks, P rows of a block, X any leading dimensions

import torch
from torch import Tensor

PACKED_DTYPES = (torch.uint8, torch.float8_e4m3fn)
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SCALES = {torch.int8: torch.float16, torch.float8_e4m3fn: torch.float32}
ROPE = 64
GROUP = 64


def write_latent_rows(rows_TD: Tensor, cache_BPW: Tensor, slots: Tensor) -> None:
    """Row t goes to its slot; a cache of bytes takes `packed_row`, any other the row itself."""
    packed = cache_BPW.dtype in PACKED_DTYPES
    for token, (block, row) in enumerate(_places(slots, cache_BPW.shape[1])):
        if block >= 0 and packed:
            cache_BPW.view(torch.uint8)[block, row] = packed_row(rows_TD[token], cache_BPW.shape[2])
        elif block >= 0:
            cache_BPW[block, row] = rows_TD[token]


def packed_row(x_D: Tensor, width: int) -> Tensor:
    """Bytes of a row: bfloat16 rope, fp8_e4m3 values, one e8m0 exponent for each 64 values.

    The scale of 64 values is the least power of two above (never equal to) their largest / 448.
    """
    exponents, stored = [], []
    for part in x_D[:-ROPE].float().split(GROUP):
        _, exponent = torch.frexp(part.abs().max().clamp(min=1e-4) * (1 / 448))
        exponents.append(int(exponent) + 127)
        stored.append((part / 2.0**exponent).to(torch.float8_e4m3fn))
    rope = x_D[-ROPE:].to(torch.bfloat16)
    used = (
        rope.view(torch.uint8),
        torch.cat(stored).view(torch.uint8),
        torch.tensor(exponents, dtype=torch.uint8),
    )
    row = torch.zeros(width, dtype=torch.uint8)
    row[: sum(part.numel() for part in used)] = torch.cat(used)
    return row


def unpacked_row(row: Tensor, head: int) -> Tensor:
    """The float32 row that a packed one stands for."""
    values, row = head - ROPE, row.view(torch.uint8)
    rope = row[: 2 * ROPE].view(torch.bfloat16).float()
    stored = row[2 * ROPE : 2 * ROPE + values].view(torch.float8_e4m3fn).float()
    exponents = row[2 * ROPE + values : 2 * ROPE + values + values // GROUP].float()
    return torch.cat((stored * (2.0 ** (exponents - 127)).repeat_interleave(GROUP), rope))


def hadamard_rotation(x_XD: Tensor) -> Tensor:
    """Last dim times the Sylvester-ordered Hadamard matrix, divided by the root of its size."""
    size = x_XD.shape[-1]
    matrix_DD = torch.ones(1, 1)
    while matrix_DD.shape[0] < size:
        matrix_DD = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix_DD)
    return (x_XD @ matrix_DD.to(x_XD)) * size**-0.5


def quantize_indexer_query(query_TND: Tensor, *, cache_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Symmetric 8-bit queries, one scale a head; float32 keeps them."""
    if cache_dtype == torch.float32:
        return query_TND.float(), torch.ones(query_TND.shape[:-1])
    return _quantize(query_TND, cache_dtype)


def write_indexer_keys(
    keys_TD: Tensor, key_cache_BPD: Tensor, scale_cache_BP1: Tensor, slots: Tensor
) -> None:
    """Symmetric 8-bit keys, one scale a row; a float32 cache keeps them, with scale 1."""
    if key_cache_BPD.dtype == torch.float32:
        stored_TD, scale_T = keys_TD.float(), torch.ones(keys_TD.shape[0])
    else:
        stored_TD, scale_T = _quantize(keys_TD, key_cache_BPD.dtype)
    for token, (block, row) in enumerate(_places(slots, key_cache_BPD.shape[1])):
        if block >= 0:
            key_cache_BPD[block, row] = stored_TD[token]
            scale_cache_BP1[block, row] = scale_T[token]


def _quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    scale = x.float().abs().amax(dim=-1) / LARGEST[dtype]
    divided = x.float() / torch.where(scale == 0, 1.0, scale)[..., None]
    stored = divided.round() if dtype == torch.int8 else divided
    return stored.to(dtype), scale.to(SCALES[dtype])


def _places(slots: Tensor, rows: int) -> list[tuple[int, int]]:
    if slots.dim() == 2:
        return [(block, row) for block, row in slots.tolist()]
    return [(slot // rows, slot % rows) for slot in slots.tolist()]
