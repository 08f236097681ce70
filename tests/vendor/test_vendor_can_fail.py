"""The vendor lane notices what it exists for: wrong names, wrong results, changed schemas."""

from dataclasses import replace

import pytest
import torch

from ascend_recipes.emulation.register import load_schemas
from tests.vendor.agreement import output_differences, schema_differences, unbound_calls
from tests.vendor.controls import CALLS
from tests.vendor.recording import Recorded, description_of
from tests.vendor.source_schemas import source_schemas

pytestmark = pytest.mark.vendor


@pytest.fixture(scope="module")
def verdicts(control_answer):
    return dict(zip([*CALLS, "mistaken"], control_answer.verdicts, strict=True))


@pytest.mark.parametrize("name", ["good", "named", "source_good"])
def test_right_calls_bind(verdicts, name):
    assert verdicts[name].bound, verdicts[name].error


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("wrong_name", "missing value for argument 'gamma'"),
        ("mistaken", "missing value for argument 'gamma'"),
        ("wrong_type", "epsilon"),
        ("too_many", "at most 2 argument"),
        ("unknown", "npu_rms_norm_of_tomorrow"),
        ("source_wrong_name", "missing value for argument 'second'"),
    ],
)
def test_wrong_calls_do_not_bind(verdicts, name, says):
    assert not verdicts[name].bound
    assert says in verdicts[name].error


def test_unbound_calls_are_reported(control_answer):
    recorded = [Recorded(call, [], []) for call in (*CALLS.values(), CALLS["wrong_name"])]
    assert len(unbound_calls(recorded, control_answer)) == len(recorded) - 3


def test_wrong_output_dtype_count_and_shape_are_caught(verdicts):
    right = verdicts["good"].outputs
    assert [item["dtype"] for item in right] == ["bfloat16", "float32"]
    recorded = Recorded(CALLS["good"], right, right)
    assert output_differences(recorded, verdicts["good"]) == []
    other_dtype = [right[0], {**right[1], "dtype": "bfloat16"}]
    other_shape = [right[0], {**right[1], "shape": [2]}]
    for wrong in (other_dtype, other_shape, right[:1], []):
        (line,) = output_differences(replace(recorded, outputs=wrong), verdicts["good"])
        assert "our CPU kernel" in line
        (line,) = output_differences(replace(recorded, meta_outputs=wrong), verdicts["good"])
        assert "our Meta kernel" in line


@pytest.mark.parametrize(
    ("before", "after"),
    [("Tensor gamma", "Tensor weight"), ("e-07", "e-05"), ("(Tensor, Tensor)", "Tensor")],
)
def test_changed_schema_is_caught(control_answer, before, after):
    name = "npu::npu_rms_norm"
    ours = {name: load_schemas()[name]}
    assert schema_differences(ours, control_answer.schemas) == []
    changed = {name: ours[name].replace(before, after)}
    assert changed != ours
    (line,) = schema_differences(changed, control_answer.schemas)
    assert line.startswith(name)


def test_missing_operator_is_caught(control_answer):
    (line,) = schema_differences({"npu::gone": "npu::gone(Tensor x) -> Tensor"}, {})
    assert "does not exist" in line


SOURCE_TEXT = """
    // ops.def("commented(Tensor x) -> Tensor");
    ops.def(
        "two(Tensor first, *, "  // a remark with a "quote"
        "str layout=\\"TND\\") -> Tensor");
    /* ops.def("gone(Tensor x) -> Tensor"); */
    ops.def("one(Tensor x) -> ()");
    ops.def("one(Tensor  x) -> ()");
"""


def test_source_definitions_are_joined_and_comments_ignored(tmp_path):
    path = tmp_path / "torch_binding.cpp"
    path.write_text(SOURCE_TEXT)
    assert source_schemas(path) == {
        "_C_ascend::two": '_C_ascend::two(Tensor first, *, str layout="TND") -> Tensor',
        "_C_ascend::one": "_C_ascend::one(Tensor x) -> ()",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('ops.def("one(Tensor x) -> ()"); ops.def("one(Tensor y) -> ()");', "two definitions"),
        ("int main() {}", "defines no operator"),
    ],
)
def test_source_that_contradicts_itself_is_refused(tmp_path, text, says):
    path = tmp_path / "torch_binding.cpp"
    path.write_text(text)
    with pytest.raises(ValueError, match=says):
        source_schemas(path)


def test_descriptions_flatten_nested_results():
    x = torch.empty(2, 3, dtype=torch.int8)
    assert description_of((x, [None, x])) == 2 * [{"shape": [2, 3], "dtype": "int8"}]
