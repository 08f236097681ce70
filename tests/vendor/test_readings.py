"""Every statement in the sources of a custom operator is in its reading, and nothing else is."""

import pytest

from ascend_recipes.registry.load import load_registry
from tests.vendor.environment import PACKAGE, REMEDY
from tests.vendor.source_statements import files_of, refusals, statements, within

pytestmark = pytest.mark.vendor
READINGS = load_registry().readings
VERSION = "vllm-ascend 0.23.0.post1"
"""The package that set-up downloads."""


@pytest.mark.parametrize("key", READINGS)
def test_every_statement_of_a_document_is_accounted_for(key):
    assert READINGS[key].package == VERSION
    for document in READINGS[key].documents:
        path = PACKAGE / document.path
        assert path.is_file(), REMEDY
        stated = statements(path)
        if document.function:
            body = within(path, document.function)
            stated = {line: text for line, text in stated.items() if line in body}
        unread = {line: text for line, text in stated.items() if line not in document.lines()}
        assert not unread, document.path
        assert document.lines() <= set(stated), document.path


@pytest.mark.parametrize("key", READINGS)
def test_every_file_of_an_operator_is_a_document(key):
    read = {PACKAGE / document.path for document in READINGS[key].documents}
    for folder in READINGS[key].folders:
        assert (PACKAGE / folder).is_dir(), REMEDY
        speaking = {path for path in files_of(PACKAGE / folder) if statements(path)}
        assert speaking <= read, folder


SAMPLE = """\
#define REFUSE(text) OP_LOGE(name, text)
// OP_LOGE(name, "a comment should not count");
ge::graphStatus Check(const Shape &shape) {
    OP_CHECK_IF(shape.dims != 2, OP_LOGE(name, "x should have \\"2\\" dims, got %d", shape.dims),
                return FAILED);
    OP_CHECK_IF(Read() != OK, OP_LOGE(name, "Read failed"), return FAILED);
    OP_CHECK_IF(shape.size == nullptr, OP_LOGE(name, "shape is nullptr"), return FAILED);
    OP_CHECK_WRONG_DIMENSION(weight, 3, return false);
}
void Bind(const Tensor &x) {
    TORCH_CHECK(x.dim() == 2,
                "x must be 2D");
}
"""


def test_statements_are_the_refusals_of_a_call(tmp_path):
    path = tmp_path / "sample.cpp"
    path.write_text(SAMPLE, encoding="utf-8")
    found = refusals(path)
    assert list(found) == [4, 8, 11]
    assert found[4].startswith("OP_CHECK_IF(shape.dims != 2, =>")
    assert list(within(path, "Bind")) == [10, 11, 12, 13]
    with pytest.raises(ValueError, match="does not define Absent"):
        within(path, "Absent")


def test_statements_of_a_readme_are_rows_and_points_of_two_sections(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(
        "## 功能说明\n- not a demand\n## 参数说明\n| 参数名 | 描述 |\n| --- | --- |\n| x | 输入 |\n"
        "<td>权重矩阵，公式中的W</td>\n<td>输入</td>\n## 约束说明\n- N at most 4\n# of code\n",
        encoding="utf-8",
    )
    assert list(statements(path)) == [6, 7, 10]
