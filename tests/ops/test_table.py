"""The operation table and the contracts that it is bound from."""

import ast
import inspect
from pathlib import Path

import pytest
import torch

from ascend_recipes import emulation, ops
from ascend_recipes.errors import RecipeError
from ascend_recipes.ops import OperationTable, binding_key, load_function
from ascend_recipes.registry.load import load_registry

pytestmark = pytest.mark.ops

NAMES = sorted(load_registry().operations)
PROVIDERS = ["torch_npu", "cann_custom", "triton", "torch"]


@pytest.fixture
def table():
    bound = OperationTable()
    bound.bind(
        {"rms_norm": "torch_npu.npu_rms_norm", "swiglu": "torch.swiglu"},
        load_registry().operations,
    )
    return bound


def test_calls_are_counted(table):
    x = torch.randn(2, 8)
    table.swiglu(x)
    table.swiglu(x)
    assert table.calls() == {"rms_norm": 0, "swiglu": 2}
    assert table.bound()["swiglu"] == "torch.swiglu"


def test_unbound_operation_names_what_is_bound(table):
    with pytest.raises(RecipeError, match=r"operation.unbound.*top_k_top_p.*rms_norm, swiglu"):
        table.top_k_top_p(torch.zeros(1, 1))


def test_unknown_binding_lists_the_choices(table):
    with pytest.raises(RecipeError, match=r"npu_swish.*torch\.swiglu, torch_npu\.npu_swiglu"):
        table.bind({"swiglu": "torch_npu.npu_swish"}, load_registry().operations)
    assert table.bound()["swiglu"] == "torch.swiglu"


def test_unknown_operation_is_refused(table):
    with pytest.raises(RecipeError, match="swigloo"):
        table.bind({"swigloo": "torch.swigloo"}, load_registry().operations)


def test_binding_again_forgets_the_old(table):
    table.bind({"swiglu": "torch.swiglu"}, load_registry().operations)
    with pytest.raises(RecipeError, match=r"operation\.unbound"):
        table.rms_norm(torch.zeros(1, 1), torch.zeros(1), epsilon=0.0)


def test_override_is_temporary(table):
    x = torch.ones(1, 4)
    with table.override("swiglu", lambda call: lambda x: torch.zeros_like(call(x))):
        assert table.swiglu(x).sum() == 0
    assert table.swiglu(x).sum() != 0
    assert table.calls()["swiglu"] == 2


def parameters(function):
    return {
        name: (item.kind, item.default)
        for name, item in inspect.signature(function).parameters.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_bindings_take_what_the_reference_takes(name):
    contract = load_registry().operations[name]
    wanted = parameters(load_function(contract.reference))
    for row in contract.bindings:
        assert parameters(load_function(row.implementation)) == wanted, row.symbol
    spelled = contract.signature.split("->")[0]
    assert all(parameter in spelled for parameter in wanted)
    assert set(contract.inputs) | set(contract.in_place) <= set(wanted)


@pytest.mark.parametrize("name", NAMES)
def test_contract_is_consistent(name):
    contract = load_registry().operations[name]
    last = contract.bindings[-1]
    assert last.provider == "torch"
    assert last.implementation == contract.reference
    assert set(last.hardware) == set(load_registry().hardware)
    keys = [binding_key(row) for row in contract.bindings]
    assert len(set(keys)) == len(keys)
    named = {part for shape in contract.outputs.values() for part in shape.dtypes}
    assert named <= set(contract.tolerance) | {"float32"}


@pytest.mark.parametrize("name", NAMES)
def test_every_vendor_symbol_is_emulated(name):
    for row in load_registry().operations[name].bindings:
        if row.provider not in ("torch", "triton"):
            assert row.symbol in emulation.operator_names()


def sources(package):
    return sorted(Path(package.__file__).parent.rglob("*.py"))


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        if isinstance(node, ast.Import):
            yield from (item.name for item in node.names)


def test_emulation_is_independent_of_the_operations():
    for path in sources(emulation):
        assert not [name for name in imported(path) if name.startswith("ascend_recipes.ops")]


def test_bindings_and_references_are_independent():
    reference = "ascend_recipes.ops.reference"
    for path in sources(ops):
        within = [name for name in imported(path) if name.startswith("ascend_recipes.ops.")]
        references = [name for name in within if name.startswith(reference)]
        assert references == (within if "reference" in path.parts else []), path
