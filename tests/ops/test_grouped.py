"""Grouped matrix multiplication: references against exact sums, bindings against the references."""

import pytest
import torch
import torch.nn.functional as F

from ascend_recipes.emulation import OperatorRefusedError
from ascend_recipes.ops import grouped
from ascend_recipes.ops.reference import grouped as reference_grouped
from ascend_recipes.ops.reference import quantization as reference_quantization

pytestmark = pytest.mark.ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CASES = (
    ([1], 8, 16),
    ([3, 0, 2], 16, 8),
    ([0, 0, 7, 1], 33, 24),
    ([5, 0], 130, 40),
    ([2, 1, 0, 0, 9], 64, 64),
    ([0, 0], 8, 8),
    ([1, 0, 5], 40, 48),
    ([3, 4], 72, 112),
)
"""Rows of each expert, K, N; experts without rows among them."""


def int8(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def listed(counts, cumulative):
    numbers = torch.tensor(counts)
    return numbers.cumsum(0) if cumulative else numbers


def int4_layer(counts, k, n):
    """Rows and weights of a W4A8 layer, with the scale bias that its checkpoint would hold."""
    experts, rows = len(counts), sum(counts)
    weight = torch.randint(-8, 8, (experts, k, n), dtype=torch.int32)
    packed = torch.stack([reference_quantization.pack_int4(item) for item in weight])
    scale = torch.rand(experts, n) * 1e-2 + 1e-3
    bias = 8 * (weight.float() * scale[:, None]).sum(dim=1)
    bits = scale.view(torch.int32).long()
    return int8(rows, k), weight, packed, scale, bits, bias, torch.rand(rows) + 0.1


# --- references ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("counts", "k", "n"), CASES)
def test_grouped_reference_equals_one_product_an_expert(counts, k, n):
    x, weight = torch.randn(sum(counts), k), torch.randn(len(counts), k, n)
    expected = torch.cat(
        [rows @ matrix for rows, matrix in zip(x.split(counts), weight, strict=True)]
    )
    for cumulative in (False, True):
        y = reference_grouped.grouped_matmul(
            x, weight, listed(counts, cumulative), cumulative=cumulative
        )
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("counts", "k", "n"), CASES)
def test_int4_reference_equals_the_plain_product(counts, k, n):
    """With the checkpoint's scale bias the two int4 passes are x · w · scale · token scale."""
    x, weight, packed, scale, bits, bias, token = int4_layer(counts, k, n)
    y = reference_grouped.grouped_int4_matmul(
        x, packed, bits, bias, token, listed(counts, False), cumulative=False,
        output_dtype=torch.float32,
    )  # fmt: skip
    owner = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    exact = torch.einsum("rk,rkn->rn", x.double(), weight[owner].double())
    exact = exact * scale[owner].double() * token.double()[:, None]
    torch.testing.assert_close(y.double(), exact, rtol=1e-4, atol=1e-2)


def test_swiglu_quant_reference_follows_the_readme_example():
    """groupList [3, 4, 4, 6]: rows 0-2, 3, none, 4-5."""
    x, weight = int8(6, 16), int8(4, 16, 32)
    scale, token = torch.rand(4, 32) * 1e-2, torch.rand(6)
    q, s = reference_grouped.grouped_matmul_swiglu_quant(
        x, weight, scale, token, torch.tensor([3, 4, 4, 6]), cumulative=True
    )
    for row, expert in enumerate([0, 0, 0, 1, 3, 3]):
        c = (x[row].double() @ weight[expert].double()) * token[row] * scale[expert]
        y = F.silu(c[:16]) * c[16:]
        torch.testing.assert_close(s[row].double(), y.abs().max() / 127, rtol=1e-4, atol=0)
        assert (q[row].double() - y / s[row]).abs().max() <= 0.51


# --- bindings ------------------------------------------------------------------------------------
def padded(tensor, rows):
    """Behind the last group the buffer holds rows of nobody."""
    extra = tensor.new_full((rows, *tensor.shape[1:]), 77)
    return torch.cat((tensor, extra))


def assert_poison(rows):
    """Rows of nobody must not look like results."""
    if rows.is_floating_point():
        assert bool(rows.isnan().all())
    else:
        assert bool((rows == torch.iinfo(rows.dtype).min).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("counts", "k", "n"), CASES)
@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("spare", [0, 4])
def test_grouped_matmul_binding(counts, k, n, cumulative, spare, dtype, reference, agree):
    rows = sum(counts)
    x = padded(torch.randn(rows, k).to(dtype), spare)
    weight = torch.randn(len(counts), k, n).to(dtype)
    arguments = (x, weight, listed(counts, cumulative))
    found = grouped.grouped_matmul_npu(*arguments, cumulative=cumulative)
    expected = reference("grouped_matmul")(*arguments, cumulative=cumulative)
    agree("grouped_matmul", found[:rows], expected[:rows])
    assert_poison(found[rows:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32])
@pytest.mark.parametrize(("counts", "k", "n"), CASES)
@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("spare", [0, 4])
def test_grouped_quant_matmul_binding(counts, k, n, cumulative, spare, dtype, reference, agree):
    rows, experts = sum(counts), len(counts)
    sums = dtype == torch.int32
    arguments = (
        padded(int8(rows, k), spare),
        int8(experts, k, n),
        None if sums else torch.rand(experts, n) * 1e-3,
        None if sums else padded(torch.rand(rows), spare),
        listed(counts, cumulative),
    )
    options = {"cumulative": cumulative, "output_dtype": dtype}
    found = grouped.grouped_quant_matmul_npu(*arguments, **options)
    expected = reference("grouped_quant_matmul")(*arguments, **options)
    agree("grouped_quant_matmul", found[:rows], expected[:rows])
    assert_poison(found[rows:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("counts", "k", "n"), CASES)
@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("spare", [0, 4])
def test_grouped_int4_matmul_binding(counts, k, n, cumulative, spare, dtype, reference, agree):
    rows = sum(counts)
    x, _, packed, _, bits, bias, token = int4_layer(counts, k, n)
    groups = listed(counts, cumulative)
    arguments = (padded(x, spare), packed, bits, bias, padded(token, spare), groups)
    options = {"cumulative": cumulative, "output_dtype": dtype}
    found = grouped.grouped_int4_matmul_npu(*arguments, **options)
    expected = reference("grouped_int4_matmul")(*arguments, **options)
    agree("grouped_int4_matmul", found[:rows], expected[:rows])
    assert_poison(found[rows:])


@pytest.mark.parametrize("limit", [0.0, 0.5])
@pytest.mark.parametrize(("counts", "k", "n"), CASES)
@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("spare", [0, 4])
@pytest.mark.parametrize(
    "binding",
    [
        grouped.grouped_matmul_swiglu_quant_npu,
        grouped.grouped_matmul_swiglu_quant_list_npu,
        grouped.grouped_matmul_swiglu_quant_builtin_npu,
    ],
)
def test_swiglu_quant_bindings(counts, k, n, cumulative, spare, limit, binding, reference, agree):
    rows, experts = sum(counts), len(counts)
    arguments = (
        padded(int8(rows, k), spare),
        int8(experts, k, n),
        torch.rand(experts, n) * 1e-4,
        padded(torch.rand(rows), spare),
        listed(counts, cumulative),
    )
    options = {"cumulative": cumulative, "limit": limit}
    if limit and binding is grouped.grouped_matmul_swiglu_quant_builtin_npu:
        with pytest.raises(ValueError, match="no clamp"):
            binding(*arguments, **options)
        return
    found = binding(*arguments, **options)
    expected = reference("grouped_matmul_swiglu_quant")(*arguments, **options)
    for actual, wanted in zip(found, expected, strict=True):
        agree("grouped_matmul_swiglu_quant", actual[:rows], wanted[:rows])
    assert bool(found[1][rows:].isnan().all())


@pytest.mark.parametrize("limit", [0.0, 0.5])
@pytest.mark.parametrize(("counts", "k", "n"), [case for case in CASES if case[2] % 16 == 0])
@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("spare", [0, 4])
def test_int4_swiglu_quant_binding(counts, k, n, cumulative, spare, limit, reference, agree):
    rows = sum(counts)
    x, _, packed, _, bits, bias, token = int4_layer(counts, k, n)
    arguments = (
        padded(x, spare), packed, bits, bias, padded(token, spare), listed(counts, cumulative)
    )  # fmt: skip
    options = {"cumulative": cumulative, "limit": limit}
    name = "grouped_int4_matmul_swiglu_quant"
    found = grouped.grouped_int4_matmul_swiglu_quant_npu(*arguments, **options)
    expected = reference(name)(*arguments, **options)
    for actual, wanted in zip(found, expected, strict=True):
        agree(name, actual[:rows], wanted[:rows])
    assert bool(found[1][rows:].isnan().all())


def test_the_clamp_bounds_gate_above_and_up_on_both_sides():
    x = torch.tensor([[127], [-127]], dtype=torch.int8)
    weight = torch.full((1, 1, 4), 127, dtype=torch.int8)
    options = {"cumulative": False, "limit": 10.0}
    arguments = (x, weight, torch.ones(1, 4), torch.ones(2), torch.tensor([2]))
    q, scale = grouped.grouped_matmul_swiglu_quant_npu(*arguments, **options)
    y = q.float() * scale[:, None]
    torch.testing.assert_close(y[0], F.silu(torch.tensor([10.0, 10.0])) * 10, rtol=1e-3, atol=0)
    # The gate has no lower bound: silu(-16129) is zero.
    assert not y[1].any()


# --- conventions ---------------------------------------------------------------------------------
def test_cumulative_list_taken_as_counts_is_refused():
    x, weight = torch.randn(6, 8).bfloat16(), torch.randn(3, 8, 4).bfloat16()
    with pytest.raises(OperatorRefusedError, match=r"covers 12 rows.*at most 6"):
        grouped.grouped_matmul_npu(x, weight, torch.tensor([2, 4, 6]), cumulative=False)


def test_counts_taken_as_cumulative_list_are_refused_or_differ():
    x, weight = torch.randn(6, 8).bfloat16(), torch.randn(3, 8, 4).bfloat16()
    with pytest.raises(OperatorRefusedError, match=r"rising row ends"):
        grouped.grouped_matmul_npu(x, weight, torch.tensor([4, 0, 2]), cumulative=True)
    # The groups may leave rows over: a list that happens to rise shows in the result only.
    y = grouped.grouped_matmul_npu(x, weight, torch.tensor([1, 2, 3]), cumulative=True)
    assert_poison(y[3:])
    arguments = (int8(6, 8), int8(3, 8, 16), torch.rand(3, 16), torch.rand(6))
    counts = torch.tensor([1, 2, 3])
    right, wrong = (
        grouped.grouped_matmul_swiglu_quant_npu(*arguments, counts, cumulative=form)[1]
        for form in (False, True)
    )
    assert bool(right.isfinite().all())
    assert bool(wrong[3:].isnan().all())


def test_scale_bias_left_out_changes_the_result():
    x, _, packed, _, bits, bias, token = int4_layer([4], 32, 16)
    options = {"cumulative": False, "output_dtype": torch.bfloat16}
    with_bias, without = (
        grouped.grouped_int4_matmul_npu(x, packed, bits, item, token, torch.tensor([4]), **options)
        for item in (bias, torch.zeros_like(bias))
    )
    assert not torch.allclose(with_bias, without, rtol=0.1)


def test_gate_and_up_swapped_change_the_result():
    weight = int8(1, 16, 32)
    arguments = (int8(3, 16), torch.rand(1, 32) * 1e-3, torch.rand(3), torch.tensor([3]))
    swapped = torch.cat(weight.chunk(2, dim=-1)[::-1], dim=-1)
    results = [
        grouped.grouped_matmul_swiglu_quant_npu(arguments[0], item, *arguments[1:], cumulative=True)
        for item in (weight, swapped)
    ]
    assert not torch.allclose(results[0][1], results[1][1], rtol=0.01)
