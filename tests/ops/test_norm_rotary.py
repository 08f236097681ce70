"""Fused norm and rotary embedding: the reference against transformers' two separate modules.

The Triton binding is compared with the reference in `tests/lowering`, in Triton's interpreter.
"""

import pytest
import torch

from ascend_recipes.ops.reference.norm_rotary import rms_norm_rotary

pytestmark = pytest.mark.ops

SHAPES = ((1, 6, 256, 32), (7, 1, 128, 64), (33, 3, 96, 12), (5, 2, 64, 1), (4, 7, 80, 8))
"""Tokens, heads, head dim, frequencies."""


def inputs(shape, dtype):
    tokens, heads, width, frequencies = shape
    angle = torch.rand(tokens, frequencies) * 6.28
    return torch.randn(tokens, heads, width).to(dtype), torch.randn(width).to(dtype), angle


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_reference_equals_transformers(transformers_qwen3_5, agree, shape, dtype):
    x, weight, angle = inputs(shape, dtype)
    norm = transformers_qwen3_5.Qwen3_5RMSNorm(shape[2], eps=1e-6).double()
    # Both halves of the rotated part turn by the same angles.
    cosine, sine = angle.cos(), angle.sin()
    cos, sin = (torch.cat((part, part), dim=-1)[None].double() for part in (cosine, sine))
    with torch.no_grad():
        norm.weight.copy_(weight)
        normed = norm(x.double()).transpose(0, 1)[None]
        turned, _ = transformers_qwen3_5.apply_rotary_pos_emb(normed, normed, cos, sin)
    expected = turned[0].transpose(0, 1).to(dtype)
    actual = rms_norm_rotary(x, weight, cosine, sine, epsilon=1e-6, add_one=True)
    agree("rms_norm_rotary", actual, expected)


def test_plain_weight_and_swapped_angles_change_the_result():
    x, weight, angle = inputs((4, 2, 64, 16), torch.float32)
    expected = rms_norm_rotary(x, weight, angle.cos(), angle.sin(), epsilon=1e-6, add_one=True)
    plain = rms_norm_rotary(x, weight, angle.cos(), angle.sin(), epsilon=1e-6, add_one=False)
    swapped = rms_norm_rotary(x, weight, angle.sin(), angle.cos(), epsilon=1e-6, add_one=True)
    assert not torch.allclose(plain, expected, atol=0.1)
    assert not torch.allclose(swapped, expected, atol=0.1)
