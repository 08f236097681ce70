"""Bindings of expert routing to NPU operators: rows are sorted by expert and brought back."""

# Shapes: T tokens, H hidden, K experts a token, R = T x K rows, S source ranks, E experts here

import torch
from torch import Tensor

COUNTS, DYNAMIC, PLAIN = 1, 1, -1


def moe_init_routing_npu(
    x_TH: Tensor,
    ids_TK: Tensor,
    *,
    num_experts: int,
    first_expert: int,
    last_expert: int,
    quantize: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of the experts [first, last) on `npu::npu_moe_init_routing_v2`."""
    return _init_routing(
        torch.ops.npu.npu_moe_init_routing_v2,
        x_TH,
        ids_TK,
        num_experts,
        [first_expert, last_expert],
        quantize,
    )


def moe_init_routing_custom(
    x_TH: Tensor,
    ids_TK: Tensor,
    *,
    num_experts: int,
    first_expert: int,
    last_expert: int,
    quantize: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same on `_C_ascend::npu_moe_init_routing_custom`."""
    return _init_routing(
        torch.ops._C_ascend.npu_moe_init_routing_custom,
        x_TH,
        ids_TK,
        num_experts,
        [first_expert, last_expert],
        quantize,
    )


def _init_routing(
    operator: torch._ops.OpOverloadPacket,
    x_TH: Tensor,
    ids_TK: Tensor,
    num_experts: int,
    expert_range: list[int],
    quantize: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, index, counts, scale = operator(
        x_TH,
        ids_TK,
        active_num=ids_TK.numel(),
        expert_num=num_experts,
        expert_tokens_num_type=COUNTS,
        expert_tokens_num_flag=True,
        quant_mode=DYNAMIC if quantize else PLAIN,
        active_expert_range=expert_range,
        row_idx_type=0,
    )
    return rows, index, counts, scale


def moe_re_routing_npu(
    rows_RH: Tensor, counts_SE: Tensor, *, scale_R: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From rank by rank to expert by expert, on `npu::npu_moe_re_routing`."""
    rows, scale, index, counts = torch.ops.npu.npu_moe_re_routing(
        rows_RH, counts_SE, per_token_scales=scale_R, expert_token_num_type=COUNTS, idx_type=0
    )
    return rows, scale, index, counts


def moe_permute_npu(x_TH: Tensor, ids_TK: Tensor) -> tuple[Tensor, Tensor]:
    """Copies sorted by expert, on `npu::npu_moe_token_permute`."""
    rows, index = torch.ops.npu.npu_moe_token_permute(x_TH, ids_TK)
    return rows, index


def moe_unpermute_npu(
    rows_RH: Tensor, sorted_indices: Tensor, *, weights_TK: Tensor | None = None
) -> Tensor:
    """Weighted sum of each token's rows, on `npu::npu_moe_token_unpermute`."""
    top_k = 1 if weights_TK is None else weights_TK.shape[1]
    missing_TK = (sorted_indices < 0).view(-1, top_k)
    weights_TK = None if weights_TK is None else weights_TK.masked_fill(missing_TK, 0.0)
    y_TH: Tensor = torch.ops.npu.npu_moe_token_unpermute(
        rows_RH, sorted_indices.clamp(min=0), probs=weights_TK
    )
    return _without_strangers(y_TH, missing_TK)


def moe_finalize_routing_npu(rows_RH: Tensor, row_index: Tensor, weights_TK: Tensor) -> Tensor:
    """Weighted sum of each token's rows, on `npu::npu_moe_finalize_routing`."""
    top_k = weights_TK.shape[1]
    missing_TK = (row_index < 0).view(-1, top_k)
    # The operator reads the index slot by slot, routing writes it token by token.
    by_slot = row_index.clamp(min=0).view(-1, top_k).t().reshape(-1)
    weights_TK = weights_TK.masked_fill(missing_TK, 0.0).to(rows_RH.dtype)
    y_TH: Tensor = torch.ops.npu.npu_moe_finalize_routing(
        rows_RH, None, None, None, weights_TK, by_slot, None, 0, top_k
    )
    return _without_strangers(y_TH, missing_TK)


def _without_strangers(y_TH: Tensor, missing_TK: Tensor) -> Tensor:
    """Zero tokens that have no expert here.

    Copies without a row point at row 0 with weight zero. Row 0 is a number for every token that has
    a row at all; where nobody has one, it may be NaN, which zero does not silence.
    """
    return y_TH.masked_fill(missing_TK.all(dim=1, keepdim=True), 0.0)
