"""The recorder of the surface tables, on a package made for it: odd forms, each stated by hand."""

import ast
import importlib.util
import json
from pathlib import Path

import pytest

from ascend_recipes.errors import RecipeError
from ascend_recipes.registry.load import load_registry
from ascend_recipes.surface.load import load_surface
from ascend_recipes.surface.record_keys import KeyRecorder
from ascend_recipes.surface.record_names import record_variables
from ascend_recipes.surface.recording import ReleaseSources, surface_files
from ascend_recipes.surface.source_tree import SourceTree
from ascend_recipes.surface.tables import parser_names

CONFIG = """\
import os

class BlockConfig:
    def __init__(self, block: dict):
        self.enabled = block.get("enabled", False)
        self.mode = block.get("mode", "fast")
        if self.mode not in ("fast", "safe"):
            raise ValueError("mode")

class PluginConfig:
    def __init__(self, vllm_config):
        config = vllm_config.additional_config or {}
        block = config.get("block_config", {})
        self.block = BlockConfig(block)
        self.size = int(config.get("size", 4))
        if "left_over" in config:
            print("left_over is gone")
"""
VARIABLES = """\
import os
env_variables = {
    "PLUGIN_FAST": lambda: bool(int(os.getenv("PLUGIN_FAST", "0"))),
}
elsewhere = os.environ.get("PLUGIN_OTHER")
"""


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "config.py").write_text(CONFIG)
    (folder / "envs.py").write_text(VARIABLES)
    return folder


def test_keys_are_followed_through_names_classes_and_defaults(package):
    keys = KeyRecorder(SourceTree(package)).record()
    assert set(keys) == {
        "block_config",
        "block_config.enabled",
        "block_config.mode",
        "left_over",
        "size",
    }
    assert (keys["block_config.enabled"].kind, keys["block_config.enabled"].default) == (
        "bool",
        False,
    )
    assert keys["block_config.mode"].choices == ("fast", "safe")
    assert (keys["size"].kind, keys["size"].default) == ("int", 4)
    assert keys["size"].source == "plugin/config.py:15"


def test_a_key_that_is_only_looked_for_is_one_that_was_removed(package):
    keys = KeyRecorder(SourceTree(package)).record()
    assert not keys["left_over"].is_read
    assert keys["size"].is_read


def test_variables_of_the_table_are_told_from_those_read_elsewhere(package):
    found = record_variables(SourceTree(package))
    assert set(found) == {"PLUGIN_FAST", "PLUGIN_OTHER"}
    assert found["PLUGIN_FAST"].registered
    assert not found["PLUGIN_OTHER"].registered


def test_a_key_is_dated_by_the_releases_that_have_it(package, tmp_path):
    newer = tmp_path / "newer" / "plugin"
    newer.mkdir(parents=True)
    (newer / "__init__.py").write_text("")
    (newer / "config.py").write_text(CONFIG.replace('"size"', '"width"'))
    (newer / "envs.py").write_text(VARIABLES)
    releases = [
        ReleaseSources("1.0.0", package, is_exact=True),
        ReleaseSources("2.0.0", newer, is_exact=True),
    ]
    rows = {row["name"]: row for row in json.loads(surface_files([], releases)["config_keys.json"])}
    assert (rows["size"]["since"], rows["size"]["until"]) == ("1.0.0", "1.0.0")
    assert rows["width"]["since"] == "2.0.0"
    assert "until" not in rows["width"]
    assert "until" not in rows["block_config.mode"]


def test_a_planted_flag_and_a_dead_key_are_refused():
    surface = load_surface("main-2026-08")
    assert surface.judge_flag("--max-num-seqs") is None
    assert surface.judge_flag("--max-num-sequences").id == "cli.unknown_flag"
    assert surface.judge_key("ascend_compilation_config.fuse_norm_quant") is None
    assert surface.judge_key("fuse_norm_quantt") is not None


def test_a_version_that_nobody_recorded_is_named():
    with pytest.raises(RecipeError, match=r"9\.9\.9"):
        load_surface("9.9.9")


@pytest.mark.parametrize(
    ("kind", "file", "table"),
    [
        ("tool", "tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
        ("reasoning", "reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
    ],
)
def test_parsers_are_those_of_the_installed_vllm(kind, file, table):
    """Read from its source, which imports nothing."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).parent.joinpath(file).read_text(encoding="utf-8"))
    (found,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == table
    ]
    assert isinstance(found, ast.Dict)
    names = [ast.literal_eval(key) for key in found.keys if key is not None]
    assert sorted(names) == list(parser_names(kind, "0.32.0"))


def test_parsers_of_models_are_known_to_every_version_that_serves_them():
    registry = load_registry()
    runtime = registry.runtimes["vllm_ascend"]
    for row in registry.models.values():
        for kind, name in (("tool", row.tool_call_parser), ("reasoning", row.reasoning_parser)):
            for version in runtime.versions:
                surface = load_surface(version)
                if name and row.architecture in {*surface.models, *surface.own_models}:
                    assert name in parser_names(kind, runtime.vllm[version]), (row, version)
    assert parser_names("tool", "0.1.0") == ()
