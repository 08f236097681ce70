"""Bindings of expert selection to NPU operators."""

# Shapes: T tokens, G experts, K chosen experts, V vocabulary

import torch
from torch import Tensor

SOFTMAX, SIGMOID, SQRT_SOFTPLUS = 0, 1, 2
BY_TWO_LARGEST = 1
EPSILON = 1e-20


def moe_gate_softmax_npu(
    logits_TG: Tensor, *, top_k: int, renormalize: bool, scaling: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Softmax and top-k on `npu::npu_moe_gating_top_k`."""
    weights, ids, _ = torch.ops.npu.npu_moe_gating_top_k(logits_TG, top_k, norm_type=SOFTMAX)
    return _scaled(weights, renormalize=renormalize, scaling=scaling), ids


def moe_gate_softmax_custom(
    logits_TG: Tensor, *, top_k: int, renormalize: bool, scaling: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Softmax and top-k on `_C_ascend::moe_gating_top_k`."""
    weights, ids, _ = torch.ops._C_ascend.moe_gating_top_k(
        logits_TG, top_k, 1, 1, 0, 0, SOFTMAX, False, 1.0, EPSILON
    )
    return _scaled(weights, renormalize=renormalize, scaling=scaling), ids


def moe_gate_softmax_plain_npu(
    logits_TG: Tensor, *, top_k: int, renormalize: bool, scaling: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Softmax and top-k on `npu::npu_moe_gating_top_k_softmax`."""
    weights, ids, _ = torch.ops.npu.npu_moe_gating_top_k_softmax(logits_TG, None, top_k)
    return _scaled(weights, renormalize=renormalize, scaling=scaling), ids


def moe_gate_sigmoid_npu(
    logits_TG: Tensor,
    *,
    bias_G: Tensor | None,
    top_k: int,
    groups: int = 1,
    top_groups: int = 1,
    scaling: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Sigmoid, bias and groups on `npu::npu_moe_gating_top_k`, which normalizes and scales."""
    weights, ids, _ = torch.ops.npu.npu_moe_gating_top_k(
        logits_TG,
        top_k,
        bias=None if bias_G is None else bias_G.to(logits_TG.dtype),
        k_group=top_groups,
        group_count=groups,
        group_select_mode=BY_TWO_LARGEST,
        norm_type=SIGMOID,
        routed_scaling_factor=scaling,
        eps=EPSILON,
    )
    return weights, ids


def moe_gate_sigmoid_custom(
    logits_TG: Tensor,
    *,
    bias_G: Tensor | None,
    top_k: int,
    groups: int = 1,
    top_groups: int = 1,
    scaling: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Sigmoid, bias and groups on `_C_ascend::moe_gating_top_k`, which normalizes and scales."""
    weights, ids, _ = torch.ops._C_ascend.moe_gating_top_k(
        logits_TG,
        top_k,
        top_groups,
        groups,
        BY_TWO_LARGEST,
        0,
        SIGMOID,
        False,
        scaling,
        EPSILON,
        bias_opt=None if bias_G is None else bias_G.to(logits_TG.dtype),
    )
    return weights, ids


def moe_gate_sqrt_softplus_npu(
    logits_TG: Tensor, *, bias_G: Tensor | None, top_k: int, scaling: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Square root of softplus, bias, top-k on `_C_ascend::moe_gating_top_k_hash`."""
    weights, ids, _ = torch.ops._C_ascend.moe_gating_top_k_hash(
        logits_TG,
        top_k,
        bias=None if bias_G is None else bias_G.to(logits_TG.dtype),
        routed_scaling_factor=scaling,
        eps=EPSILON,
        norm_type=SQRT_SOFTPLUS,
    )
    return weights, ids


def moe_gate_hash_npu(
    logits_TG: Tensor, input_ids_T: Tensor, experts_VK: Tensor, *, scaling: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Experts from the table, weights from the logits, on `_C_ascend::moe_gating_top_k_hash`."""
    weights, ids, _ = torch.ops._C_ascend.moe_gating_top_k_hash(
        logits_TG,
        experts_VK.shape[1],
        input_ids=input_ids_T,
        tid2eid=experts_VK,
        routed_scaling_factor=scaling,
        eps=EPSILON,
        norm_type=SQRT_SOFTPLUS,
    )
    return weights, ids


def _scaled(weights_TK: Tensor, *, renormalize: bool, scaling: float) -> Tensor:
    """The operators leave softmax weights as they are."""
    if renormalize:
        weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
    return weights_TK * scaling
