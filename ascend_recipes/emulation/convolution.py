"""Emulated causal convolution of vllm-ascend's compiled library, prefill and update."""

# Shapes: T tokens, C channels, W taps, S cache lines, L state rows, R sequences

from itertools import pairwise

import torch
from torch import Tensor

from ascend_recipes.emulation.refusal import (
    OperatorRefusedError,
    check,
    check_contiguous,
    check_same_dtype,
    check_shape,
)

NAME = "_C_ascend::npu_causal_conv1d_custom"
ALIGNMENT = 16
"""Channels of a 32-byte block in a 2-byte type."""


def causal_conv1d(
    output: Tensor,
    x: Tensor,
    weight: Tensor,
    conv_state: Tensor,
    bias_opt: Tensor | None,
    query_start_loc_opt: Tensor | None,
    cache_indices_opt: Tensor | None,
    initial_state_mode_opt: Tensor | None,
    num_accepted_tokens_opt: Tensor | None,
    activation_mode: int,
    pad_slot_id: int,
    run_mode: int,
) -> Tensor:
    """`_C_ascend::npu_causal_conv1d_custom` for token-major input [T, C].

    Writes `output` and the cache lines. In run mode 0 a sequence starts from its cache line where
    `initial_state_mode` says so and from zeros otherwise; in run mode 1 always from its line. A
    sequence whose line is the pad slot is skipped: its rows of `output` stay as they were.
    """
    decode = run_mode == 1
    check(run_mode in (0, 1), NAME, "run_mode", f"is {run_mode}", "0, 1")
    check(activation_mode in (0, 1), NAME, "activation_mode", f"is {activation_mode}", "0, 1")
    _check_tensors(output, x, weight, conv_state, bias_opt)
    starts = _read_starts(x, query_start_loc_opt, decode)
    requests = len(starts) - 1
    lines = _read_lines(cache_indices_opt, conv_state, requests)
    fresh_R = _read_fresh(initial_state_mode_opt, requests, decode)
    offsets_R = _read_offsets(num_accepted_tokens_opt, weight, conv_state, requests, decode)
    lengths = [stop - start for start, stop in pairwise(starts)]
    active = [
        request
        for request in range(requests)
        if lengths[request] > 0
        and lines[request] != pad_slot_id
        and 0 <= lines[request] < conv_state.shape[0]
    ]
    # Sequences of equal length share one convolution, so that a decode step is a single one.
    for length in sorted({lengths[request] for request in active}):
        group = [request for request in active if lengths[request] == length]
        _convolve_group(
            output,
            x,
            weight,
            conv_state,
            bias_opt,
            rows_RT=torch.tensor([starts[r] for r in group])[:, None] + torch.arange(length),
            lines_R=torch.tensor([lines[r] for r in group]),
            fresh_R=fresh_R[group],
            offsets_R=offsets_R[group],
            activate=activation_mode == 1,
            speculative=num_accepted_tokens_opt is not None,
        )
    return output


def causal_conv1d_meta(
    output: Tensor,
    x: Tensor,
    weight: Tensor,
    conv_state: Tensor,
    bias_opt: Tensor | None,
    query_start_loc_opt: Tensor | None,
    cache_indices_opt: Tensor | None,
    initial_state_mode_opt: Tensor | None,
    num_accepted_tokens_opt: Tensor | None,
    activation_mode: int,
    pad_slot_id: int,
    run_mode: int,
) -> Tensor:
    """The operator returns its `output` argument."""
    return output


def _check_tensors(
    output: Tensor, x: Tensor, weight: Tensor, conv_state: Tensor, bias: Tensor | None
) -> None:
    check_same_dtype(NAME, x, weight=weight, conv_state=conv_state, bias_opt=bias, output=output)
    check_shape(NAME, "x", x, (None, None), "[tokens, channels]")
    channels = x.shape[1]
    check(
        channels > 0 and channels % ALIGNMENT == 0,
        NAME,
        "x",
        f"has {channels} channels",
        f"a positive multiple of {ALIGNMENT}",
    )
    check_shape(NAME, "weight", weight, (None, channels), "[taps, channels]")
    taps = weight.shape[0]
    check(2 <= taps <= 4, NAME, "weight", f"has {taps} taps", "2 to 4")
    check_shape(NAME, "conv_state", conv_state, (None, None, channels), "[lines, rows, channels]")
    lines, rows = conv_state.shape[:2]
    fits = lines > 0 and rows >= taps - 1
    problem = f"has {lines} lines of {rows} rows"
    check(fits, NAME, "conv_state", problem, f"lines of at least {taps - 1} rows")
    check_contiguous(NAME, x=x, output=output)
    check_shape(NAME, "output", output, tuple(x.shape), "the shape of x")
    if bias is not None:
        check_shape(NAME, "bias_opt", bias, (channels,), "[channels]")


def _read_starts(x: Tensor, starts: Tensor | None, decode: bool) -> list[int]:
    if starts is None:
        if not decode:
            raise OperatorRefusedError(
                NAME, "query_start_loc_opt", "is None", "required in run mode 0 for [T, C] input"
            )
        check(x.shape[0] > 0, NAME, "x", "has no token", "one a sequence in run mode 1")
        return list(range(x.shape[0] + 1))
    check(starts.dim() == 1, NAME, "query_start_loc_opt", f"has {starts.dim()} dimensions", "1")
    values: list[int] = starts.tolist()
    rising = all(first <= second for first, second in pairwise(values))
    check(
        len(values) > 1 and values[0] == 0 and rising and values[-1] <= x.shape[0],
        NAME,
        "query_start_loc_opt",
        f"is {values}",
        f"starts that rise from 0 to at most {x.shape[0]} (cumulative, one more than sequences)",
    )
    return values


def _read_lines(indices: Tensor | None, conv_state: Tensor, requests: int) -> list[int]:
    if indices is None:
        check(
            conv_state.shape[0] >= requests,
            NAME,
            "conv_state",
            f"has {conv_state.shape[0]} lines",
            f"at least {requests} when cache_indices_opt is None",
        )
        return list(range(requests))
    check(
        indices.dim() in (1, 2) and indices.shape[0] == requests and indices.numel() > 0,
        NAME,
        "cache_indices_opt",
        f"has shape {list(indices.shape)}",
        f"[{requests}] or [{requests}, any] (the first column counts)",
    )
    column = indices if indices.dim() == 1 else indices[:, 0]
    lines: list[int] = column.tolist()
    return lines


def _read_fresh(mode: Tensor | None, requests: int, decode: bool) -> Tensor:
    """True where a sequence starts from zeros."""
    if mode is None:
        return torch.full((requests,), not decode)
    check(not decode, NAME, "initial_state_mode_opt", "is set", "None in run mode 1")
    check_shape(NAME, "initial_state_mode_opt", mode, (requests,), "[sequences]")
    return ~mode.bool()


def _read_offsets(
    accepted: Tensor | None, weight: Tensor, conv_state: Tensor, requests: int, decode: bool
) -> Tensor:
    """First state row that counts: one less than the accepted tokens of the last step."""
    if accepted is None:
        return torch.zeros(requests, dtype=torch.long)
    check(decode, NAME, "num_accepted_tokens_opt", "is set", "None in run mode 0")
    check(weight.shape[0] == 4, NAME, "num_accepted_tokens_opt", "is set", "None unless 4 taps")
    check_shape(NAME, "num_accepted_tokens_opt", accepted, (requests,), "[sequences]")
    highest = conv_state.shape[1] - (weight.shape[0] - 1)
    return (accepted.long() - 1).clamp(0, highest)


def _convolve_group(
    output: Tensor,
    x: Tensor,
    weight_WC: Tensor,
    conv_state: Tensor,
    bias: Tensor | None,
    *,
    rows_RT: Tensor,
    lines_R: Tensor,
    fresh_R: Tensor,
    offsets_R: Tensor,
    activate: bool,
    speculative: bool,
) -> None:
    history = weight_WC.shape[0] - 1
    length = rows_RT.shape[1]
    past_RHC = conv_state[lines_R[:, None], offsets_R[:, None] + torch.arange(history)]
    past_RHC = past_RHC.masked_fill(fresh_R[:, None, None], 0)
    joined_RSC = torch.cat((past_RHC, x[rows_RT]), dim=1)
    total_RTC = torch.zeros(rows_RT.shape[0], length, x.shape[1])
    for tap, weight_C in enumerate(weight_WC.float()):
        total_RTC += joined_RSC[:, tap : tap + length].float() * weight_C
    if bias is not None:
        total_RTC += bias.float()
    if activate:
        total_RTC = total_RTC * total_RTC.sigmoid()
    output[rows_RT] = total_RTC.to(output.dtype)
    rows = conv_state.shape[1]
    if speculative and history - 1 + length <= rows:
        # Every token of the step stays readable: the next step picks by what was accepted.
        conv_state[lines_R, : history - 1 + length] = joined_RSC[:, 1:]
    else:
        conv_state[lines_R, :history] = joined_RSC[:, -history:]
