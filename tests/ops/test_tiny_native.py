"""Tiny checkpoints in the published float8 and float4 form, read by transformers' own code."""

import pytest
import torch

from ascend_recipes.tiny_native import native_tensors

pytestmark = pytest.mark.ops


def stored(kind, weight, name="layers.0.attn.wq_a.weight"):
    return dict(native_tensors(iter([(name, weight)]), lambda _: kind))


def opened(tensors):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    weight, scale = tensors["layers.0.attn.wq_a.weight"], tensors["layers.0.attn.wq_a.scale"]
    return Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32)


def test_float8_blocks_are_within_half_a_step():
    weight = torch.randn(256, 384) * torch.logspace(-3, 3, 384)
    tensors = stored("float8", weight)
    scale = tensors["layers.0.attn.wq_a.scale"]
    assert (scale.shape, scale.dtype) == ((2, 3), torch.float8_e8m0fnu)
    error = (opened(tensors) - weight).abs()
    # Three bits behind the point, or a step of the smallest numbers of the block.
    smallest = scale.float().repeat_interleave(128, 0).repeat_interleave(128, 1) * 2.0**-10
    assert (error <= torch.maximum(weight.abs() / 16, smallest)).all()


def test_neighbouring_blocks_do_not_share_a_scale():
    scale = stored("float8", torch.randn(384, 384))["layers.0.attn.wq_a.scale"].float()
    assert (scale[1:] != scale[:-1]).all()
    assert (scale[:, 1:] != scale[:, :-1]).all()


def test_float4_takes_the_nearest_number():
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    table = torch.cat((values, -values))
    weight = torch.randn(4, 64)
    tensors = stored("float4", weight)
    packed, scale = (tensors[f"layers.0.attn.wq_a.{leaf}"] for leaf in ("weight", "scale"))
    assert (packed.shape, packed.dtype) == ((4, 32), torch.int8)
    assert (scale.shape, scale.dtype) == ((4, 2), torch.float8_e8m0fnu)
    grid = scale.float().repeat_interleave(32, 1)[..., None] * table
    nearest = grid.gather(-1, (grid - weight[..., None]).abs().argmin(-1, keepdim=True))[..., 0]
    torch.testing.assert_close(opened(tensors), nearest, rtol=0, atol=0)


def test_nothing_overflows_and_zeros_stay():
    weight = torch.zeros(128, 128)
    weight[0, :32] = 768.0
    for kind in ("float8", "float4"):
        assert torch.equal(opened(stored(kind, weight)), weight), kind


def test_other_tensors_stay():
    table = torch.tensor([[1, 2]], dtype=torch.int32)
    assert stored(None, table, "norm.weight")["norm.weight"] is table
    wide = stored("int64", table, "ffn.gate.tid2eid")["ffn.gate.tid2eid"]
    assert wide.dtype == torch.int64
    assert wide.tolist() == table.tolist()
