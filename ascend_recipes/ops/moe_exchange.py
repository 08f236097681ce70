"""Bindings of the exchange of rows between the ranks that hold the experts."""

# Shapes: T tokens of this rank, H hidden, K experts a token, R rows, E experts of this rank

import torch
import torch.distributed as dist
from torch import Tensor

DYNAMIC, PLAIN = 2, 0
COUNTS, CUMULATIVE = 1, 0


def communicator_name(group: dist.ProcessGroup) -> str:
    """Name under which the operators find a process group: HCCL's on an NPU, else PyTorch's."""
    device = torch.device("npu") if "npu" in str(dist.get_backend_config(group)) else None
    if device is None:
        return str(group.group_name)
    backend = group._get_backend(device)
    name: str = backend.get_hccl_comm_name(dist.get_rank(group))  # type: ignore[attr-defined]
    return name


def moe_dispatch_npu(
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
    """Rows to the ranks of their experts, on `npu::npu_moe_distribute_dispatch_v2`.

    `tensor_group` is a group of one rank, which is named on A3 and A5 and not on A2.
    """
    rows, scale, assist, group_list, receive_counts, _, _ = (
        torch.ops.npu.npu_moe_distribute_dispatch_v2(
            x_TH,
            ids_TK,
            group,
            world_size,
            rank,
            num_experts,
            x_active_mask=active_T,
            group_tp=tensor_group,
            tp_world_size=1 if tensor_group else 0,
            tp_rank_id=0,
            expert_shard_type=0,
            shared_expert_rank_num=0,
            quant_mode=DYNAMIC if quantize else PLAIN,
            global_bs=global_batch,
            expert_token_nums_type=CUMULATIVE if cumulative else COUNTS,
        )
    )
    return rows, scale, assist, group_list, receive_counts


def moe_combine_npu(
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
    """Rows home and their weighted sum, on `npu::npu_moe_distribute_combine_v2`.

    `tensor_group` is that of `moe_dispatch_npu`.
    """
    tensor_counts = torch.zeros(1, dtype=torch.int32, device=rows_RH.device)
    y: Tensor = torch.ops.npu.npu_moe_distribute_combine_v2(
        rows_RH,
        ids_TK,
        assist,
        receive_counts,
        weights_TK.float(),
        group,
        world_size,
        rank,
        num_experts,
        tp_send_counts=tensor_counts if tensor_group else None,
        x_active_mask=active_T,
        group_tp=tensor_group,
        tp_world_size=1 if tensor_group else 0,
        tp_rank_id=0,
        expert_shard_type=0,
        shared_expert_rank_num=0,
        global_bs=global_batch,
    )
    return y
