"""Partial interleaved rotary embedding, forth and back."""

import pytest
import torch

from ascend_recipes.emulation import OperatorRefusedError
from ascend_recipes.ops.partial_rotary import partial_rotary_custom
from ascend_recipes.ops.reference.partial_rotary import partial_rotary

pytestmark = pytest.mark.ops

SHAPES = [(1, 1, 512, 64), (3, 2, 96, 64), (5, 64, 128, 64), (7, 3, 10, 4), (33, 4, 64, 64)]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CUSTOM = torch.ops._C_ascend


def rotation(tokens, rotated):
    angle = torch.randn(tokens, rotated // 2) * 3
    return [part.repeat_interleave(2, dim=-1) for part in (angle.cos(), angle.sin())]


@pytest.mark.parametrize(("tokens", "heads", "dim", "rotated"), SHAPES)
def test_reference_equals_transformers(transformers_deepseek_v4, tokens, heads, dim, rotated):
    x = torch.randn(tokens, heads, dim)
    cosine, sine = rotation(tokens, rotated)
    halves = [part[None, :, ::2] for part in (cosine, sine)]
    expected = transformers_deepseek_v4.apply_rotary_pos_emb(x.transpose(0, 1)[None], *halves)
    found = partial_rotary(x.clone(), cosine, sine)
    torch.testing.assert_close(found, expected[0].transpose(0, 1))


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "heads", "dim", "rotated"), SHAPES)
def test_binding_agrees(agree, tokens, heads, dim, rotated, dtype, inverse):
    x = torch.randn(tokens, heads, dim).to(dtype)
    cosine, sine = rotation(tokens, rotated)
    expected = partial_rotary(x.clone(), cosine, sine, inverse=inverse)
    given = x.clone()
    found = partial_rotary_custom(given, cosine, sine, inverse=inverse)
    agree("partial_rotary", found, expected)
    assert found.data_ptr() == given.data_ptr()
    assert torch.equal(found[..., :-rotated], x[..., :-rotated])


def test_inverse_undoes_the_rotation():
    x = torch.randn(9, 2, 512)
    cosine, sine = rotation(9, 64)
    turned = partial_rotary_custom(x.clone(), cosine, sine)
    assert (turned - x).abs().max() > 0.1
    back = partial_rotary_custom(turned, cosine, sine, inverse=True)
    torch.testing.assert_close(back, x)


def test_swapped_factors_change_the_result():
    x = torch.randn(3, 1, 64)
    cosine, sine = rotation(3, 64)
    right = partial_rotary_custom(x.clone(), cosine, sine)
    assert (partial_rotary_custom(x.clone(), sine, cosine) - right).abs().max() > 0.1
    halves = torch.cat((cosine[:, ::2], cosine[:, ::2]), -1)
    assert (partial_rotary_custom(x.clone(), halves, sine) - right).abs().max() > 0.1


X, ROWS = torch.zeros(3, 1, 2, 128).bfloat16(), torch.zeros(3, 1, 1, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X[:, 0]}, r"4 \(BSND\)"),
        ({"x": X.double()}, r"x.*float64"),
        ({"x": X[..., ::2]}, r"not contiguous"),
        ({"mode": "half"}, r"rotary_mode"),
        ({"slice": [64]}, r"two bounds"),
        ({"slice": [65, 128]}, r"even part"),
        ({"slice": [64, 192]}, r"even part of the head dim 128"),
        ({"r1": ROWS[:2]}, r"r1.*\[3, 1 or 1, 1, 64\]"),
        ({"r2": ROWS[..., :32]}, r"r2"),
        ({"r1": ROWS.half()}, r"r1.*float16"),
        ({"r2": ROWS.bfloat16()}, r"r2"),
    ],
)
def test_limits(change, message):
    with pytest.raises(OperatorRefusedError, match=message):
        CUSTOM.inplace_partial_rotary_mul(
            change.get("x", X),
            change.get("r1", ROWS),
            change.get("r2", ROWS),
            change.get("mode", "interleave"),
            change.get("slice", [64, 128]),
        )
