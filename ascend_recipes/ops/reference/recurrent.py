"""References of the gated delta net: token by token, in float32."""

# Shapes: T tokens, C channels, W taps, Nk key heads, Nv value heads, K key dim, V value dim,
#         R sequences, S cache slots, L rows of a convolution state

import torch
import torch.nn.functional as F
from torch import Tensor


def causal_conv1d(
    x_TC: Tensor,
    weight_WC: Tensor,
    conv_state_SLC: Tensor,
    *,
    query_start_R1: Tensor,
    cache_indices_R: Tensor,
    has_initial_state_R: Tensor | None,
    bias: Tensor | None = None,
    activation: str | None = "silu",
    num_accepted: Tensor | None = None,
    decode: bool,
) -> Tensor:
    """Slide the taps over the past inputs of each sequence; rows of skipped sequences are zero."""
    past = weight_WC.shape[0] - 1
    out_TC = torch.zeros_like(x_TC)
    bounds = query_start_R1.tolist()
    indices = cache_indices_R[:, 0] if cache_indices_R.dim() == 2 else cache_indices_R
    for request, line in enumerate(indices.tolist()):
        start, stop = bounds[request], bounds[request + 1]
        if line < 0 or start == stop:
            continue
        offset = 0 if num_accepted is None else int(num_accepted[request]) - 1
        history = conv_state_SLC[line, offset : offset + past].float()
        if not decode and not (has_initial_state_R is not None and has_initial_state_R[request]):
            history = torch.zeros_like(history)
        inputs = torch.cat((history, x_TC[start:stop].float()))
        for token in range(stop - start):
            total_C = (inputs[token : token + past + 1] * weight_WC.float()).sum(dim=0)
            total_C = total_C if bias is None else total_C + bias.float()
            out_TC[start + token] = total_C if activation is None else F.silu(total_C)
        kept = inputs[1:] if num_accepted is not None else inputs[-past:]
        conv_state_SLC[line, : len(kept)] = kept.to(conv_state_SLC.dtype)
    return out_TC


def delta_rule_gates(
    a_TNv: Tensor, b_TNv: Tensor, a_log_Nv: Tensor, dt_bias_Nv: Tensor
) -> tuple[Tensor, Tensor]:
    """Log decay g = -exp(A_log) · softplus(a + dt_bias) in float32; β = sigmoid(b) in b's type."""
    step_TNv = F.softplus(a_TNv.float() + dt_bias_Nv.float(), threshold=20.0)
    return -a_log_Nv.float().exp() * step_TNv, b_TNv.float().sigmoid().to(b_TNv.dtype)


def l2_norm(x_TND: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x²) + ε) over the last dimension, computed in float32."""
    wide = x_TND.float()
    return (wide * torch.rsqrt((wide * wide).sum(dim=-1, keepdim=True) + epsilon)).to(x_TND.dtype)


def chunk_gated_delta_rule(
    query_TNkK: Tensor,
    key_TNkK: Tensor,
    value_TNvV: Tensor,
    g_TNv: Tensor,
    beta_TNv: Tensor,
    initial_state_RNvVK: Tensor,
    *,
    lengths_R: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The recurrence itself: chunking is a way to compute it, not another result."""
    out_TNvV = torch.empty_like(value_TNvV)
    final_RNvVK = initial_state_RNvVK.clone()
    start = 0
    for request, length in enumerate(lengths_R.tolist()):
        state_NvVK = initial_state_RNvVK[request].float()
        for token in range(start, start + length):
            state_NvVK, out = _step(
                state_NvVK,
                query_TNkK[token],
                key_TNkK[token],
                value_TNvV[token],
                g_TNv[token],
                beta_TNv[token],
                scale,
            )
            out_TNvV[token] = out.to(value_TNvV.dtype)
        final_RNvVK[request] = state_NvVK.to(final_RNvVK.dtype)
        start += length
    return out_TNvV, final_RNvVK


def recurrent_gated_delta_rule(
    query_TNkK: Tensor,
    key_TNkK: Tensor,
    value_TNvV: Tensor,
    g_TNv: Tensor,
    beta_TNv: Tensor,
    state_SNvVK: Tensor,
    *,
    lengths_R: Tensor,
    state_indices: Tensor,
    num_accepted: Tensor | None = None,
    scale: float,
) -> Tensor:
    """Start from the slot of the last accepted token; store the state after every token."""
    out_TNvV = torch.zeros_like(value_TNvV)
    state_indices = state_indices.flatten()
    start = 0
    for request, length in enumerate(lengths_R.tolist()):
        if length == 0:
            continue
        accepted = 1 if num_accepted is None else int(num_accepted[request])
        state_NvVK = state_SNvVK[state_indices[start + accepted - 1]].float()
        for token in range(start, start + length):
            state_NvVK, out = _step(
                state_NvVK,
                query_TNkK[token],
                key_TNkK[token],
                value_TNvV[token],
                g_TNv[token],
                beta_TNv[token],
                scale,
            )
            out_TNvV[token] = out.to(value_TNvV.dtype)
            state_SNvVK[state_indices[token]] = state_NvVK.to(state_SNvVK.dtype)
        start += length
    return out_TNvV


def _step(
    state_NvVK: Tensor,
    query_NkK: Tensor,
    key_NkK: Tensor,
    value_NvV: Tensor,
    g_Nv: Tensor,
    beta_Nv: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Decay, read what the key recalls, write the difference, read with the query."""
    group = value_NvV.shape[0] // key_NkK.shape[0]
    query_NvK = query_NkK.float().repeat_interleave(group, dim=0) * scale
    key_NvK = key_NkK.float().repeat_interleave(group, dim=0)
    decayed = state_NvVK * g_Nv.float().exp()[:, None, None]
    recalled_NvV = torch.einsum("nvk,nk->nv", decayed, key_NvK)
    change_NvV = (value_NvV.float() - recalled_NvV) * beta_Nv.float()[:, None]
    written = decayed + torch.einsum("nv,nk->nvk", change_NvV, key_NvK)
    return written, torch.einsum("nvk,nk->nv", written, query_NvK)
