"""The shape of a refusal, and which limits a relaxation lifts."""

import pytest
import torch

from ascend_recipes.emulation import OperatorRefusedError, install
from tests.ops.written_operators import make, operator_rows, written_arguments

pytestmark = pytest.mark.ops

ROWS = operator_rows()


def call(key, **changes):
    """The first legal call of a row, changed."""
    return make(ROWS[key], written_arguments(ROWS[key], None) | changes)


def test_a_refusal_names_operator_argument_and_allowed_values():
    with pytest.raises(OperatorRefusedError) as caught:
        torch.ops.npu.npu_swiglu(torch.zeros(2, 4, dtype=torch.float64))
    text = str(caught.value)
    assert text.startswith("npu_swiglu: argument 'input' is float64")
    assert "bfloat16, float16, float32" in text
    assert (caught.value.operator, caught.value.argument) == ("npu_swiglu", "input")


def test_unknown_relaxation_is_refused():
    with pytest.raises(ValueError, match=r"dtype.int4.*dtype.float32"):
        install({"dtype.int4"})


def test_float32_is_lifted_by_its_name():
    key = "torch_npu.npu_dynamic_quant"
    install({"shape.small"})
    with pytest.raises(OperatorRefusedError, match="float32"):
        call(key, input="float32[3, 8]")
    install({"dtype.float32"}, hardware="a3")
    call(key, input="float32[3, 8]")
    call("torch_npu.npu_quant_matmul", pertoken_scale=None, output_dtype=6)
    # Integers of another width are no floats.
    with pytest.raises(OperatorRefusedError, match="int32"):
        call(key, input="int32[3, 8]")


@pytest.mark.parametrize(
    ("key", "change", "limit"),
    [
        (
            "torch_npu.npu_dequant_swiglu_quant",
            {"x": "int32[4, 6]", "weight_scale": "float32[2, 6]"},
            "multiple of 64",
        ),
        ("torch_npu.npu_moe_distribute_dispatch_v2", {"x": "bfloat16[3, 24]"}, "1024 to 8192"),
    ],
)
def test_small_sizes_are_lifted_by_their_name(key, change, limit):
    install({"dtype.float32"}, hardware="a3")
    with pytest.raises(OperatorRefusedError, match=limit):
        call(key, **change)
    install({"shape.small"}, hardware="a3")
    call(key, **change)
