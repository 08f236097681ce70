"""Chunked form of the gated delta rule."""

# Shapes: T tokens, Nk key heads, N value heads, K key dim, V value dim, R sequences,
#         C chunks, P tokens of a chunk

import torch
from torch import Tensor

CHUNK = 64


def run_chunks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    lengths: list[int],
) -> tuple[Tensor, Tensor]:
    """Chunked form: what is inside chunks for all chunks at once, then states chunk by chunk.

    A chunk is padded with tokens that neither decay (g = 0) nor write (β = 0).
    """
    rows_CP, owner_C, rank_C = _chunk_rows(lengths, value.shape[0])
    group = value.shape[1] // key.shape[1]

    def chunks(x: Tensor) -> Tensor:
        padded = torch.cat((x, x.new_zeros(1, *x.shape[1:])))
        return padded[rows_CP].transpose(1, 2)

    query_CNPK = chunks(query).repeat_interleave(group, dim=1)
    key_CNPK = chunks(key).repeat_interleave(group, dim=1)
    beta_CNP = chunks(beta)
    decay_CNP = chunks(g).cumsum(dim=-1)
    written_CNPV, read_CNPK = _solve_chunks(key_CNPK, chunks(value), decay_CNP, beta_CNP)
    ratio_CNPP = _decay_ratio(decay_CNP)
    scores_CNPP = (query_CNPK @ key_CNPK.transpose(-1, -2) * ratio_CNPP).tril()
    out_CNPV = torch.empty_like(written_CNPV)
    memory_RNVK = state.float().clone()
    for rank in range(int(rank_C.max()) + 1 if rank_C.numel() else 0):
        now = (rank_C == rank).nonzero().flatten()
        memory_RNKV = memory_RNVK[owner_C[now]].transpose(-1, -2)
        decay = decay_CNP[now]
        change = written_CNPV[now] - read_CNPK[now] @ memory_RNKV
        carried = (query_CNPK[now] * decay.exp()[..., None]) @ memory_RNKV
        out_CNPV[now] = carried + scores_CNPP[now] @ change
        last = decay[..., -1:]
        kept = memory_RNKV * last.exp()[..., None]
        added = (key_CNPK[now] * (last - decay).exp()[..., None]).transpose(-1, -2) @ change
        memory_RNVK[owner_C[now]] = (kept + added).transpose(-1, -2)
    out_TNV = value.new_zeros(value.shape[0] + 1, *value.shape[1:])
    out_TNV[rows_CP] = out_CNPV.transpose(1, 2)
    return out_TNV[:-1], memory_RNVK


def _chunk_rows(lengths: list[int], tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Token of each place of each chunk (`tokens` for padding), its sequence, its rank there."""
    rows, owners, ranks = [], [], []
    start = 0
    for request, length in enumerate(lengths):
        for rank, first in enumerate(range(0, length, CHUNK)):
            places = torch.arange(first, first + CHUNK)
            rows.append(torch.where(places < length, start + places, tokens))
            owners.append(request)
            ranks.append(rank)
        start += length
    empty = torch.empty(0, CHUNK, dtype=torch.long)
    return torch.stack(rows) if rows else empty, torch.tensor(owners), torch.tensor(ranks)


def _decay_ratio(decay_CNP: Tensor) -> Tensor:
    """exp(Gᵢ - Gⱼ) for j ≤ i; the exponent is never positive there, elsewhere it is cut to 0."""
    return (decay_CNP[..., :, None] - decay_CNP[..., None, :]).tril().exp()


def _solve_chunks(
    key_CNPK: Tensor, value_CNPV: Tensor, decay_CNP: Tensor, beta_CNP: Tensor
) -> tuple[Tensor, Tensor]:
    """Solve the unit triangular system that makes the writes of a chunk independent."""
    overlap = key_CNPK @ key_CNPK.transpose(-1, -2) * _decay_ratio(decay_CNP)
    system = (overlap * beta_CNP[..., None]).tril(-1)
    right = torch.cat(
        (value_CNPV * beta_CNP[..., None], key_CNPK * (beta_CNP * decay_CNP.exp())[..., None]),
        dim=-1,
    )
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    return solved.split((value_CNPV.shape[-1], key_CNPK.shape[-1]), dim=-1)
