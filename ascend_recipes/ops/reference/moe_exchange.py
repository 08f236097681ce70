"""References of the exchange between ranks: all send everything, each takes what is its own."""

# Shapes: T tokens of this rank, H hidden, K experts a token, R rows, E experts of this rank

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def moe_dispatch(
    x_TH: Tensor,
    ids_TK: Tensor,
    *,
    group: str,
    world_size: int,
    rank: int,
    num_experts: int,
    active_T: Tensor | None = None,
    quantize: bool = False,
    cumulative: bool = False,
    global_batch: int = 0,
    tensor_group: str = "",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rows for the experts of this rank, sorted by expert, sender, token and slot.

    Returns:
        Rows, NaN (int8: -128) behind the last one; scale of each row, NaN without one; address
        (sender, token, slot) of each row; rows of each expert, or row ends; row ends by expert and
        sender.
    """
    active = x_TH.shape[0] if active_T is None else int(active_T.sum())
    everyone = _gather((x_TH[:active], ids_TK[:active]), group, world_size)
    local = num_experts // world_size
    batch = global_batch // world_size if global_batch else x_TH.shape[0]
    capacity = batch * world_size * min(local, ids_TK.shape[1])
    dtype = torch.int8 if quantize else x_TH.dtype
    poison = torch.nan if dtype.is_floating_point else -128
    rows_RH = torch.full((capacity, x_TH.shape[1]), poison, dtype=dtype)
    scale_R = torch.full((capacity,), torch.nan)
    places = max(ids_TK.numel(), 128 * capacity)
    assist = torch.full((places,), -1, dtype=torch.int32)
    counts_ES = torch.zeros((local, world_size), dtype=torch.int64)
    place = 0
    for expert in range(local):
        for sender, (x, ids) in enumerate(everyone):
            for token, slot in (ids == rank * local + expert).nonzero().tolist():
                row = x[token]
                if quantize:
                    scale_R[place] = row.float().abs().max() / 127
                    row = torch.round(row.float() / scale_R[place].clamp(min=1e-30)).to(torch.int8)
                rows_RH[place] = row
                assist[3 * place : 3 * place + 3] = torch.tensor([sender, token, slot])
                counts_ES[expert, sender] += 1
                place += 1
    counts_E = counts_ES.sum(dim=1)
    group_list = counts_E.cumsum(0) if cumulative else counts_E
    return rows_RH, scale_R, assist, group_list, counts_ES.flatten().cumsum(0).int()


def moe_combine(
    rows_RH: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    assist: Tensor,
    receive_counts: Tensor,
    *,
    group: str,
    world_size: int,
    rank: int,
    num_experts: int,
    active_T: Tensor | None = None,
    global_batch: int = 0,
    tensor_group: str = "",
) -> Tensor:
    """y_t = Σ_k w[t, k] · the row that the k-th expert of token t returned; inactive rows NaN."""
    del num_experts, global_batch, tensor_group
    used = int(receive_counts[-1])
    everyone = _gather((rows_RH[:used], assist[: 3 * used].view(-1, 3)), group, world_size)
    y_TH = torch.zeros((ids_TK.shape[0], rows_RH.shape[1]))
    for rows, addresses in everyone:
        for row, (sender, token, slot) in zip(rows, addresses.tolist(), strict=True):
            if sender == rank:
                y_TH[token] += weights_TK[token, slot].float() * row.float()
    if active_T is not None:
        y_TH[~active_T] = torch.nan
    return y_TH.to(rows_RH.dtype)


def _gather(item: Any, group: str, world_size: int) -> list[Any]:
    found: list[Any] = [None] * world_size
    resolve = dist.distributed_c10d._resolve_process_group
    dist.all_gather_object(found, item, group=resolve(group))  # type: ignore[arg-type]
    return found
