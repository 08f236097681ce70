"""Normalizations: reference against PyTorch and transformers, bindings against the reference."""

import pytest
import torch
import torch.nn.functional as F

from ascend_recipes.ops import norm
from ascend_recipes.ops.reference import norm as reference_norm

pytestmark = pytest.mark.ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 256), (7, 1, 64), (3, 5, 128), (2, 513), (129, 256), (2, 3, 2, 48))
EPSILON = 1e-6


def inputs(shape, dtype):
    return (
        torch.randn(shape).to(dtype),
        torch.randn(shape).to(dtype),
        (torch.randn(shape[-1]) * 0.3 + 1).to(dtype),
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_reference_equals_pytorch(shape):
    x, _, weight = inputs(shape, torch.float32)
    expected = F.rms_norm(x.double(), (shape[-1],), weight.double(), EPSILON).float()
    torch.testing.assert_close(
        reference_norm.rms_norm(x, weight, epsilon=EPSILON), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemma_and_gated_references_equal_transformers(transformers_qwen3_5, dtype):
    x, gate, weight = inputs((5, 3, 128), dtype)
    gemma = transformers_qwen3_5.Qwen3_5RMSNorm(128, eps=EPSILON).to(dtype)
    gated = transformers_qwen3_5.Qwen3_5RMSNormGated(128, eps=EPSILON).to(dtype)
    with torch.no_grad():
        gemma.weight.copy_(weight)
        gated.weight.copy_(weight)
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
        torch.testing.assert_close(
            reference_norm.gemma_rms_norm(x, weight, epsilon=EPSILON), gemma(x), **tolerance
        )
        ours = reference_norm.gated_rms_norm(x, gate, weight, epsilon=EPSILON, activation="silu")
        # transformers rounds the norm to the input type before the gate; the reference does not.
        torch.testing.assert_close(ours, gated(x, gate), rtol=2e-2, atol=2e-2)
        if dtype == torch.float32:
            torch.testing.assert_close(ours, gated(x, gate), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("operation", "binding"),
    [
        ("rms_norm", norm.rms_norm_npu),
        ("gemma_rms_norm", norm.gemma_rms_norm_npu),
        ("gemma_rms_norm", norm.gemma_rms_norm_plain_npu),
    ],
)
def test_norm_bindings_equal_reference(operation, binding, shape, dtype, reference, agree):
    x, _, weight = inputs(shape, dtype)
    expected = reference(operation)(x, weight, epsilon=EPSILON)
    agree(operation, binding(x, weight, epsilon=EPSILON), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("operation", ["add_rms_norm", "add_gemma_rms_norm"])
def test_add_norm_bindings_equal_reference(operation, shape, dtype, reference, agree):
    x, residual, weight = inputs(shape, dtype)
    normed, total = vars(norm)[f"{operation}_npu"](x, residual, weight, epsilon=EPSILON)
    expected, expected_total = reference(operation)(x, residual, weight, epsilon=EPSILON)
    agree(operation, normed, expected)
    agree(operation, total, expected_total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
def test_gated_norm_binding_equals_reference(shape, dtype, activation, reference, agree):
    x, gate, weight = inputs(shape, dtype)
    arguments = {"epsilon": EPSILON, "activation": activation}
    expected = reference("gated_rms_norm")(x, gate, weight, **arguments)
    agree("gated_rms_norm", norm.gated_rms_norm_npu(x, gate, weight, **arguments), expected)


def test_gemma_binding_takes_slices():
    x, _, weight = inputs((4, 6, 64), torch.float32)
    sliced = x[..., :32]
    expected = reference_norm.gemma_rms_norm(sliced, weight[:32], epsilon=EPSILON)
    actual = norm.gemma_rms_norm_npu(sliced, weight[:32], epsilon=EPSILON)
    torch.testing.assert_close(actual, expected)


def test_gemma_weight_is_not_plain_weight():
    x, _, weight = inputs((4, 64), torch.float32)
    plain = norm.rms_norm_npu(x, weight, epsilon=EPSILON)
    gemma = norm.gemma_rms_norm_npu(x, weight, epsilon=EPSILON)
    assert not torch.allclose(plain, gemma, atol=0.1)


def test_gate_order_matters():
    x, gate, weight = inputs((4, 64), torch.float32)
    first = norm.gated_rms_norm_npu(x, gate, weight, epsilon=EPSILON, activation="silu")
    swapped = norm.gated_rms_norm_npu(gate, x, weight, epsilon=EPSILON, activation="silu")
    assert not torch.allclose(first, swapped, atol=0.1)


def test_unknown_gate_activation_is_refused():
    x, gate, weight = inputs((4, 64), torch.float32)
    with pytest.raises(ValueError, match=r"gelu.*silu, swish, sigmoid"):
        norm.gated_rms_norm_npu(x, gate, weight, epsilon=EPSILON, activation="gelu")
