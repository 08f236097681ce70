"""References of expert routing, row by row."""

# Shapes: T tokens, H hidden, K experts a token, R = T x K rows, S source ranks, E experts here

import torch
from torch import Tensor

from ascend_recipes.ops.reference import quantization


def moe_init_routing(
    x_TH: Tensor,
    ids_TK: Tensor,
    *,
    num_experts: int,
    first_expert: int,
    last_expert: int,
    quantize: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A copy of a token for each of its experts in [first, last), sorted by expert, then token.

    Returns:
        Rows [T x K, H], NaN (int8: -128) behind the last one; place of the copy of token t and slot
        k at t x K + k, -1 without one; rows of each expert; scale of each row, NaN without one.
    """
    del num_experts
    tokens, top_k = ids_TK.shape
    dtype = torch.int8 if quantize else x_TH.dtype
    rows_RH = torch.full(
        (tokens * top_k, x_TH.shape[1]), torch.nan if dtype.is_floating_point else -128, dtype=dtype
    )
    index = torch.full((tokens * top_k,), -1, dtype=torch.int32)
    scale_R = torch.full((tokens * top_k,), torch.nan)
    counts_E = torch.zeros(last_expert - first_expert, dtype=torch.int64)
    place = 0
    for expert in range(first_expert, last_expert):
        for token in range(tokens):
            for slot in range(top_k):
                if int(ids_TK[token, slot]) != expert:
                    continue
                row = x_TH[token]
                if quantize:
                    row, scale_R[place] = quantization.dynamic_quant(row)
                rows_RH[place] = row
                index[token * top_k + slot] = place
                counts_E[expert - first_expert] += 1
                place += 1
    return rows_RH, index, counts_E, scale_R


def moe_re_routing(
    rows_RH: Tensor, counts_SE: Tensor, *, scale_R: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows that came rank by rank (within a rank expert by expert), expert by expert.

    Returns:
        Rows and scales (NaN, int8: -128, behind the last one), source row of each (-1 behind), rows
        of each expert.
    """
    ranks, experts = counts_SE.shape
    starts: dict[tuple[int, int], int] = {}
    total = 0
    for rank in range(ranks):
        for expert in range(experts):
            starts[rank, expert] = total
            total += int(counts_SE[rank, expert])
    order = [
        starts[rank, expert] + row
        for expert in range(experts)
        for rank in range(ranks)
        for row in range(int(counts_SE[rank, expert]))
    ]
    poison = torch.nan if rows_RH.is_floating_point() else -128
    moved_RH = torch.full_like(rows_RH, poison)
    scales_R = torch.full((rows_RH.shape[0],), torch.nan)
    index = torch.full((rows_RH.shape[0],), -1, dtype=torch.int32)
    for place, source in enumerate(order):
        moved_RH[place] = rows_RH[source]
        index[place] = source
        if scale_R is not None:
            scales_R[place] = scale_R[source]
    return moved_RH, scales_R, index, counts_SE.sum(dim=0).to(counts_SE.dtype)


def moe_permute(x_TH: Tensor, ids_TK: Tensor) -> tuple[Tensor, Tensor]:
    """Copies sorted by expert, then token; and the place of copy t x K + k."""
    top_k = ids_TK.shape[1] if ids_TK.dim() == 2 else 1
    flat = ids_TK.flatten().tolist()
    order = sorted(range(len(flat)), key=lambda copy: (flat[copy], copy))
    places = torch.zeros(len(flat), dtype=torch.int32)
    for place, copy in enumerate(order):
        places[copy] = place
    return torch.stack([x_TH[copy // top_k] for copy in order]), places


def moe_unpermute(
    rows_RH: Tensor, sorted_indices: Tensor, *, weights_TK: Tensor | None = None
) -> Tensor:
    """y_t = Σ_k w[t, k] · row of copy t x K + k, where it has one (index 0 or more).

    Without weights there is one copy a token.
    """
    top_k = 1 if weights_TK is None else weights_TK.shape[1]
    tokens = sorted_indices.shape[0] // top_k
    y_TH = torch.zeros((tokens, rows_RH.shape[1]))
    for copy, place in enumerate(sorted_indices.tolist()):
        if place < 0:
            continue
        weight = 1.0 if weights_TK is None else float(weights_TK[copy // top_k, copy % top_k])
        y_TH[copy // top_k] += weight * rows_RH[place].float()
    return y_TH.to(rows_RH.dtype)


def moe_finalize_routing(rows_RH: Tensor, row_index: Tensor, weights_TK: Tensor) -> Tensor:
    """The same with weights in the type of the rows."""
    return moe_unpermute(rows_RH, row_index, weights_TK=weights_TK.to(rows_RH.dtype))
