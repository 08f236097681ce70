"""Whole expert layers through the operations, so that their conventions are seen to fit together.

The oracle is the dense sum over experts in double precision, with numbers quantized as the layer's
format says, written without any code of ours.
"""

import pytest
import torch
import torch.nn.functional as F

from ascend_recipes.ops import grouped, microscaling, moe_gating, moe_routing, quantization

pytestmark = pytest.mark.ops

TOKENS, HIDDEN, INNER, EXPERTS, TOP_K = 11, 64, 32, 8, 3
LIMIT = 3.0
SHARES = ((0, EXPERTS), (2, 6), (7, 8))
"""Experts that live here; all others contribute nothing."""


@pytest.fixture
def layer():
    scale = HIDDEN**-0.5
    return {
        "x": torch.randn(TOKENS, HIDDEN).bfloat16(),
        "w13": torch.randn(EXPERTS, HIDDEN, 2 * INNER) * scale * 3,
        "w2": torch.randn(EXPERTS, INNER, HIDDEN) * scale,
        "logits": torch.randn(TOKENS, EXPERTS) - torch.arange(EXPERTS) * 0.4,
    }


def routed(layer):
    """Weights and ids of DeepSeek-V4's router, without bias."""
    return moe_gating.moe_gate_sqrt_softplus_npu(
        layer["logits"], bias_G=None, top_k=TOP_K, scaling=1.5
    )


def token_int8(x):
    scale = x.abs().amax(dim=-1, keepdim=True) / 127
    return torch.round(x / scale).clamp(-128, 127) * scale


def column_int(weight, largest):
    """Rounded to integers of each column, with the scales."""
    scale = weight.abs().amax(dim=1, keepdim=True) / largest
    return torch.round(weight / scale).clamp(-largest - 1, largest), scale


def rounded(values, kind):
    """Blocks of 32 in float8 (PyTorch's cast) or FP4 (nearest of its eight magnitudes)."""
    blocks = values.double().unflatten(-1, (-1, 32))
    exponent = blocks.abs().amax(dim=-1, keepdim=True).log2().floor()
    scale = 2.0 ** (exponent - (8 if kind == "float8_e4m3fn" else 2))
    scaled = blocks / scale
    if kind == "float8_e4m3fn":
        nearest = scaled.clamp(-448, 448).to(torch.float8_e4m3fn).double()
    else:
        grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
        nearest = grid[(scaled.abs().unsqueeze(-1) - grid).abs().argmin(dim=-1)] * scaled.sign()
    return (nearest * scale).flatten(-2)


def dense(layer, weights, ids, w13, w2, share, round_token):
    """Σ over chosen experts of weight · expert(x), numbers rounded per token on the way."""
    x = round_token(layer["x"].double())
    y = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    for token in range(TOKENS):
        for slot in range(TOP_K):
            expert = int(ids[token, slot])
            if not share[0] <= expert < share[1]:
                continue
            h = x[token] @ w13[expert].double()
            gate, up = h[:INNER].clamp(max=LIMIT), h[INNER:].clamp(-LIMIT, LIMIT)
            h = round_token(F.silu(gate) * up)
            y[token] += weights[token, slot].double() * (h @ w2[expert].double())
    return y


def close(found, expected, error):
    assert (found.double() - expected).norm() <= error * expected.norm()


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("fused", [False, True])
def test_int8_layer(layer, share, fused):
    weights, ids = routed(layer)
    (w13, s13), (w2, s2) = (column_int(layer[name], 127) for name in ("w13", "w2"))
    here = slice(*share)
    rows, index, counts, scale = moe_routing.moe_init_routing_npu(
        layer["x"], ids, num_experts=EXPERTS, first_expert=share[0], last_expert=share[1],
        quantize=True,
    )  # fmt: skip
    first = (rows, w13[here].to(torch.int8))
    if fused:
        h, token = grouped.grouped_matmul_swiglu_quant_npu(
            *first, s13[here, 0], scale, counts, cumulative=False, limit=LIMIT
        )
    else:
        sums = grouped.grouped_quant_matmul_npu(
            *first, None, None, counts.cumsum(0), cumulative=True, output_dtype=torch.int32
        )
        h, token = quantization.dequant_swiglu_quant_npu(
            sums, s13[here, 0], scale, group_counts_E=counts, limit=LIMIT
        )
    out = grouped.grouped_quant_matmul_npu(
        h, w2[here].to(torch.int8), s2[here, 0], token, counts, cumulative=False,
        output_dtype=torch.bfloat16,
    )  # fmt: skip
    y = moe_routing.moe_unpermute_npu(out, index, weights_TK=weights)
    close(y, dense(layer, weights, ids, w13 * s13, w2 * s2, share, token_int8), 0.01)


@pytest.mark.parametrize("share", SHARES)
def test_int4_layer(layer, share):
    weights, ids = routed(layer)
    (w13, s13), (w2, s2) = (column_int(layer[name], 7) for name in ("w13", "w2"))
    here = slice(*share)
    packed = [
        torch.stack([quantization.pack_int4_npu(item.int()) for item in w[here]]) for w in (w13, w2)
    ]
    bits = [quantization.pack_quant_scale_npu(s[here, 0].flatten()) for s in (s13, s2)]
    bits = [b.view(share[1] - share[0], -1) for b in bits]
    bias = [8 * (w * s)[here].sum(dim=1) for w, s in ((w13, s13), (w2, s2))]
    rows, index, counts, scale = moe_routing.moe_init_routing_npu(
        layer["x"], ids, num_experts=EXPERTS, first_expert=share[0], last_expert=share[1],
        quantize=True,
    )  # fmt: skip
    h, token = grouped.grouped_int4_matmul_swiglu_quant_npu(
        rows, packed[0], bits[0], bias[0], scale, counts, cumulative=False,
        limit=LIMIT,
    )  # fmt: skip
    out = grouped.grouped_int4_matmul_npu(
        h, packed[1], bits[1], bias[1], token, counts.cumsum(0), cumulative=True,
        output_dtype=torch.bfloat16,
    )  # fmt: skip
    y = moe_routing.moe_unpermute_npu(out, index, weights_TK=weights)
    close(y, dense(layer, weights, ids, w13 * s13, w2 * s2, share, token_int8), 0.02)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float4_e2m1"])
def test_microscaled_layer(layer, share, kind):
    """MXFP8 rows under MXFP8 or MXFP4 weights."""
    weights, ids = routed(layer)
    here = slice(*share)

    def stored(weight):
        """Weight [E, K, N] as the operators take it, with its bytes."""
        q, s = microscaling.mx_quant_npu(weight.transpose(1, 2).contiguous(), kind=kind)
        return q.transpose(1, 2), s.transpose(1, 2)

    multiply = (
        microscaling.grouped_mx_w4a8_matmul_npu
        if kind == "float4_e2m1"
        else lambda *a, **k: microscaling.grouped_mx_matmul_npu(*a, kind=kind, **k)
    )
    rows, index, counts, _ = moe_routing.moe_init_routing_npu(
        layer["x"], ids, num_experts=EXPERTS, first_expert=share[0], last_expert=share[1]
    )
    options = {"cumulative": False, "output_dtype": torch.bfloat16}
    q, s = microscaling.mx_quant_npu(rows, kind="float8_e4m3fn")
    w, t = stored(layer["w13"][here])
    h = multiply(q, w, s, t, counts, **options)
    gate_up = quantization.swiglu_clamped_npu(h, limit=LIMIT)
    q, s = microscaling.mx_quant_npu(gate_up, kind="float8_e4m3fn")
    w, t = stored(layer["w2"][here])
    out = multiply(q, w, s, t, counts, **options)
    y = moe_routing.moe_unpermute_npu(out, index, weights_TK=weights)
    w13, w2 = (rounded(layer[name].transpose(1, 2), kind).transpose(1, 2) for name in ("w13", "w2"))
    expected = dense(
        layer, weights, ids, w13, w2, share, lambda item: rounded(item, "float8_e4m3fn")
    )
    close(y, expected, 0.02)


def test_float_layer_by_permutation(layer):
    weights, ids = routed(layer)
    rows, places = moe_routing.moe_permute_npu(layer["x"], ids)
    counts = torch.bincount(ids.flatten(), minlength=EXPERTS)
    h = grouped.grouped_matmul_npu(rows, layer["w13"].bfloat16(), counts, cumulative=False)
    h = quantization.swiglu_clamped_npu(h, limit=LIMIT)
    out = grouped.grouped_matmul_npu(h, layer["w2"].bfloat16(), counts.cumsum(0), cumulative=True)
    y = moe_routing.moe_unpermute_npu(out, places, weights_TK=weights)
    share = (0, EXPERTS)
    expected = dense(layer, weights, ids, layer["w13"], layer["w2"], share, lambda item: item)
    close(y, expected, 0.02)
    finalized = moe_routing.moe_finalize_routing_npu(out, places, weights)
    close(finalized, expected, 0.02)
