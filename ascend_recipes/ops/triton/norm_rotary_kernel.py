"""Kernel of RMS norm and rotary embedding of heads. Imports only Triton."""

# Shapes: T tokens, N heads, D head dim, R rotated part of a head, F = R / 2 frequencies,
#         P = D - R elements that pass unrotated
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def norm_rotary_kernel(
    x_TND,
    weight_D,
    cosine_TF,
    sine_TF,
    y_TND,
    num_tokens,
    epsilon,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_FREQUENCIES: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_PASSED: tl.constexpr,
    ADD_ONE: tl.constexpr,
):
    """Normalize each head in float32, multiply by (1 +) weight, turn the first R elements.

    Halves belong together (NeoX). Programs take turns at blocks of heads of a token.
    """
    frequency_F = tl.arange(0, NUM_FREQUENCIES)
    passed_P = 2 * NUM_FREQUENCIES + tl.arange(0, BLOCK_PASSED)
    is_passed_P = passed_P < HEAD_DIM
    blocks: tl.constexpr = (NUM_HEADS + BLOCK_HEADS - 1) // BLOCK_HEADS
    first_weight_F = tl.load(weight_D + frequency_F).to(tl.float32)
    second_weight_F = tl.load(weight_D + NUM_FREQUENCIES + frequency_F).to(tl.float32)
    passed_weight_P = tl.load(weight_D + passed_P, mask=is_passed_P, other=0.0).to(tl.float32)
    if ADD_ONE:
        first_weight_F += 1.0
        second_weight_F += 1.0
        passed_weight_P += 1.0
    for block in range(tl.program_id(0), num_tokens * blocks, tl.num_programs(0)):
        token = block // blocks
        head_N = block % blocks * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
        is_head_N1 = (head_N < NUM_HEADS)[:, None]
        start_N1 = (token * NUM_HEADS + head_N[:, None]) * HEAD_DIM
        first_NF = start_N1 + frequency_F[None, :]
        second_NF = first_NF + NUM_FREQUENCIES
        rest_NP = start_N1 + passed_P[None, :]
        is_rest_NP = is_head_N1 & is_passed_P[None, :]
        a_NF = tl.load(x_TND + first_NF, mask=is_head_N1, other=0.0).to(tl.float32)
        b_NF = tl.load(x_TND + second_NF, mask=is_head_N1, other=0.0).to(tl.float32)
        c_NP = tl.load(x_TND + rest_NP, mask=is_rest_NP, other=0.0).to(tl.float32)
        squares_N = tl.sum(a_NF * a_NF, 1) + tl.sum(b_NF * b_NF, 1) + tl.sum(c_NP * c_NP, 1)
        scale_N1 = (1.0 / tl.sqrt(squares_N / HEAD_DIM + epsilon))[:, None]
        a_NF = a_NF * scale_N1 * first_weight_F[None, :]
        b_NF = b_NF * scale_N1 * second_weight_F[None, :]
        c_NP = c_NP * scale_N1 * passed_weight_P[None, :]
        place_F = token * NUM_FREQUENCIES + frequency_F
        cosine_F = tl.load(cosine_TF + place_F).to(tl.float32)[None, :]
        sine_F = tl.load(sine_TF + place_F).to(tl.float32)[None, :]
        kind = y_TND.dtype.element_ty
        tl.store(y_TND + first_NF, (a_NF * cosine_F - b_NF * sine_F).to(kind), mask=is_head_N1)
        tl.store(y_TND + second_NF, (b_NF * cosine_F + a_NF * sine_F).to(kind), mask=is_head_N1)
        tl.store(y_TND + rest_NP, c_NP.to(kind), mask=is_rest_NP)
