"""Vendor limits of the pointwise operators, and the shape of a refusal."""

import pytest
import torch

from ascend_recipes.emulation import OperatorRefusedError, install

pytestmark = pytest.mark.ops

NPU = torch.ops.npu


def test_a_refusal_names_operator_argument_and_allowed_values():
    with pytest.raises(OperatorRefusedError) as caught:
        NPU.npu_swiglu(torch.zeros(2, 4, dtype=torch.float64))
    text = str(caught.value)
    assert text.startswith("npu_swiglu: argument 'input' is float64")
    assert "float16, bfloat16, float32" in text
    assert (caught.value.operator, caught.value.argument) == ("npu_swiglu", "input")


def test_unknown_relaxation_is_refused():
    with pytest.raises(ValueError, match=r"dtype.int4.*dtype.float32"):
        install({"dtype.int4"})


@pytest.mark.parametrize("operator", ["npu_rms_norm", "npu_gemma_rms_norm"])
@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.zeros(2, 8, dtype=torch.int32), torch.zeros(8), r"input.*int32"),
        (torch.zeros(2, 8), torch.zeros(8).half(), r"gamma.*float16"),
        (torch.zeros(2, 8), torch.zeros(4), r"gamma.*last dimensions"),
        (torch.zeros(2, 8), torch.zeros(2, 2, 8), r"gamma"),
        (torch.zeros([1] * 9), torch.zeros(1), r"1 to 8 dimensions"),
    ],
)
def test_norm_limits(operator, x, weight, message):
    with pytest.raises(OperatorRefusedError, match=message):
        getattr(NPU, operator)(x, weight)


@pytest.mark.parametrize(
    ("x", "message"),
    [(torch.zeros(4, 2).T, "not contiguous"), (torch.zeros(0, 4), "empty")],
)
def test_gemma_norm_limits(x, message):
    with pytest.raises(OperatorRefusedError, match=message):
        NPU.npu_gemma_rms_norm(x, torch.zeros(4))


@pytest.mark.parametrize(
    ("x2", "message"),
    [(torch.zeros(2, 4), r"x2.*shape of x1"), (torch.zeros(2, 8).half(), "x2")],
)
def test_add_norm_limits(x2, message):
    with pytest.raises(OperatorRefusedError, match=message):
        NPU.npu_add_rms_norm(torch.zeros(2, 8), x2, torch.zeros(8))


def test_swiglu_limits():
    with pytest.raises(OperatorRefusedError, match="odd size 5"):
        NPU.npu_swiglu(torch.zeros(2, 5))
    with pytest.raises(OperatorRefusedError, match="1 to 8"):
        NPU.npu_swiglu(torch.zeros([2] * 9))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "quarter"}, r"rotary_mode.*half, interleave"),
        ({"x": torch.zeros(3, 2, 8)}, r"input.*4 dimensions"),
        ({"x": torch.zeros(1, 3, 2, 898)}, r"below 896"),
        ({"r1": torch.zeros(1, 3, 1, 4)}, r"r2.*shape of r1"),
        ({"r1": torch.zeros(1, 4, 1, 8), "r2": torch.zeros(1, 4, 1, 8)}, r"r1.*BNSD"),
        (
            {"r1": torch.zeros(1, 3, 2, 8), "r2": torch.zeros(1, 3, 2, 8), "mode": "interleave"},
            "1S1D",
        ),
        ({"r2": torch.zeros(1, 3, 1, 8).half()}, r"r2.*float16"),
        ({"rotate": torch.zeros(8, 8)}, "rotate"),
    ],
)
def test_rotary_limits(change, message):
    with pytest.raises(OperatorRefusedError, match=message):
        NPU.npu_rotary_mul(
            change.get("x", torch.zeros(1, 3, 2, 8)),
            change.get("r1", torch.zeros(1, 3, 1, 8)),
            change.get("r2", torch.zeros(1, 3, 1, 8)),
            change.get("mode", "half"),
            change.get("rotate"),
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": torch.zeros(2)}, r"positions.*int32, int64"),
        ({"positions": torch.zeros(2, 2, dtype=torch.long)}, r"positions.*\[3, tokens\]"),
        ({"positions": torch.tensor([0, 4])}, r"positions.*rows of cos_sin_cache"),
        ({"query": torch.zeros(2, 50)}, r"query.*heads"),
        ({"cache": torch.zeros(4, 24)}, r"multiple of 16"),
        ({"cache": torch.zeros(4, 64)}, r"head size"),
        ({"cache": torch.zeros(4, 32).half()}, r"cos_sin_cache"),
        ({"positions": torch.zeros(3, 2, dtype=torch.long)}, r"mrope_section.*16"),
        ({"cache_mode": "interleave"}, r"cache_mode"),
        ({"rotary_mode": "none"}, r"rotary_mode"),
    ],
)
def test_mrope_limits(change, message):
    with pytest.raises(OperatorRefusedError, match=message):
        NPU.npu_mrope(
            change.get("positions", torch.tensor([0, 1])),
            change.get("query", torch.zeros(2, 64)),
            torch.zeros(2, 32),
            change.get("cache", torch.zeros(4, 32)),
            32,
            mrope_section=[5, 5, 5],
            rotary_mode=change.get("rotary_mode", "half"),
            cache_mode=change.get("cache_mode", "default"),
        )


def test_mrope_wants_wider_steps_in_two_byte_types():
    half = {"dtype": torch.bfloat16}
    with pytest.raises(OperatorRefusedError, match="multiple of 32"):
        NPU.npu_mrope(
            torch.tensor([0]),
            torch.zeros(1, 64, **half),
            torch.zeros(1, 64, **half),
            torch.zeros(4, 16, **half),
            64,
        )


@pytest.mark.parametrize(
    ("k", "p", "message"),
    [
        (None, None, "None"),
        (torch.tensor([1, 2]), None, r"k.*int32"),
        (torch.tensor([0, 2], dtype=torch.int32), None, r"k.*1 to 9"),
        (torch.tensor([1, 10], dtype=torch.int32), None, r"k.*1 to 9"),
        (torch.tensor([1], dtype=torch.int32), None, r"k.*shape"),
        (None, torch.tensor([0.5, 1.5]), r"p.*0 to 1"),
        (None, torch.tensor([0.5, 0.5]).half(), r"'p'"),
    ],
)
def test_sampling_limits(k, p, message):
    with pytest.raises(OperatorRefusedError, match=message):
        NPU.npu_top_k_top_p(torch.zeros(2, 9), p, k)


def test_sampling_keeps_at_most_1024():
    with pytest.raises(OperatorRefusedError, match="1 to 1024"):
        NPU.npu_top_k_top_p(torch.zeros(1, 2000), None, torch.tensor([1025], dtype=torch.int32))
