"""Linear quantization: references against integer arithmetic, bindings against the references."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.emulation import install
from ascend_recipes.ops import quantization
from ascend_recipes.ops.reference import quantization as reference_quantization

pytestmark = pytest.mark.ops

LOW = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *LOW)
SHAPES = ((1, 256), (7, 1, 64), (3, 5, 128), (2, 513), (129, 48), (2, 3, 2, 33))
MATRICES = ((1, 3, 5), (7, 33, 9), (2, 129, 64), (65, 16, 1), (5, 257, 130), (16, 512, 24))
EPSILON = 1e-6


def int8(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def i8_full(value, *shape):
    return torch.full(shape, value, dtype=torch.int8)


def integer_product(x, weight):
    """Exact sums in numpy's int64."""
    return torch.from_numpy(x.numpy().astype(np.int64) @ weight.numpy().astype(np.int64))


# --- references ----------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("smooth", [False, True])
def test_dynamic_quant_reference_rounds_like_numpy(shape, smooth):
    x = torch.randn(shape)
    factor = torch.rand(shape[-1]) + 0.5 if smooth else None
    q, scale = reference_quantization.dynamic_quant(x, smooth_H=factor)
    wide = x.numpy() * (factor.numpy() if smooth else np.float32(1))
    expected_scale = np.abs(wide).max(axis=-1) / np.float32(127)
    np.testing.assert_allclose(scale.numpy(), expected_scale, rtol=1e-6)
    np.testing.assert_array_equal(q.numpy(), np.rint(wide / scale.numpy()[..., None]))
    assert int(q.abs().max()) == 127


@pytest.mark.parametrize(("m", "k", "n"), MATRICES)
def test_quant_matmul_reference_is_exact(m, k, n):
    x, weight, bias = int8(m, k), int8(k, n), torch.randint(-9999, 9999, (n,), dtype=torch.int32)
    sums = reference_quantization.quant_matmul(
        x, weight, torch.ones(n), bias_N=bias, output_dtype=torch.int32
    )
    assert torch.equal(sums.long(), integer_product(x, weight) + bias)
    scale, token, last = torch.rand(n), torch.rand(m), torch.randn(n)
    y = reference_quantization.quant_matmul(
        x, weight, scale, token_scale_T=token, bias_N=last, output_dtype=torch.float32
    )
    exact = integer_product(x, weight).double() * scale.double() * token.double()[:, None]
    torch.testing.assert_close(y, (exact + last).float(), rtol=1e-5, atol=1e-3)


def test_norm_then_quant_reference_equals_pytorch():
    x, weight = torch.randn(5, 96), torch.randn(96)
    q, scale = reference_quantization.rms_norm_dynamic_quant(x, weight, epsilon=EPSILON)
    normed = F.rms_norm(x.double(), (96,), weight.double(), EPSILON)
    torch.testing.assert_close(scale.double(), normed.abs().amax(-1) / 127, rtol=1e-5, atol=1e-7)
    assert (q - normed / scale[:, None]).abs().max() <= 0.501


def test_clamped_reference_is_deepseek():
    """DeepSeek-V4 names the projections w1 and w3: g = min(x w1, 10), u = clamp(x w3, -10, 10)."""
    x = torch.randn(9, 2 * 24) * 12
    gate, up = x[:, :24].clamp(max=10.0), x[:, 24:].clamp(min=-10.0, max=10.0)
    expected = gate * torch.sigmoid(gate) * up
    torch.testing.assert_close(reference_quantization.swiglu_clamped(x, limit=10.0), expected)


def test_dequant_swiglu_reference_is_exact_before_rounding():
    x, scale = torch.randint(-90000, 90000, (6, 64), dtype=torch.int32), torch.rand(3, 64) * 1e-3
    token, counts = torch.rand(6), torch.tensor([2, 0, 4])
    q, s = reference_quantization.dequant_swiglu_quant(x, scale, token, group_counts_E=counts)
    wide = x.double() * scale[[0, 0, 2, 2, 2, 2]].double() * token.double()[:, None]
    y = F.silu(wide[:, :32]) * wide[:, 32:]
    torch.testing.assert_close(s.double(), y.abs().amax(-1) / 127, rtol=1e-5, atol=0)
    assert (q.double() - y / s[:, None]).abs().max() <= 0.501


def test_block_dequant_reference_equals_a_loop():
    weight = torch.randn(200, 300).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 3) + 0.1
    dense = reference_quantization.block_dequant(weight, scale, output_dtype=torch.float32)
    for row, column in ((0, 0), (127, 128), (128, 255), (199, 299)):
        expected = weight[row, column].float() * scale[row // 128, column // 128]
        assert dense[row, column] == expected


# --- bindings ------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("smooth", [False, True])
def test_dynamic_quant_binding(shape, dtype, smooth, reference, relaxed, agree):
    relaxed(dtype)
    x = torch.randn(shape).to(dtype)
    factor = (torch.rand(shape[-1]) + 0.5).to(dtype) if smooth else None
    found = quantization.dynamic_quant_npu(x, smooth_H=factor)
    for actual, expected in zip(found, reference("dynamic_quant")(x, smooth_H=factor), strict=True):
        agree("dynamic_quant", actual, expected)


def test_dynamic_quant_of_zeros_is_zero(reference):
    for function in (quantization.dynamic_quant_npu, reference("dynamic_quant")):
        q, scale = function(torch.zeros(2, 8, dtype=torch.bfloat16))
        assert not q.any()
        assert not scale.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("per_column", [False, True])
def test_static_quant_binding(shape, dtype, per_column, reference):
    x = (torch.randn(shape) * 2).to(dtype)
    size = shape[-1] if per_column else 1
    scale, offset = (torch.rand(size) * 40).to(dtype), torch.randint(-5, 6, (size,)).to(dtype)
    expected = reference("static_quant")(x, scale, offset)
    assert torch.equal(quantization.static_quant_npu(x, scale, offset), expected)


def test_static_quant_takes_the_reciprocal():
    """The convention: what the checkpoint calls input_scale is divided by."""
    x, scale, offset = torch.randn(4, 16), torch.tensor([0.04]), torch.zeros(1)
    q = quantization.static_quant_npu(x, 1 / scale, offset)
    torch.testing.assert_close(q.float() * scale, x, rtol=0, atol=0.021)
    assert not torch.equal(q, quantization.static_quant_npu(x, scale, offset))


@pytest.mark.parametrize(("m", "k", "n"), MATRICES)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.int32])
@pytest.mark.parametrize("bias", [None, torch.int32, torch.float32])
def test_quant_matmul_binding(m, k, n, dtype, bias, reference, relaxed, agree):
    relaxed(dtype)
    x, weight, scale = int8(m, k), int8(k, n), torch.rand(n) * 1e-2
    token = None if dtype == torch.int32 else torch.rand(m)
    bias = torch.int32 if bias is not None and dtype == torch.int32 else bias
    values = None if bias is None else (torch.randn(n) * 50).to(bias)
    arguments = {"token_scale_T": token, "bias_N": values, "output_dtype": dtype}
    found = quantization.quant_matmul_npu(x, weight, scale, **arguments)
    agree("quant_matmul", found, reference("quant_matmul")(x, weight, scale, **arguments))


@pytest.mark.parametrize(("m", "k", "n"), MATRICES)
def test_static_w8a8_layer(m, k, n, reference, agree):
    """Static W8A8: bfloat16 takes float32 scales, float16 the packed ones; the bias is int32."""
    x, weight = int8(m, k), int8(k, n)
    scale, bias = torch.rand(n) * 1e-3, torch.randint(-9000, 9000, (n,), dtype=torch.int32)
    packed = quantization.pack_quant_scale_npu(scale)
    assert torch.equal(packed, reference("pack_quant_scale")(scale))
    for factor, dtype in ((scale, torch.bfloat16), (packed, torch.float16)):
        arguments = {"bias_N": bias, "output_dtype": dtype}
        found = quantization.quant_matmul_npu(x, weight, factor, **arguments)
        agree("quant_matmul", found, reference("quant_matmul")(x, weight, factor, **arguments))


def test_packed_scales_keep_eleven_bits():
    scale = torch.rand(64) * 1e-3
    kept = reference_quantization.unpacked_scale(quantization.pack_quant_scale_npu(scale))
    assert ((scale - kept) / scale).abs().max() < 2**-10
    assert bool((kept <= scale).all())


def test_a_dynamic_layer_reproduces_the_matrix_product():
    x, weight = torch.randn(9, 256), torch.randn(256, 48)
    q, token = quantization.dynamic_quant_npu(x.bfloat16())
    quantized, column = reference_quantization.dynamic_quant(weight.t())
    y = quantization.quant_matmul_npu(
        q, quantized.t(), column, token_scale_T=token, output_dtype=torch.bfloat16
    )
    exact = x @ weight
    assert (y.float() - exact).norm() / exact.norm() < 0.02


@pytest.mark.parametrize("one_scale", [False, True])
@pytest.mark.parametrize(("m", "k", "n"), MATRICES)
def test_int8_output_with_offset_is_exact(m, k, n, one_scale):
    x, weight = int8(m, k), int8(k, n)
    scale = torch.full((1 if one_scale else n,), 2.0**-9)
    offset = torch.randint(-20, 20, (1 if one_scale else n,)).float()
    y = torch.ops.npu.npu_quant_matmul(x, weight, scale, offset=offset)
    # A power of two scales without error, so that numpy's rint sees the same number.
    exact = np.rint((integer_product(x, weight) * 2.0**-9 + offset).numpy()).clip(-128, 127)
    assert y.dtype == torch.int8
    np.testing.assert_array_equal(y.numpy(), exact)


@pytest.mark.parametrize("value", [-128, 127])
@pytest.mark.parametrize("inner", [1, 64, 65535])
def test_the_largest_sums_are_exact(value, inner):
    """Some CPUs multiply int8 through saturating int16 sums; a sum of extremes would show it."""
    x, weight = i8_full(value, 3, inner), i8_full(-128, inner, 16)
    sums = torch.ops.npu.npu_quant_matmul(x, weight, torch.ones(16), output_dtype=3)
    assert bool((sums == -128 * value * inner).all())


def test_batches_broadcast_as_in_the_documentation():
    x, weight = int8(1, 5, 33), int8(7, 33, 4)
    sums = torch.ops.npu.npu_quant_matmul(x, weight, torch.ones(4), output_dtype=3)
    assert sums.shape == (7, 5, 4)
    for batch in range(7):
        assert torch.equal(sums[batch].long(), integer_product(x[0], weight[batch]))


def test_group_ends_choose_the_smoothing_factors():
    """smooth_scales[i] acts on rows from group_index[i - 1] to group_index[i]."""
    x, smooth = torch.randn(6, 16).bfloat16(), (torch.rand(3, 16) + 0.5).bfloat16()
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    q, scale = torch.ops.npu.npu_dynamic_quant(x, smooth_scales=smooth, group_index=ends)
    for row, group in enumerate([0, 0, 2, 2, 2, 2]):
        expected = quantization.dynamic_quant_npu(x[row : row + 1], smooth_H=smooth[group])
        assert torch.equal(q[row : row + 1], expected[0])
        assert scale[row] == expected[1][0]


def test_swapped_scales_change_the_result():
    x, weight, scale, token = int8(8, 32), int8(32, 8), torch.rand(8), torch.rand(8)
    y, swapped = (
        quantization.quant_matmul_npu(
            x, weight, a, token_scale_T=b, output_dtype=torch.bfloat16
        ).float()
        for a, b in ((scale, token), (token, scale))
    )
    assert not torch.allclose(y, swapped, rtol=0.05)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("added", [False, True])
def test_norm_quant_bindings(shape, dtype, added, reference, agree):
    x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    weight = (torch.randn(shape[-1]) * 0.3 + 1).to(dtype)
    name = "add_rms_norm_dynamic_quant" if added else "rms_norm_dynamic_quant"
    inputs = (x, residual, weight) if added else (x, weight)
    found = vars(quantization)[f"{name}_npu"](*inputs, epsilon=EPSILON)
    for actual, expected in zip(found, reference(name)(*inputs, epsilon=EPSILON), strict=True):
        agree(name, actual, expected)
    if not added:
        parts = quantization.rms_norm_dynamic_quant_parts_npu(*inputs, epsilon=EPSILON)
        for actual, expected in zip(parts, found, strict=True):
            agree(name, actual, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 8), (3, 66), (2, 3, 64), (129, 10), (5, 514), (1, 1, 1, 2)])
@pytest.mark.parametrize(
    "binding", [quantization.swiglu_clamped_npu, quantization.swiglu_clamped_parts_npu]
)
def test_swiglu_clamped_bindings(shape, dtype, binding, reference, agree):
    x = (torch.randn(shape) * 3).to(dtype)
    agree("swiglu_clamped", binding(x, limit=2.0), reference("swiglu_clamped")(x, limit=2.0))
    halves = x.chunk(2, dim=-1)
    swapped = binding(torch.cat(halves[::-1], dim=-1), limit=2.0)
    assert not torch.equal(swapped, binding(x, limit=2.0)) or x.numel() == 2


@pytest.mark.parametrize("limit", [0.0, 1.5])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("rows", "half"), [(1, 32), (9, 64), (6, 96), (17, 32), (4, 160)])
@pytest.mark.parametrize(
    "binding",
    [quantization.dequant_swiglu_quant_npu, quantization.dequant_swiglu_quant_builtin_npu],
)
def test_dequant_swiglu_quant_bindings(rows, half, grouped, limit, binding, reference, agree):
    x = torch.randint(-90000, 90000, (rows, 2 * half), dtype=torch.int32)
    counts = torch.tensor([rows // 2, 0, rows // 3]) if grouped else None
    scale = torch.rand(3 if grouped else 1, 2 * half) * 1e-4
    arguments = (x, scale, torch.rand(rows))
    options = {"group_counts_E": counts, "limit": limit}
    found = binding(*arguments, **options)
    expected = reference("dequant_swiglu_quant")(*arguments, **options)
    used = rows if counts is None else int(counts.sum())
    for actual, wanted in zip(found, expected, strict=True):
        agree("dequant_swiglu_quant", actual[:used], wanted[:used])
    assert bool(found[1][used:].isnan().all()), "rows behind the groups must not look like results"


def test_cumulative_counts_are_no_counts():
    x = torch.randint(-90000, 90000, (6, 64), dtype=torch.int32)
    scale, token = torch.rand(2, 64) * 1e-4, torch.rand(6)
    right = torch.tensor([2, 4])
    with pytest.raises(ValueError, match=r"group_index.*at most 6"):
        quantization.dequant_swiglu_quant_npu(x, scale, token, group_counts_E=right.cumsum(0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (128, 128), (130, 257), (300, 5), (7, 384)])
def test_block_dequant_binding(rows, columns, dtype, reference):
    weight = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-rows // 128), -(-columns // 128))
    found = quantization.block_dequant_torch(weight, scale, output_dtype=dtype)
    assert torch.equal(found, reference("block_dequant")(weight, scale, output_dtype=dtype))


@pytest.mark.parametrize("layout", ["nz", "nd"])
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.int8, torch.int32, torch.uint8]
)
@pytest.mark.parametrize("shape", [(1, 1), (17, 33), (2, 16, 32), (3, 5, 7), (130, 31)])
def test_format_cast_keeps_values(layout, dtype, shape, reference):
    x = (torch.rand(shape) * 100).to(dtype)
    cast = quantization.format_cast_npu(x, layout=layout)
    assert torch.equal(cast, x)
    assert torch.equal(reference("format_cast")(x, layout=layout), x)
    assert cast.data_ptr() != x.data_ptr()


def test_format_cast_refuses_other_layouts():
    with pytest.raises(ValueError, match=r"layout 'zn'.*nz, nd"):
        quantization.format_cast_npu(torch.zeros(2, 2), layout="zn")


# --- round trips ---------------------------------------------------------------------------------
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 2**31))
def test_int4_packing_round_trip(rows, words, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-8, 8, (rows, 8 * words), dtype=torch.int32, generator=generator)
    packed = quantization.pack_int4_npu(weight)
    assert torch.equal(packed, reference_quantization.pack_int4(weight))
    assert torch.equal(quantization.unpack_int4_torch(packed).int(), weight)
    assert torch.equal(reference_quantization.unpack_int4(packed).int(), weight)
    # Packing along the other axis is another matrix.
    if rows == 8 * words and not torch.equal(weight, weight.t()):
        assert not torch.equal(quantization.pack_int4_npu(weight.t()), packed)


def test_int4_words_hold_the_first_number_lowest():
    weight = torch.tensor([[1, 2, 3, 4, 5, 6, 7, -8]], dtype=torch.int32)
    assert int(quantization.pack_int4_npu(weight)[0, 0]) & 0xFFFFFFFF == 0x87654321


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(1, 130), st.floats(1e-3, 1e3), st.integers(0, 2**31))
def test_quantize_round_trip_is_within_half_a_step(rows, width, size, seed):
    install()
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * size
    q, scale = quantization.dynamic_quant_npu(x.bfloat16())
    error = (q.float() * scale[:, None] - x.bfloat16().float()).abs()
    assert bool((error <= scale[:, None] * 0.5001).all())
