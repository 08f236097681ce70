"""Rows are valid, their references resolve, and the Python they name exists."""

import ast
from pathlib import Path

import pytest

from ascend_recipes.paths import PACKAGE
from ascend_recipes.registry.load import load_registry, unknown_key
from ascend_recipes.schema.hook import HookKind
from ascend_recipes.schema.rows import FactRow

REGISTRY = load_registry()
ROWS = [(table, key) for table in REGISTRY.tables() for key in table]
IDS = [f"{table.name}/{key}" for table, key in ROWS]


def defines(path: str) -> bool:
    """Whether `module:Name` of ours exists, read from the source without importing it."""
    module, name = path.split(":")
    parts = module.split(".")[1:]
    candidates = [
        PACKAGE.joinpath(*parts).with_suffix(".py"),
        PACKAGE.joinpath(*parts, "__init__.py"),
    ]
    source = next((file for file in candidates if file.is_file()), None)
    if source is None:
        return False
    tree = ast.parse(source.read_text(encoding="utf-8"))
    return any(getattr(node, "name", None) == name for node in tree.body)


@pytest.mark.parametrize(("table", "key"), ROWS, ids=IDS)
def test_row_is_valid_and_states_its_sources(table, key):
    row = table[key]
    if isinstance(row, FactRow):
        assert all(source.strip() for source in row.sources)
        assert row.about


@pytest.mark.parametrize("key", list(REGISTRY.models))
def test_model_row_refers_to_rows_that_exist(key):
    row = REGISTRY.models[key]
    assert all(facts.format in REGISTRY.quantization for facts in row.checkpoints.values())
    assert all(name in row.drafters for c in row.checkpoints.values() for name in c.drafters)
    assert all(field in row.config for field in row.heads_split)
    assert set(row.model_hooks) <= set(REGISTRY.hooks)
    assert set(row.native_drafters) <= set(row.drafters)
    assert sum(layer.count for layer in row.layers) == row.config["num_hidden_layers"]
    served = {kind for name in REGISTRY.backends for kind in REGISTRY.backends[name].layer_kinds}
    assert {layer.kind for layer in row.layers} <= served
    if row.rotary:
        drafted = {facts.layer_kind for facts in row.drafters.values()}
        assert set(row.rotary) == {*(layer.kind for layer in row.layers), *drafted}
        fields = {*(facts.theta for facts in row.rotary.values())}
        fields |= {facts.scaling for facts in row.rotary.values() if facts.scaling}
        assert fields <= set(row.config)
    assert row.verified == ()
    if row.native:
        assert (PACKAGE / "models" / row.family).is_dir()


@pytest.mark.parametrize("key", list(REGISTRY.backends))
def test_backend_row_refers_to_rows_that_exist(key):
    row = REGISTRY.backends[key]
    assert set(row.hardware) <= set(REGISTRY.hardware)
    assert set(row.operations) <= set(REGISTRY.operations)
    offered = {item for name in REGISTRY.hardware for item in REGISTRY.hardware[name].capabilities}
    assert set(row.requires) <= offered
    assert row.implementation is None or defines(row.implementation)


@pytest.mark.parametrize("key", list(REGISTRY.hooks))
def test_hook_row_names_code_and_operations_that_exist(key):
    row = REGISTRY.hooks[key]
    assert defines(row.implementation)
    assert set(row.operations) <= set(REGISTRY.operations)
    assert row.because and row.source


def test_there_is_one_platform():
    kinds = [REGISTRY.hooks[key].kind for key in REGISTRY.hooks]
    assert kinds.count(HookKind.PLATFORM) == 1


@pytest.mark.parametrize("key", list(REGISTRY.operations))
def test_contract_names_code_providers_and_hardware_that_exist(key):
    row = REGISTRY.operations[key]
    assert defines(row.reference)
    for binding in row.bindings:
        assert binding.provider in REGISTRY.providers
        assert set(binding.hardware) <= set(REGISTRY.providers[binding.provider].hardware)
        assert defines(binding.implementation)


@pytest.mark.parametrize("key", list(REGISTRY.quantization))
def test_format_refers_to_hardware_that_offers_what_it_needs(key):
    row = REGISTRY.quantization[key]
    for name in row.hardware:
        assert set(row.requires) <= set(REGISTRY.hardware[name].capabilities)


def test_every_operation_is_used_by_a_backend_or_hook():
    used = {name for key in REGISTRY.hooks for name in REGISTRY.hooks[key].operations}
    used |= {name for key in REGISTRY.backends for name in REGISTRY.backends[key].operations}
    assert used <= set(REGISTRY.operations)


def test_unknown_key_suggests_the_closest():
    (finding,) = unknown_key("models", "qwen3_5_27", ["qwen3_5_27b", "deepseek_v4_pro"]).findings
    assert finding.fix == "did you mean 'qwen3_5_27b'?"
    assert "deepseek_v4_pro" in finding.message


def test_the_check_for_missing_code_can_fail():
    assert defines("ascend_recipes.errors:Finding")
    assert not defines("ascend_recipes.errors:Missing")
    assert not defines("ascend_recipes.nowhere:Finding")
    assert Path(PACKAGE).is_dir()
