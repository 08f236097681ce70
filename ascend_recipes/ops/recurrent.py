"""Bindings of the gated delta net's convolution and recurrence to NPU operators."""

# Shapes: T tokens, C channels, W taps, Nk key heads, Nv value heads, K key dim, V value dim,
#         R sequences, S cache slots, L rows of a convolution state

import torch
from torch import Tensor

PAD_SLOT = -1
"""Cache line of a sequence that is padding."""


def causal_conv1d_custom(
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
    """Causal depthwise convolution on `_C_ascend::npu_causal_conv1d_custom`; updates the states.

    Args:
        x_TC: Tokens of all sequences, one after the other.
        weight_WC: Taps, the last one for the current token.
        conv_state_SLC: Last inputs of each cached sequence, written in place; L ≥ W - 1.
        query_start_R1: First token of each sequence and the end, int32 or int64.
        cache_indices_R: Cache line of each sequence; `PAD_SLOT` skips it (its rows are undefined).
        has_initial_state_R: Whether a sequence continues its line; prefill only.
        bias: Per channel.
        activation: `silu`, `swish` or None.
        num_accepted: Accepted tokens of the last step, when verifying drafts; decode only.
        decode: Whether every sequence continues its cache line.
    """
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"causal_conv1d: activation '{activation}'; allowed: silu, swish, None")
    out_TC: Tensor = torch.ops._C_ascend.npu_causal_conv1d_custom(
        torch.empty_like(x_TC),
        x_TC,
        weight_WC,
        conv_state_SLC,
        bias,
        query_start_R1,
        cache_indices_R,
        None if decode else has_initial_state_R,
        num_accepted,
        0 if activation is None else 1,
        PAD_SLOT,
        1 if decode else 0,
    )
    return out_TC


def chunk_gated_delta_rule_npu(
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
    """Chunked gated delta rule on `npu::npu_chunk_gated_delta_rule`.

    Queries and keys are normalized by the caller. The operator wants the state in the type of the
    query: it is cast for the call and the final state cast back.

    Args:
        query_TNkK: Queries of all sequences, one after the other.
        key_TNkK: Keys.
        value_TNvV: Values.
        g_TNv: Logarithm of the decay, float32, not summed.
        beta_TNv: Write strength.
        initial_state_RNvVK: State before each sequence; zeros for a new one.
        lengths_R: Tokens of each sequence, int32, not cumulative; they sum to T.
        scale: Factor of the queries.

    Returns:
        Outputs [T, Nv, V] and states after each sequence, in the type of `initial_state_RNvVK`.
    """
    out_TNvV, final_RNvVK = torch.ops.npu.npu_chunk_gated_delta_rule(
        query_TNkK,
        key_TNkK,
        value_TNvV,
        beta=beta_TNv.to(query_TNkK.dtype),
        initial_state=initial_state_RNvVK.to(query_TNkK.dtype).contiguous(),
        actual_seq_lengths=lengths_R.to(torch.int32),
        scale=scale,
        g=g_TNv,
    )
    return out_TNvV, final_RNvVK.to(initial_state_RNvVK.dtype)


def recurrent_gated_delta_rule_npu(
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
    """Recurrent gated delta rule on `npu::npu_recurrent_gated_delta_rule`: bfloat16 states only.

    See `recurrent_gated_delta_rule_custom` for the arguments; at most 8 tokens a sequence, and
    the lengths must sum to T.
    """
    out_TNvV: Tensor = torch.ops.npu.npu_recurrent_gated_delta_rule(
        query_TNkK,
        key_TNkK,
        value_TNvV,
        state_SNvVK,
        beta=beta_TNv.to(query_TNkK.dtype),
        scale=scale,
        actual_seq_lengths=lengths_R.to(torch.int32),
        ssm_state_indices=state_indices.flatten().to(torch.int32),
        num_accepted_tokens=None if num_accepted is None else num_accepted.to(torch.int32),
        g=g_TNv,
    )
    return out_TNvV


def recurrent_gated_delta_rule_custom(
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
    """Recurrent gated delta rule on `_C_ascend::npu_recurrent_gated_delta_rule`, state in place.

    Args:
        query_TNkK: Normalized queries of all sequences, one after the other.
        key_TNkK: Normalized keys.
        value_TNvV: Values.
        g_TNv: Logarithm of the decay, float32.
        beta_TNv: Write strength.
        state_SNvVK: State slots, bfloat16 or float32.
        lengths_R: Tokens of each sequence, int32, not cumulative; 0 for padding, at most 16.
        state_indices: Slot that receives the state after each token, token by token (further
            dimensions are flattened). With one token a sequence this is one slot a sequence,
            read and written.
        num_accepted: Accepted tokens of the last step: the sequence starts from the slot of
            that token; none for the first.
        scale: Factor of the queries.
    """
    layout_R1 = torch.cat((lengths_R.new_zeros(1), lengths_R)).to(torch.int32)
    out_TNvV: Tensor = torch.ops._C_ascend.npu_recurrent_gated_delta_rule(
        query_TNkK,
        key_TNkK,
        value_TNvV,
        state_SNvVK,
        beta=beta_TNv.to(query_TNkK.dtype),
        scale=scale,
        actual_seq_lengths=layout_R1,
        ssm_state_indices=state_indices.flatten().to(torch.int32),
        num_accepted_tokens=None if num_accepted is None else num_accepted.to(torch.int32),
        g=g_TNv,
    )
    return out_TNvV
