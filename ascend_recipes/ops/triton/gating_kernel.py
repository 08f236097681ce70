"""Kernel of the gated delta rule's gates. Imports only Triton, so that it lowers without torch."""

# Shapes: T tokens, N value heads
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def gating_kernel(
    a_TN,
    b_TN,
    a_log_N,
    dt_bias_N,
    g_TN,
    beta_TN,
    num_tokens,
    NUM_HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):
    """g = -exp(a_log) · softplus(a + dt_bias), β = sigmoid(b), in float32; tiles of tokens.

    Programs take turns, because an NPU launches at most 65535 of them.
    """
    head_N = tl.arange(0, BLOCK_HEADS)
    is_head_N = head_N < NUM_HEADS
    rate_N = -tl.exp(tl.load(a_log_N + head_N, mask=is_head_N, other=0.0).to(tl.float32))
    bias_N = tl.load(dt_bias_N + head_N, mask=is_head_N, other=0.0).to(tl.float32)
    num_tiles = tl.cdiv(num_tokens, BLOCK_TOKENS)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        token_T = tile * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
        place_TN = token_T[:, None] * NUM_HEADS + head_N[None, :]
        mask_TN = (token_T < num_tokens)[:, None] & is_head_N[None, :]
        step_TN = tl.load(a_TN + place_TN, mask=mask_TN, other=0.0).to(tl.float32) + bias_N[None, :]
        # exp overflows long before softplus(x) stops being x.
        bounded_TN = tl.log(1.0 + tl.exp(tl.minimum(step_TN, 20.0)))
        softplus_TN = tl.where(step_TN > 20.0, step_TN, bounded_TN)
        tl.store(g_TN + place_TN, rate_N[None, :] * softplus_TN, mask=mask_TN)
        write_TN = tl.load(b_TN + place_TN, mask=mask_TN, other=0.0).to(tl.float32)
        beta = 1.0 / (1.0 + tl.exp(-write_TN))
        tl.store(beta_TN + place_TN, beta.to(beta_TN.dtype.element_ty), mask=mask_TN)
