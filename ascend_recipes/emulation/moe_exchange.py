"""Emulated exchange of rows between the ranks that hold the experts, over a real process group."""

# Shapes: T tokens of this rank, H hidden, K experts a token, E experts of this rank, W ranks

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ascend_recipes.emulation.integer import quantize_rows
from ascend_recipes.emulation.limits import check_limit
from ascend_recipes.emulation.refusal import (
    SMALL,
    OperatorRefusedError,
    check,
    check_range,
    check_shape,
    check_unset,
    relaxes,
)
from ascend_recipes.emulation.undefined import padded

PLAIN, DYNAMIC = 0, 2
SECOND_MESH = "fullmesh_v2"
ROW_ALIGNMENT = 32
ROW_ADDRESS = 128
"""Places of the assistance output that belong to a row; three are used: rank, token, slot."""


def distribute_dispatch(
    x: Tensor,
    expert_ids: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    scales: Tensor | None = None,
    x_active_mask: Tensor | None = None,
    expert_scales: Tensor | None = None,
    elastic_info: Tensor | None = None,
    performance_info: Tensor | None = None,
    group_tp: str = "",
    tp_world_size: int = 0,
    tp_rank_id: int = 0,
    expert_shard_type: int = 0,
    shared_expert_num: int = 1,
    shared_expert_rank_num: int = 0,
    quant_mode: int = 0,
    global_bs: int = 0,
    expert_token_nums_type: int = 1,
    comm_alg: str = "",
    zero_expert_num: int = 0,
    copy_expert_num: int = 0,
    const_expert_num: int = 0,
    y_dtype: int | None = None,
    x_dtype: int | None = None,
    scales_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`npu::npu_moe_distribute_dispatch_v2`: each row goes to the ranks of its experts.

    Rows arrive sorted by expert of this rank, then by sender, then by token. What lies behind them
    is undefined. Receive counts are cumulative, expert by expert and rank by rank.
    """
    name = "npu_moe_distribute_dispatch_v2"
    check_unset(
        name,
        scales=scales,
        expert_scales=expert_scales,
        elastic_info=elastic_info,
        performance_info=performance_info,
        y_dtype=y_dtype,
        x_dtype=x_dtype,
        scales_dtype=scales_dtype,
    )
    check(quant_mode in (PLAIN, DYNAMIC), name, "quant_mode", f"is {quant_mode}", "0, 2 (int8)")
    _check_shared(name, shared_expert_num)
    check(
        expert_token_nums_type in (0, 1),
        name,
        "expert_token_nums_type",
        f"is {expert_token_nums_type}",
        "0 (cumulative), 1 (counts)",
    )
    _check_plain(name, expert_shard_type, shared_expert_rank_num, tp_world_size, comm_alg)
    specials = (zero_expert_num, copy_expert_num, const_expert_num)
    check(
        not any(specials), name, "zero_expert_num", f"is set: {specials}", "0 for special experts"
    )
    _check_world(name, ep_world_size, ep_rank_id, moe_expert_num)
    _check_tokens(name, x, expert_ids, moe_expert_num, x_active_mask)
    _check_second_mesh(name, comm_alg, "x", expert_ids)
    batch = _largest_batch(name, x.shape[0], ep_world_size, global_bs)
    local = moe_expert_num // ep_world_size
    values, scale = quantize_rows(x.float()) if quant_mode == DYNAMIC else (x, None)
    rows = _active_rows(expert_ids, x_active_mask)
    arrived = _send(values, scale, rows, group_ep, ep_rank_id, (ep_world_size, local))
    used = arrived.values.shape[0]
    capacity = batch * ep_world_size * min(local, expert_ids.shape[1])
    check(
        used <= capacity,
        name,
        "global_bs",
        f"is {global_bs}, so that {used} rows do not fit {capacity}",
        "the largest batch of any rank, times the ranks",
    )
    assist = torch.full((max(expert_ids.numel(), capacity * ROW_ADDRESS),), -1, dtype=torch.int32)
    assist[: used * 3] = arrived.address.flatten().int()
    counts = arrived.received_WE.sum(dim=0)
    return (
        padded(arrived.values, capacity),
        padded(arrived.scale, capacity),
        assist,
        counts if expert_token_nums_type == 1 else counts.cumsum(0),
        arrived.received_WE.t().flatten().cumsum(0).int(),
        torch.zeros(tp_world_size, dtype=torch.int32),
        torch.empty(0),
    )


def distribute_dispatch_meta(
    x: Tensor,
    expert_ids: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    tp_world_size: int = 0,
    quant_mode: int = 0,
    global_bs: int = 0,
    **_: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Shapes of `npu_moe_distribute_dispatch_v2`."""
    local = moe_expert_num // ep_world_size
    batch = global_bs or x.shape[0] * ep_world_size
    capacity = batch * min(local, expert_ids.shape[1])
    values = torch.int8 if quant_mode == DYNAMIC else x.dtype
    assist = max(expert_ids.numel(), capacity * ROW_ADDRESS)
    return (
        x.new_empty((capacity, x.shape[1]), dtype=values),
        x.new_empty((capacity,), dtype=torch.float32),
        x.new_empty((assist,), dtype=torch.int32),
        x.new_empty((local,), dtype=torch.int64),
        x.new_empty((ep_world_size * local,), dtype=torch.int32),
        x.new_empty((tp_world_size,), dtype=torch.int32),
        x.new_empty((0,), dtype=torch.float32),
    )


def distribute_combine(
    expand_x: Tensor,
    expert_ids: Tensor,
    assist_info_for_combine: Tensor,
    ep_send_counts: Tensor,
    expert_scales: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    tp_send_counts: Tensor | None = None,
    x_active_mask: Tensor | None = None,
    expand_scales: Tensor | None = None,
    shared_expert_x: Tensor | None = None,
    elastic_info: Tensor | None = None,
    ori_x: Tensor | None = None,
    const_expert_alpha_1: Tensor | None = None,
    const_expert_alpha_2: Tensor | None = None,
    const_expert_v: Tensor | None = None,
    performance_info: Tensor | None = None,
    group_tp: str = "",
    tp_world_size: int = 0,
    tp_rank_id: int = 0,
    expert_shard_type: int = 0,
    shared_expert_num: int = 1,
    shared_expert_rank_num: int = 0,
    global_bs: int = 0,
    comm_quant_mode: int = 0,
    comm_alg: str = "",
    zero_expert_num: int = 0,
    copy_expert_num: int = 0,
    const_expert_num: int = 0,
) -> Tensor:
    """`npu::npu_moe_distribute_combine_v2`: rows go home; y = Σ over experts of weight · row.

    Rows of inactive tokens are undefined.
    """
    name = "npu_moe_distribute_combine_v2"
    check_unset(
        name,
        shared_expert_x=shared_expert_x,
        elastic_info=elastic_info,
        ori_x=ori_x,
        const_expert_alpha_1=const_expert_alpha_1,
        const_expert_alpha_2=const_expert_alpha_2,
        const_expert_v=const_expert_v,
        performance_info=performance_info,
    )
    check(comm_quant_mode == 0, name, "comm_quant_mode", f"is {comm_quant_mode}", "0 (none)")
    _check_shared(name, shared_expert_num)
    _check_plain(name, expert_shard_type, shared_expert_rank_num, tp_world_size, comm_alg)
    _check_world(name, ep_world_size, ep_rank_id, moe_expert_num)
    check_limit(f"npu::{name}", "tokens", "expert_ids", expert_ids.shape[0], "has rows:")
    check_limit(f"npu::{name}", "experts_of_a_token", "expert_ids", expert_ids.shape[1], "names")
    _check_second_mesh(name, comm_alg, "expert_ids", expert_ids)
    _check_hidden(name, "expand_x", expand_x.shape[1])
    check_shape(name, "expert_scales", expert_scales, tuple(expert_ids.shape), "[tokens, k]")
    if x_active_mask is not None:
        _check_mask(name, expert_ids, x_active_mask)
    local = moe_expert_num // ep_world_size
    check_shape(
        name, "ep_send_counts", ep_send_counts, (ep_world_size * local,), "[ranks x experts]"
    )
    ends = ep_send_counts.long()
    rising = bool((ends.diff() >= 0).all())
    check(
        rising, name, "ep_send_counts", f"is {ends.tolist()}", "the cumulative counts of dispatch"
    )
    received = ends.diff(prepend=ends.new_zeros(1)).view(local, ep_world_size).t()
    by_expert = _by_expert(received)
    used = by_expert.shape[0]
    back = by_expert.argsort()
    address = assist_info_for_combine[: used * 3].view(-1, 3).long()
    _, _, expert = _active_rows(expert_ids, x_active_mask)
    sent = torch.bincount(expert, minlength=moe_expert_num).view(ep_world_size, local)
    out, into = received.sum(dim=1).tolist(), sent.sum(dim=1).tolist()
    rows = _exchange(group_ep, expand_x[:used][back], out, into)
    home = _exchange(group_ep, address[back], out, into)
    check_range(name, "assist_info_for_combine", home[:, 1], 0, expert_ids.shape[0], "tokens")
    check_range(name, "assist_info_for_combine", home[:, 2], 0, expert_ids.shape[1], "slots")
    y = torch.zeros((expert_ids.shape[0], expand_x.shape[1]), dtype=torch.float32)
    weights = expert_scales[home[:, 1], home[:, 2]]
    y.index_add_(0, home[:, 1], rows.float() * weights[:, None])
    if x_active_mask is not None:
        y[int(x_active_mask.sum()) :] = torch.nan
    return y.to(expand_x.dtype)


def distribute_combine_meta(
    expand_x: Tensor, expert_ids: Tensor, *_: object, **__: object
) -> Tensor:
    """Shape of `npu_moe_distribute_combine_v2`."""
    return expand_x.new_empty((expert_ids.shape[0], expand_x.shape[1]))


def _check_plain(
    name: str, shard_type: int, shared_ranks: int, tp_world_size: int, comm_alg: str
) -> None:
    """The form that deployments use: no ranks of shared experts, one tensor-parallel rank."""
    check(shard_type == 0, name, "expert_shard_type", f"is {shard_type}", "0")
    check(shared_ranks == 0, name, "shared_expert_rank_num", f"is {shared_ranks}", "0")
    check_limit(f"npu::{name}", "tensor_ranks", "tp_world_size", tp_world_size)
    check(comm_alg in ("", "fullmesh_v1", SECOND_MESH), name, "comm_alg", f"is '{comm_alg}'", "''")


def _check_shared(name: str, shared_experts: int) -> None:
    check(shared_experts in (0, 1), name, "shared_expert_num", f"is {shared_experts}", "0, 1")


def _check_second_mesh(name: str, comm_alg: str, argument: str, expert_ids: Tensor) -> None:
    """The second algorithm of A3 and A5 takes fewer tokens and experts."""
    if comm_alg != SECOND_MESH:
        return
    tokens, top_k = expert_ids.shape
    problem = f"has rows: {tokens}"
    check(tokens <= 256, name, argument, problem, f"at most 256 with {SECOND_MESH}")
    check(top_k <= 12, name, "expert_ids", f"names {top_k}", f"at most 12 with {SECOND_MESH}")


def _check_world(name: str, world: int, rank: int, experts: int) -> None:
    check_limit(f"npu::{name}", "ranks", "ep_world_size", world)
    check(0 <= rank < world, name, "ep_rank_id", f"is {rank}", f"0 to {world - 1}")
    check_limit(f"npu::{name}", "experts", "moe_expert_num", experts)
    check(experts % world == 0, name, "moe_expert_num", f"is {experts}", f"a multiple of {world}")


def _check_tokens(
    name: str, x: Tensor, expert_ids: Tensor, experts: int, mask: Tensor | None
) -> None:
    check(x.dim() == 2, name, "x", f"has {x.dim()} dimensions", "2 ([tokens, hidden])")
    check_limit(f"npu::{name}", "tokens", "x", x.shape[0], "has rows:")
    _check_hidden(name, "x", x.shape[1])
    check_shape(name, "expert_ids", expert_ids, (x.shape[0], None), "[tokens, k]")
    check_limit(f"npu::{name}", "experts_of_a_token", "expert_ids", expert_ids.shape[1], "names")
    check_range(name, "expert_ids", expert_ids, 0, experts, "experts")
    if mask is not None:
        _check_mask(name, expert_ids, mask)


def _check_hidden(name: str, argument: str, hidden: int) -> None:
    if not relaxes(SMALL):
        check_limit(f"npu::{name}", "hidden", argument, hidden, "has hidden size")
        rest = hidden % ROW_ALIGNMENT
        check_limit(f"npu::{name}", "hidden_rest", argument, rest, "modulo 32 has a hidden size of")


def _check_mask(name: str, expert_ids: Tensor, mask: Tensor) -> None:
    check_shape(name, "x_active_mask", mask, (expert_ids.shape[0],), "[tokens]")
    active = int(mask.sum())
    leading = bool(mask[:active].all())
    check(leading, name, "x_active_mask", "has gaps", "active tokens before inactive ones")


@dataclass(frozen=True)
class _Arrived:
    """Rows that reached this rank, by expert, then sender, then token."""

    values: Tensor
    scale: Tensor
    """One a row, or empty."""
    address: Tensor
    """Sender, token and slot of each row."""
    received_WE: Tensor


def _send(
    values: Tensor,
    scale: Tensor | None,
    rows: tuple[Tensor, Tensor, Tensor],
    group: str,
    rank: int,
    shape: tuple[int, int],
) -> _Arrived:
    """Send each row to the rank of its expert; `shape` is ranks and experts of a rank."""
    world, local = shape
    order = rows[2].sort(stable=True).indices
    token, slot, expert = (item[order] for item in rows)
    sent = torch.bincount(expert, minlength=world * local)
    received = _exchange(group, sent, [local] * world, [local] * world).view(world, local)
    out, into = sent.view(world, local).sum(dim=1).tolist(), received.sum(dim=1).tolist()
    address = torch.stack((torch.full_like(token, rank), token, slot), dim=1)
    by_expert = _by_expert(received)
    return _Arrived(
        values=_exchange(group, values[token], out, into)[by_expert],
        scale=torch.empty(0)
        if scale is None
        else _exchange(group, scale[token], out, into)[by_expert],
        address=_exchange(group, address, out, into)[by_expert],
        received_WE=received,
    )


def _largest_batch(name: str, tokens: int, world: int, global_bs: int) -> int:
    check(
        global_bs == 0 or (global_bs % world == 0 and global_bs >= tokens * world),
        name,
        "global_bs",
        f"is {global_bs}",
        f"0 or the largest batch times {world}",
    )
    return global_bs // world if global_bs else tokens


def _active_rows(expert_ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Token, slot and expert of every copy that is sent, token by token."""
    tokens, top_k = expert_ids.shape
    active = tokens if mask is None else int(mask.sum())
    token = torch.arange(active).repeat_interleave(top_k)
    slot = torch.arange(top_k).repeat(active)
    return token, slot, expert_ids[:active].flatten().long()


def _by_expert(received_WE: Tensor) -> Tensor:
    """Order that turns rows sorted by sender, then expert, into expert, then sender."""
    world, local = received_WE.shape
    cell = torch.repeat_interleave(torch.arange(world * local), received_WE.flatten())
    return ((cell % local) * world + cell // local).sort(stable=True).indices


def _exchange(group: str, rows: Tensor, out: list[int], into: list[int]) -> Tensor:
    """All-to-all of consecutive rows."""
    try:
        process_group = dist.distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
    except RuntimeError as error:
        raise OperatorRefusedError(
            "npu_moe_distribute",
            "group_ep",
            f"is '{group}': {error}",
            "the name of a process group",
        ) from None
    received = rows.new_zeros((sum(into), *rows.shape[1:]))
    process_group.alltoall_base(
        received, rows.contiguous(), into, out, dist.AllToAllOptions()
    ).wait()
    return received
