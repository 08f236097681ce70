"""The grouped output projection, in float and microscaled."""

import pytest
import torch

from ascend_recipes.emulation import OperatorRefusedError
from ascend_recipes.ops.microscaling import mx_quant_npu
from ascend_recipes.ops.projection import grouped_mx_projection_npu, grouped_projection_npu
from ascend_recipes.ops.reference.projection import grouped_mx_projection, grouped_projection

pytestmark = pytest.mark.ops

SHAPES = [(1, 1, 8, 4), (3, 2, 40, 16), (5, 8, 64, 24), (17, 4, 24, 8), (33, 3, 16, 5)]
NPU = torch.ops.npu


@pytest.mark.parametrize(("tokens", "groups", "inner", "rank"), SHAPES)
def test_reference_equals_transformers(transformers_deepseek_v4, tokens, groups, inner, rank):
    module = transformers_deepseek_v4.DeepseekV4GroupedLinear(inner, groups * rank, groups)
    x = torch.randn(tokens, groups, inner)
    weight = module.weight.view(groups, rank, inner).transpose(1, 2)
    torch.testing.assert_close(grouped_projection(x, weight), module(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "groups", "inner", "rank"), SHAPES)
def test_binding_agrees(agree, tokens, groups, inner, rank, dtype):
    x = torch.randn(tokens, groups, inner).to(dtype)
    weight = torch.randn(groups, inner, rank).to(dtype)
    found = grouped_projection_npu(x, weight)
    agree("grouped_projection", found, grouped_projection(x, weight))
    assert found.is_contiguous()


def test_other_orders_of_the_axes_give_other_results():
    x, weight = torch.randn(4, 4, 8), torch.randn(4, 8, 8)
    right = grouped_projection_npu(x, weight)
    assert not torch.allclose(right, NPU.npu_transpose_batchmatmul(x, weight))
    turned = NPU.npu_transpose_batchmatmul(
        x, weight, perm_x1=[1, 0, 2], perm_x2=[0, 2, 1], perm_y=[1, 0, 2]
    )
    assert not torch.allclose(right, turned)


X, WEIGHT = torch.zeros(3, 2, 8), torch.zeros(3, 8, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": X.double(), "weight": WEIGHT.double()}, r"input.*float64"),
        ({"weight": WEIGHT.half()}, r"weight.*float16"),
        ({"input": X[0]}, r"3 dimensions"),
        ({"weight": WEIGHT[0]}, r"3 dimensions"),
        ({"weight": WEIGHT[:2]}, r"once turned"),
        ({"perm_x1": [1, 0, 2]}, r"once turned"),
        ({"perm_x2": [0, 2, 1]}, r"once turned"),
        ({"perm_x1": [0, 0, 2]}, r"perm_x1.*order of the axes"),
        ({"perm_y": [0, 1]}, r"perm_y.*order of the axes"),
        ({"bias": torch.zeros(4)}, r"bias"),
        ({"scale": torch.zeros(4, dtype=torch.int64)}, r"scale"),
        ({"batch_split_factor": 2}, r"batch_split_factor"),
    ],
)
def test_limits(change, message):
    given = {"input": X, "weight": WEIGHT, **change}
    with pytest.raises(OperatorRefusedError, match=message):
        NPU.npu_transpose_batchmatmul(given.pop("input"), given.pop("weight"), **given)


E4M3 = "float8_e4m3fn"


def microscaled_layer(tokens, groups, inner, rank):
    """Quantized inputs and weights, and the numbers that they stand for."""
    values = torch.randn(tokens, groups, inner), torch.randn(groups, rank, inner)
    (x, token_scale), (weight, scale) = (mx_quant_npu(item, kind=E4M3) for item in values)
    arguments = (x, weight.transpose(1, 2), token_scale, scale.transpose(1, 2).contiguous())
    numbers = [
        item.double() * 2.0 ** (part.flatten(2).double() - 127).repeat_interleave(32, 2)
        for item, part in ((x, token_scale), (weight, scale))
    ]
    return arguments, numbers


MX_SHAPES = [(1, 1, 64, 4), (3, 2, 128, 16), (17, 4, 64, 8), (5, 3, 192, 5), (2, 5, 256, 7)]


@pytest.mark.parametrize(("tokens", "groups", "inner", "rank"), MX_SHAPES)
def test_microscaled_reference_equals_double_precision(tokens, groups, inner, rank):
    arguments, (x, weight) = microscaled_layer(tokens, groups, inner, rank)
    found = grouped_mx_projection(*arguments, output_dtype=torch.float32)
    expected = torch.einsum("tgx,glx->tgl", x, weight)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "groups", "inner", "rank"), MX_SHAPES)
def test_microscaled_binding_agrees(agree, relaxed, tokens, groups, inner, rank, dtype):
    relaxed(dtype)
    arguments, _ = microscaled_layer(tokens, groups, inner, rank)
    found = grouped_mx_projection_npu(*arguments, output_dtype=dtype)
    agree("grouped_mx_projection", found, grouped_mx_projection(*arguments, output_dtype=dtype))
    assert found.is_contiguous()


def test_scales_of_another_group_change_the_result(relaxed):
    relaxed(torch.float32)
    (x, weight, token_scale, scale), _ = microscaled_layer(4, 2, 64, 8)
    scale[0] += 1
    right = grouped_mx_projection_npu(x, weight, token_scale, scale, output_dtype=torch.float32)
    swapped = grouped_mx_projection_npu(
        x, weight, token_scale, scale.flip(0), output_dtype=torch.float32
    )
    assert not torch.allclose(right, swapped)
    with pytest.raises(OperatorRefusedError, match="x1_scale"):
        grouped_mx_projection_npu(x, weight, scale, token_scale, output_dtype=torch.float32)
