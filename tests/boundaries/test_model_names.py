"""Mechanism asks for traits; only data and `models/<family>/` know a model by its name."""

from tests.boundaries.source_tree import (
    PACKAGE,
    family_mentions,
    family_names,
    python_files,
)


def test_mechanism_names_no_model_family():
    files = [path for path in python_files() if "models" not in path.parts]
    assert family_mentions(files, family_names()) == []


def test_families_come_from_the_registry():
    assert {"qwen", "deepseek"} <= family_names()


def test_the_check_can_fail(tmp_path):
    path = tmp_path / "mechanism.py"
    path.write_text('if "DeepseekV4" in architecture:\n    pass\n')
    assert len(family_mentions([path], {"deepseek"})) == 1
    assert PACKAGE.is_dir()
