"""Emulated gated delta rule, chunked (prefill) and recurrent (decode and verification)."""

# Shapes: T tokens, Nk key heads, N value heads, K key dim, V value dim, R sequences,
#         S state slots, B heads of all sequences

import torch
from torch import Tensor

from ascend_recipes.emulation.delta_chunks import run_chunks
from ascend_recipes.emulation.refusal import (
    OperatorRefusedError,
    check,
    check_range,
    check_same_dtype,
    check_shape,
    check_unset,
)

VENDOR_TOKENS = 8
"""Longest sequence of torch_npu's recurrent operator."""
CUSTOM_TOKENS = 16
"""Longest sequence of vllm-ascend's recurrent operator, which stops silently beyond it."""


def chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    actual_seq_lengths: Tensor | None = None,
    scale: float | None = None,
    g: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`npu::npu_chunk_gated_delta_rule`: outputs [T, N, V] and final states [R, N, V, K]."""
    name = "npu_chunk_gated_delta_rule"
    beta = _required(name, "beta", beta)
    state = _required(name, "initial_state", initial_state)
    lengths = _required(name, "actual_seq_lengths", actual_seq_lengths)
    _check_heads(name, query, key, value, beta, state, g, heads=64, widths=(128, 128))
    check_same_dtype(name, query, initial_state=state)
    plain = _read_lengths(name, lengths, tokens=value.shape[0], exact=True)
    check(
        len(plain) == state.shape[0],
        name,
        "actual_seq_lengths",
        f"has {len(plain)} lengths",
        f"{state.shape[0]}, one a state",
    )
    decay = torch.zeros(value.shape[:2]) if g is None else g
    factor = key.shape[-1] ** -0.5 if scale is None else scale
    out, final = run_chunks(
        query.float() * factor, key.float(), value.float(), decay, beta.float(), state, plain
    )
    return out.to(value.dtype), final.to(state.dtype)


def chunk_gated_delta_rule_meta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    actual_seq_lengths: Tensor | None = None,
    scale: float | None = None,
    g: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Shapes of `npu_chunk_gated_delta_rule`."""
    state = _required("npu_chunk_gated_delta_rule", "initial_state", initial_state)
    return torch.empty_like(value), torch.empty_like(state)


def recurrent_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    *,
    beta: Tensor | None = None,
    scale: float | None = None,
    actual_seq_lengths: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    g: Tensor | None = None,
    gk: Tensor | None = None,
) -> Tensor:
    """`npu::npu_recurrent_gated_delta_rule`: one length a sequence, at most 8 tokens each."""
    name = "npu_recurrent_gated_delta_rule"
    check_unset(name, gk=gk)
    beta = _required(name, "beta", beta)
    lengths = _required(name, "actual_seq_lengths", actual_seq_lengths)
    _check_heads(name, query, key, value, beta, state, g, heads=256, widths=(256, 256))
    check_same_dtype(name, query, state=state)
    plain = _read_lengths(name, lengths, tokens=value.shape[0], exact=True)
    _check_longest(name, plain, VENDOR_TOKENS)
    slots = _read_slots(name, ssm_state_indices, sum(plain))
    return _run_steps(
        name, query, key, value, state, beta, scale, [0, *plain], slots, num_accepted_tokens, g
    )


def custom_recurrent_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    *,
    beta: Tensor | None = None,
    scale: float | None = None,
    actual_seq_lengths: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    g: Tensor | None = None,
    gk: Tensor | None = None,
) -> Tensor:
    """`_C_ascend::npu_recurrent_gated_delta_rule`: first token, then lengths; float32 states too.

    `actual_seq_lengths` holds R + 1 numbers: the first token of the first sequence, then one
    length a sequence. Tokens after the last sequence are padding and give undefined rows.
    """
    name = "_C_ascend::npu_recurrent_gated_delta_rule"
    check_unset(name, gk=gk)
    check(scale is not None, name, "scale", "is None", "required")
    beta = _required(name, "beta", beta)
    lengths = _required(name, "actual_seq_lengths", actual_seq_lengths)
    _check_heads(name, query, key, value, beta, state, g, heads=256, widths=(512, 512))
    check(
        state.dtype in (torch.float32, query.dtype),
        name,
        "state",
        f"is {state.dtype}",
        "bfloat16, float32",
    )
    layout = _read_lengths(name, lengths, tokens=value.shape[0], exact=False)
    check(bool(layout), name, "actual_seq_lengths", "is empty", "[start, length, ...]")
    _check_longest(name, layout[1:], CUSTOM_TOKENS)
    slots = _read_slots(name, ssm_state_indices, sum(layout))
    return _run_steps(
        name, query, key, value, state, beta, scale, layout, slots, num_accepted_tokens, g
    )


def recurrent_gated_delta_rule_meta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    *,
    beta: Tensor | None = None,
    scale: float | None = None,
    actual_seq_lengths: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    g: Tensor | None = None,
    gk: Tensor | None = None,
) -> Tensor:
    """Shape of both recurrent operators."""
    return torch.empty_like(value)


def _required(name: str, argument: str, tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise OperatorRefusedError(name, argument, "is None", "required")
    return tensor


def _check_heads(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    state: Tensor,
    g: Tensor | None,
    *,
    heads: int,
    widths: tuple[int, int],
) -> None:
    """Dtypes, shapes and limits that the three operators share."""
    check_same_dtype(name, query, key=key, value=value, beta=beta)
    check_shape(name, "query", query, (None, None, None), "[tokens, key heads, key dim]")
    tokens, key_heads, width = query.shape
    check_shape(name, "key", key, (tokens, key_heads, width), "the shape of query")
    check_shape(name, "value", value, (tokens, None, None), "[tokens, value heads, value dim]")
    value_heads, value_width = value.shape[1:]
    check(
        key_heads <= heads and value_heads <= heads and value_heads % key_heads == 0,
        name,
        "value",
        f"has {value_heads} heads for {key_heads} key heads",
        f"a multiple of the key heads, both at most {heads}",
    )
    exact = widths == (128, 128)
    fits = (width, value_width) == widths if exact else width <= widths[0] >= value_width
    limit = "128" if exact else f"at most {widths[0]}"
    check(fits, name, "key", f"has widths {width} and {value_width}", limit)
    check_shape(name, "beta", beta, (tokens, value_heads), "[tokens, value heads]")
    check_shape(
        name,
        "state",
        state,
        (None, value_heads, value_width, width),
        "[slots, value heads, value dim, key dim]",
    )
    if g is not None:
        check_shape(name, "g", g, (tokens, value_heads), "[tokens, value heads]")


def _read_lengths(name: str, lengths: Tensor, *, tokens: int, exact: bool) -> list[int]:
    check(lengths.dim() == 1, name, "actual_seq_lengths", f"has {lengths.dim()} dimensions", "1")
    values: list[int] = lengths.tolist()
    total = sum(values)
    fits = min(values, default=0) >= 0 and (total == tokens if exact else total <= tokens)
    check(
        fits,
        name,
        "actual_seq_lengths",
        f"is {values}",
        f"lengths (not cumulative) that sum to {'' if exact else 'at most '}{tokens}",
    )
    return values


def _check_longest(name: str, lengths: list[int], limit: int) -> None:
    longest = max(lengths, default=0)
    check(
        longest <= limit,
        name,
        "actual_seq_lengths",
        f"holds {longest}",
        f"at most {limit} tokens a sequence",
    )


def _read_slots(name: str, slots: Tensor | None, last_token: int) -> Tensor:
    slots = _required(name, "ssm_state_indices", slots)
    check(
        slots.dim() == 1 and slots.shape[0] >= last_token,
        name,
        "ssm_state_indices",
        f"has shape {list(slots.shape)}",
        f"[{last_token}], one slot a token",
    )
    return slots


def _run_steps(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    beta: Tensor,
    scale: float | None,
    layout: list[int],
    slots_T: Tensor,
    accepted: Tensor | None,
    g: Tensor | None,
) -> Tensor:
    """Advance all sequences together, one token of each at a time, in float32."""
    lengths_R = torch.tensor(layout[1:], dtype=torch.long)
    starts_R = layout[0] + lengths_R.cumsum(0) - lengths_R
    first_R = starts_R + _accepted_offsets(name, accepted, lengths_R)
    busy_R = (lengths_R > 0).nonzero().flatten()
    used = torch.cat([torch.arange(s, s + n) for s, n in zip(starts_R, lengths_R, strict=True)])
    check_range(name, "ssm_state_indices", slots_T[used], 0, state.shape[0], "state slots")
    out_TNV = torch.full_like(value, torch.nan)
    memory_RNVK = state[slots_T[first_R[busy_R]].long()].float()
    factor = key.shape[-1] ** -0.5 if scale is None else scale
    group = value.shape[1] // key.shape[1]
    longest = int(lengths_R.max()) if busy_R.numel() else 0
    everyone = longest == int(lengths_R[busy_R].min()) if longest else True
    for step in range(longest):
        going = slice(None) if everyone else lengths_R[busy_R] > step
        rows_R = starts_R[busy_R][going] + step
        query_BK = (query[rows_R].float() * factor).repeat_interleave(group, 1).flatten(0, 1)
        key_BK1 = key[rows_R].float().repeat_interleave(group, 1).flatten(0, 1)[..., None]
        # A view of all sequences, or a copy of those that still have tokens.
        memory_BVK = memory_RNVK[going].flatten(0, 1)
        if g is not None:
            memory_BVK.mul_(g[rows_R].exp().flatten()[:, None, None])
        wanted_BV1 = value[rows_R].float().flatten(0, 1)[..., None]
        strength_B11 = beta[rows_R].float().flatten()[:, None, None]
        change_BV1 = (wanted_BV1 - memory_BVK @ key_BK1) * strength_B11
        memory_BVK.baddbmm_(change_BV1, key_BK1.transpose(1, 2))
        out_RNV = (memory_BVK @ query_BK[..., None]).view(-1, *value.shape[1:])
        out_TNV[rows_R] = out_RNV.to(value.dtype)
        memory_now = memory_BVK.view(-1, *memory_RNVK.shape[1:])
        state[slots_T[rows_R].long()] = memory_now.to(state.dtype)
        if not everyone:
            memory_RNVK[going] = memory_now
    return out_TNV


def _accepted_offsets(name: str, accepted: Tensor | None, lengths_R: Tensor) -> Tensor:
    """Token of each sequence whose slot holds the state to start from."""
    if accepted is None:
        return torch.zeros_like(lengths_R)
    check(
        accepted.dtype == torch.int32 and accepted.shape == lengths_R.shape,
        name,
        "num_accepted_tokens",
        f"is {accepted.dtype} {list(accepted.shape)}",
        f"int32 [{lengths_R.numel()}]",
    )
    fits = (lengths_R == 0) | ((accepted >= 1) & (accepted <= lengths_R))
    check(
        bool(fits.all()),
        name,
        "num_accepted_tokens",
        f"is {accepted.tolist()} for lengths {lengths_R.tolist()}",
        "1 to the length of the sequence",
    )
    return torch.where(lengths_R > 0, accepted.long() - 1, 0)
