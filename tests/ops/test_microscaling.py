"""Microscaled numbers: references against PyTorch's float8 and numpy's bits, then the bindings."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.emulation import OperatorRefusedError
from ascend_recipes.ops import microscaling
from ascend_recipes.ops.reference import microscaling as reference_microscaling

pytestmark = pytest.mark.ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KINDS = ("float8_e4m3fn", "float4_e2m1")
SHAPES = ((1, 64), (3, 96), (5, 2, 34), (2, 130), (7, 32), (4, 258))
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def data(shape, dtype):
    """Rows of very different sizes, a row of zeros, and a zero block."""
    x = torch.randn(shape) * torch.logspace(-3, 3, shape[-1])
    x[..., :32] = 0 if shape[-1] > 32 else x[..., :32]
    return x.clamp(-60000, 60000).to(dtype)


def numpy_exponents(x):
    """floor(log2(largest)) of each block from the bits of float32."""
    rows = x.float().reshape(-1, x.shape[-1]).numpy()
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 32)))
    largest = np.abs(rows).reshape(rows.shape[0], -1, 32).max(axis=-1).astype(np.float32)
    return (largest.view(np.uint32) >> 23).astype(int) - 127


# --- references ----------------------------------------------------------------------------------
def test_listed_numbers_are_those_of_the_formats():
    assert reference_microscaling.numbers("float4_e2m1").tolist() == list(FP4_VALUES)
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    assert torch.equal(reference_microscaling.numbers("float8_e4m3fn"), codes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_scales_follow_the_ocp_rule(shape, kind):
    x = data(shape, torch.float32)
    _, scale = reference_microscaling.mx_quant(x, kind=kind)
    largest = 8 if kind == "float8_e4m3fn" else 2
    expected = np.maximum(numpy_exponents(x) - largest + 127, 0)
    found = scale.reshape(expected.shape[0], -1).numpy()
    np.testing.assert_array_equal(found[:, : expected.shape[1]], expected)
    assert not found[:, expected.shape[1] :].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_fp8_reference_equals_torch_float8(shape):
    x = data(shape, torch.float32)
    values, scale = reference_microscaling.mx_quant(x, kind="float8_e4m3fn")
    power = 2.0 ** (scale.flatten(-2).float() - 127)
    power = power.repeat_interleave(32, dim=-1)[..., : shape[-1]]
    expected = (x / power).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(values.view(torch.uint8), expected.view(torch.uint8))


def test_fp4_reference_rounds_ties_to_even():
    x = torch.zeros(1, 32)
    x[0, :10] = torch.tensor([6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -2.5, 0.26])
    values, scale = reference_microscaling.mx_quant(x, kind="float4_e2m1")
    assert scale.flatten().tolist() == [127, 0]
    opened = reference_microscaling.mx_dequant(values, scale, kind="float4_e2m1")
    assert opened[0, :10].tolist() == [6.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -2.0, 0.5]


@pytest.mark.parametrize("kind", KINDS)
def test_matmul_reference_equals_double_precision(kind):
    x, weight = torch.randn(5, 96), torch.randn(24, 96)
    (q, s), (w, t) = (reference_microscaling.mx_quant(item, kind=kind) for item in (x, weight))
    y = reference_microscaling.mx_matmul(
        q, w.t(), s, t.transpose(0, 1), kind=kind, output_dtype=torch.float32
    )
    opened = [
        reference_microscaling.mx_dequant(a, b, kind=kind).double() for a, b in ((q, s), (w, t))
    ]
    torch.testing.assert_close(y.double(), opened[0] @ opened[1].t(), rtol=1e-5, atol=1e-5)


# --- bindings ------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_mx_quant_binding(shape, kind, dtype, reference):
    x = data(shape, dtype)
    values, scale = microscaling.mx_quant_npu(x, kind=kind)
    expected, expected_scale = reference("mx_quant")(x, kind=kind)
    assert torch.equal(scale, expected_scale)
    assert values.dtype == expected.dtype
    assert torch.equal(values.view(torch.uint8), expected.view(torch.uint8))


def quantized_layer(rows, k, n, kind):
    q, s = microscaling.mx_quant_npu(torch.randn(rows, k), kind=kind)
    w, t = microscaling.mx_quant_npu(torch.randn(n, k), kind=kind)
    return q, w.t(), s, t.transpose(0, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 64, 8), (5, 96, 24), (33, 128, 3), (2, 258, 16)])
def test_mx_matmul_binding(m, k, n, kind, biased, dtype, reference, agree):
    arguments = quantized_layer(m, k, n, kind)
    options = {"kind": kind, "output_dtype": dtype, "bias_N": torch.randn(n) if biased else None}
    found = microscaling.mx_matmul_npu(*arguments, **options)
    agree("mx_matmul", found, reference("mx_matmul")(*arguments, **options))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("counts", [[1], [3, 0, 2], [0, 7], [0, 0, 5, 1], [2, 2]])
def test_grouped_mx_matmul_binding(counts, cumulative, kind, reference, agree):
    layers = [quantized_layer(1, 96, 24, kind) for _ in counts]
    q, s = microscaling.mx_quant_npu(torch.randn(sum(counts), 96), kind=kind)
    # Stacking keeps each expert's weight the transposed view that FP4 needs.
    weight = torch.stack([layer[1].t() for layer in layers]).transpose(1, 2)
    scale = torch.stack([layer[3] for layer in layers])
    numbers = torch.tensor(counts)
    arguments = (q, weight, s, scale, numbers.cumsum(0) if cumulative else numbers)
    options = {"kind": kind, "cumulative": cumulative, "output_dtype": torch.bfloat16}
    found = microscaling.grouped_mx_matmul_npu(*arguments, **options)
    agree("grouped_mx_matmul", found, reference("grouped_mx_matmul")(*arguments, **options))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("counts", [[1], [3, 0, 2], [0, 7], [0, 0, 5, 1], [2, 2]])
def test_grouped_w4a8_matmul_binding(counts, cumulative, dtype, reference, agree):
    layers = [quantized_layer(1, 96, 24, "float4_e2m1") for _ in counts]
    q, s = microscaling.mx_quant_npu(torch.randn(sum(counts), 96), kind="float8_e4m3fn")
    weight = torch.stack([layer[1].t() for layer in layers]).transpose(1, 2)
    scale = torch.stack([layer[3] for layer in layers])
    numbers = torch.tensor(counts)
    arguments = (q, weight, s, scale, numbers.cumsum(0) if cumulative else numbers)
    options = {"cumulative": cumulative, "output_dtype": dtype}
    found = microscaling.grouped_mx_w4a8_matmul_npu(*arguments, **options)
    expected = reference("grouped_mx_w4a8_matmul")(*arguments, **options)
    agree("grouped_mx_w4a8_matmul", found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("limit", [0.0, 2.0])
@pytest.mark.parametrize("shape", [(1, 128), (5, 256), (3, 2, 384), (33, 128), (2, 640)])
def test_swiglu_mx_quant_binding(shape, limit, dtype, reference):
    x = (torch.randn(shape) * 3).to(dtype)
    values, scale = microscaling.swiglu_mx_quant_npu(x, limit=limit)
    expected, expected_scale = reference("swiglu_mx_quant")(x, limit=limit)
    assert torch.equal(scale, expected_scale)
    opened, wanted = (
        reference_microscaling.mx_dequant(
            item.flatten(0, -2), scale.flatten(0, -3), kind="float8_e4m3fn"
        )
        for item in (values, expected)
    )
    # The two ways to write silu may round a bfloat16 apart, which is at most one step of float8.
    assert (opened - wanted).abs().max() <= 2**-3 * wanted.abs().max()
    assert (opened != wanted).float().mean() < 0.01


def test_the_wrong_half_as_gate_changes_the_result():
    x = torch.randn(4, 256).bfloat16()
    swapped = torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1)
    first, second = (microscaling.swiglu_mx_quant_npu(item)[0].float() for item in (x, swapped))
    assert not torch.allclose(first, second, rtol=0.1)


def test_a_microscaled_layer_reproduces_the_matrix_product():
    x, weight = torch.randn(16, 512), torch.randn(512, 64)
    for kind, error in (("float8_e4m3fn", 0.05), ("float4_e2m1", 0.25)):
        q, s = microscaling.mx_quant_npu(x, kind=kind)
        w, t = microscaling.mx_quant_npu(weight.t().contiguous(), kind=kind)
        y = microscaling.mx_matmul_npu(
            q, w.t(), s, t.transpose(0, 1), kind=kind, output_dtype=torch.float32
        )
        assert (y - x @ weight).norm() / (x @ weight).norm() < error


def test_swapped_scales_change_the_result_or_are_refused():
    q, w, s, t = quantized_layer(24, 64, 24, "float8_e4m3fn")
    options = {"kind": "float8_e4m3fn", "output_dtype": torch.float32}
    right = microscaling.mx_matmul_npu(q, w, s, t, **options)
    swapped = microscaling.mx_matmul_npu(q, w, t.transpose(0, 1), s.transpose(0, 1), **options)
    assert not torch.allclose(right, swapped, rtol=0.01)
    with pytest.raises(OperatorRefusedError, match=r"scale.*ceil\(K/64\), columns, 2"):
        microscaling.mx_matmul_npu(q, w, s, s, **options)


def test_other_kinds_are_refused():
    with pytest.raises(ValueError, match=r"kind 'int4'.*float8_e4m3fn, float4_e2m1"):
        microscaling.mx_quant_npu(torch.zeros(1, 32), kind="int4")


# --- round trips ---------------------------------------------------------------------------------
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(KINDS), st.integers(1, 5), st.integers(1, 70), st.integers(-30, 30), st.data()
)
def test_numbers_of_the_format_survive(kind, rows, pairs, exponent, draw):
    """What a block can hold exactly comes back exactly, whatever power of two it is scaled by."""
    seed = draw.draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    table = reference_microscaling.numbers(kind)
    width = max(32, 2 * pairs)
    codes = torch.randint(0, len(table), (rows, width), generator=generator)
    codes[:, ::32] = len(table) - 1
    signs = torch.randint(0, 2, codes.shape, generator=generator) * 2 - 1
    x = (table[codes] * signs * 2.0**exponent).float()
    values, scale = microscaling.mx_quant_npu(x, kind=kind)
    assert torch.equal(reference_microscaling.mx_dequant(values, scale, kind=kind), x)


# --- scales that are rounded up -------------------------------------------------------------------
def raised_bytes(x, least=0.0):
    """Of each block: the byte of the smallest power of two that is no less than max |x| / 448."""
    rows = torch.nn.functional.pad(x.double(), (0, -x.shape[-1] % 32)).unflatten(-1, (-1, 32))
    share = rows.abs().amax(-1).clamp(min=least) / 448
    mantissa, exponent = np.frexp(share.numpy())
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent)
    return np.where(share.numpy() > 0, np.clip(exponent + 127, 0, 254), 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[-1] >= 32])
@pytest.mark.parametrize("least", [0.0, 3.5, 448.0])
def test_raised_scales_let_nothing_saturate(shape, dtype, least):
    x = data(shape, dtype)
    values, scale = torch.ops.npu.npu_dynamic_mx_quant(
        x, dst_type=292, scale_alg=1, max_low_bound=least
    )
    expected = raised_bytes(x, least)
    found = scale.flatten(-2).numpy()
    np.testing.assert_array_equal(found[..., : expected.shape[-1]], expected)
    power = 2.0 ** (torch.from_numpy(expected).double() - 127)
    divided = x.double() / power.repeat_interleave(32, dim=-1)[..., : shape[-1]]
    assert divided.abs().max() <= 448
    nearest = divided.float().to(torch.float8_e4m3fn)
    assert torch.equal(values.view(torch.uint8), nearest.view(torch.uint8))


def test_raised_scales_differ_from_ocp_where_the_largest_number_exceeds_448():
    x = torch.full((1, 32), 480.0)
    ocp, raised = (
        torch.ops.npu.npu_dynamic_mx_quant(x, dst_type=292, scale_alg=algorithm)
        for algorithm in (0, 1)
    )
    assert [int(pair[1][0, 0, 0]) for pair in (ocp, raised)] == [127, 128]
    assert [float(pair[0][0, 0].float()) for pair in (ocp, raised)] == [448.0, 240.0]


@pytest.mark.parametrize(
    ("largest", "byte"),
    [(448.0, 127), (449.0, 128), (2.0**-118, 1), (2.0**-119, 0), (1e-45, 0), (3.0e38, 247)],
)
def test_raised_scales_at_the_ends_of_float32(largest, byte):
    x = torch.zeros(1, 32)
    x[0, 3] = largest
    _, scale = torch.ops.npu.npu_dynamic_mx_quant(x, dst_type=292, scale_alg=1)
    assert int(scale[0, 0, 0]) == byte == raised_bytes(x)[0, 0]
