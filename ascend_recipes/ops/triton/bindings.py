"""Bindings of operations to Triton kernels of ours."""

# Shapes: T tokens, N heads, D head dim, F frequencies, Nv value heads

import torch
import triton
from torch import Tensor

from ascend_recipes.ops.triton.gating_kernel import gating_kernel
from ascend_recipes.ops.triton.norm_rotary_kernel import norm_rotary_kernel

PROGRAMS = 40
"""Programs that are launched at most; they take turns. Vector cores of the smallest A2 part."""

TILE = 1024
"""Elements of a tile: an A2 core has 192 KiB for a dozen float32 tiles, some of them twice."""

MAX_BLOCK_HEADS = 16
"""Heads that a program normalizes at once, for the same reason."""

MIN_BLOCK_HEADS = 2
"""A block of one head does not lower to HIVM on A5."""


def delta_rule_gates_triton(
    a_TNv: Tensor, b_TNv: Tensor, a_log_Nv: Tensor, dt_bias_Nv: Tensor
) -> tuple[Tensor, Tensor]:
    """Decay g [T, Nv] in float32 and write strength beta [T, Nv] in b's type, in one kernel."""
    tokens, heads = a_TNv.shape
    block_heads = triton.next_power_of_2(heads)
    block_tokens = max(1, TILE // block_heads)
    g_TNv = torch.empty(tokens, heads, dtype=torch.float32, device=a_TNv.device)
    beta_TNv = torch.empty(tokens, heads, dtype=b_TNv.dtype, device=b_TNv.device)
    programs = min(PROGRAMS, triton.cdiv(tokens, block_tokens))
    if programs == 0:
        return g_TNv, beta_TNv
    gating_kernel[(programs,)](
        a_TNv.contiguous(),
        b_TNv.contiguous(),
        a_log_Nv,
        dt_bias_Nv,
        g_TNv,
        beta_TNv,
        tokens,
        NUM_HEADS=heads,
        BLOCK_HEADS=block_heads,
        BLOCK_TOKENS=block_tokens,
    )
    return g_TNv, beta_TNv


def rms_norm_rotary_triton(
    x_TND: Tensor,
    weight_D: Tensor,
    cosine_TF: Tensor,
    sine_TF: Tensor,
    *,
    epsilon: float,
    add_one: bool,
) -> Tensor:
    """RMS norm of each head, times (1 +) weight, then NeoX rotation of its first 2F elements.

    Raises:
        ValueError: F is no power of two, or the rotated part is wider than a head.
    """
    tokens, heads, width = x_TND.shape
    frequencies = cosine_TF.shape[1]
    if frequencies & (frequencies - 1) or not 0 < 2 * frequencies <= width:
        raise ValueError(
            f"rms_norm_rotary: cosine_TF has {frequencies} frequencies for heads of {width}; "
            "allowed: a power of two, at most half a head"
        )
    y_TND = torch.empty_like(x_TND, memory_format=torch.contiguous_format)
    if tokens == 0:
        return y_TND
    block_heads = min(MAX_BLOCK_HEADS, max(MIN_BLOCK_HEADS, triton.next_power_of_2(heads)))
    blocks = tokens * triton.cdiv(heads, block_heads)
    norm_rotary_kernel[(min(PROGRAMS, blocks),)](
        x_TND.contiguous(),
        weight_D,
        cosine_TF.contiguous(),
        sine_TF.contiguous(),
        y_TND,
        tokens,
        epsilon,
        NUM_HEADS=heads,
        HEAD_DIM=width,
        NUM_FREQUENCIES=frequencies,
        BLOCK_HEADS=block_heads,
        BLOCK_PASSED=triton.next_power_of_2(max(width - 2 * frequencies, 1)),
        ADD_ONE=add_one,
    )
    return y_TND
