"""What operators demand is data, and each demand has a call that violates it and is refused."""

from contextlib import ExitStack

import pytest
import torch

from ascend_recipes import apply, emulation
from ascend_recipes.emulation import OperatorRefusedError, install
from ascend_recipes.emulation.limits import emulated_generations
from ascend_recipes.registry.load import load_registry
from tests.ops.written_operators import (
    generation_of,
    make,
    operator_rows,
    value_of,
    written_arguments,
)

pytestmark = pytest.mark.ops

ROWS = operator_rows()
CALLS = [(key, call) for key, row in ROWS.items() for call in row.calls]
VIOLATIONS = [
    pytest.param(key, entry, change, id=f"{key}-{entry.argument}-{number}")
    for key, row in ROWS.items()
    for entry in (*row.constraints, *row.not_emulated)
    for number, change in enumerate(entry.violated_by)
]


@pytest.mark.parametrize(("key", "name"), CALLS)
def test_the_written_operators_are_legal(key, name):
    row = ROWS[key]
    install(hardware=generation_of(row, name))
    make(row, written_arguments(row, name))


@pytest.mark.parametrize(("key", "entry", "change"), VIOLATIONS)
def test_a_violating_call_is_refused(key, entry, change):
    row = ROWS[key]
    install(hardware=generation_of(row, entry.call, entry))
    arguments = written_arguments(row, entry.call)
    with pytest.raises(OperatorRefusedError) as caught:
        make(row, arguments | change)
    assert caught.value.operator == row.symbol.split("::")[1]
    assert caught.value.argument == entry.argument, str(caught.value)
    assert caught.value.allowed


@pytest.mark.parametrize("key", ROWS)
def test_demands_name_arguments_of_the_operator(key):
    schema = torch._C._jit_get_schemas_for_operator(ROWS[key].symbol)[0]
    named = {entry.argument for entry in (*ROWS[key].constraints, *ROWS[key].not_emulated)}
    assert named <= {item.name for item in schema.arguments}


def operators_of_bindings():
    """Dispatcher name -> generations of the bindings that call it."""
    found = {}
    for contract in load_registry().operations.values():
        for binding in contract.bindings:
            if "::" in binding.symbol:
                found.setdefault(binding.symbol, set()).update(binding.hardware)
    return found


def test_every_emulated_operator_has_one_row():
    symbols = [row.symbol for row in ROWS.values()]
    assert sorted(symbols) == sorted(emulation.operator_names())


def test_rows_have_the_generations_of_the_bindings_that_call_them():
    rows = {row.symbol: row for row in ROWS.values()}
    for symbol, hardware in operators_of_bindings().items():
        assert hardware <= set(rows[symbol].hardware), symbol


def tensor_arguments(row):
    schema = torch._C._jit_get_schemas_for_operator(row.symbol)[0]
    return {item.name for item in schema.arguments if "Tensor" in str(item.type)}


@pytest.mark.parametrize("key", ROWS)
def test_every_tensor_argument_has_dtypes(key):
    assert set(ROWS[key].dtypes) == tensor_arguments(ROWS[key])


# --- generations ----------------------------------------------------------------------------------
GENERATIONS = list(load_registry().hardware)
UNCOMMON = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}


def legal_dtypes(row, argument, generation):
    """Dtypes as the row writes them, less those that the generation does not compute."""
    values = row.dtypes[argument]
    written = next((names for key, names in values.items() if generation in key.split()), None)
    names = set(values.get("all", ()) if written is None else written)
    computed = set(load_registry().hardware[generation].dtypes)
    if "float8_e4m3fn" in computed:
        computed.add("float8_e5m2")
    return names - (UNCOMMON - computed)


def wrong_dtypes(row, generation):
    """Given tensors, each with a dtype of other generations or none that is not legal here."""
    for argument, text in plain(row).items():
        if argument in row.dtypes and isinstance(text, str):
            everywhere = set().union(*row.dtypes[argument].values()) | {"float64", "int16"}
            for dtype in sorted(everywhere - legal_dtypes(row, argument, generation)):
                yield argument, dtype


def with_dtype(text, dtype):
    """The tensor's text with another dtype; zeros, whose values no check can mind."""
    shape = list(value_of(text).shape)
    return f"{dtype}{shape}"


PLACES = [(key, generation) for key, row in ROWS.items() for generation in row.hardware]


@pytest.mark.parametrize(("key", "generation"), PLACES)
def test_dtypes_that_the_generation_lacks_are_refused(key, generation):
    row = ROWS[key]
    install(hardware=generation)
    for argument, dtype in wrong_dtypes(row, generation):
        written = plain(row)
        written[argument] = with_dtype(written[argument], dtype)
        with pytest.raises(OperatorRefusedError) as caught:
            make(row, written)
        # The legal call may be one of another generation: then an earlier argument is refused.
        refused = caught.value
        assert refused.argument in row.dtypes, str(refused)
        if refused.argument == argument:
            assert f"is {dtype}" in str(refused)
            allowed = legal_dtypes(row, argument, generation) or {"none"}
            assert allowed == set(refused.allowed.split(", "))


@pytest.mark.parametrize("key", ROWS)
def test_an_operator_that_the_generation_lacks_is_refused(key):
    row = ROWS[key]
    for generation in set(GENERATIONS) - set(row.hardware):
        install(hardware=generation)
        with pytest.raises(OperatorRefusedError, match=f"'hardware' is {generation}") as caught:
            make(row, plain(row))
        assert all(name in caught.value.allowed for name in row.hardware)


def plain(row):
    """Arguments without a split, which another operator would have to make on that generation."""
    written = written_arguments(row, None)
    return {key: item for key, item in written.items() if key != "metadata"}


def test_without_a_generation_a_call_must_be_legal_on_one_of_them():
    row = ROWS["cann_custom.npu_vllm_quant_lightning_indexer"]
    bytes_call, floats = (written_arguments(row, name) for name in ("plain", "floats"))
    install()
    make(row, bytes_call)
    make(row, floats)
    with pytest.raises(OperatorRefusedError, match=r"weights.*float16 on a2, a3; float32 on a5"):
        make(row, bytes_call | {"weights": floats["weights"]})


def test_unknown_generations_are_refused():
    with pytest.raises(ValueError, match=r"'a9'; known: 310p, a2, a3, a5, any"):
        install(hardware="a9")


def test_a_later_call_chooses_the_generation_anew():
    row = ROWS["torch_npu.npu_dynamic_mx_quant"]
    install(hardware="a3")
    with pytest.raises(OperatorRefusedError, match="a5 have the operator"):
        make(row, written_arguments(row, None))
    install(hardware="a5")
    make(row, written_arguments(row, None))


@pytest.mark.parametrize(
    ("recipe", "generation"), [("qwen3_5_27b_w8a8_a3", "a3"), ("qwen3_5_27b_w8a8_a2", "a2")]
)
def test_a_plan_is_emulated_on_its_generation(plan, recipe, generation):
    planned = plan(f"recipe={recipe}", "device=emulated", "scale=tiny")
    with ExitStack() as shims:
        apply._prepare_device(planned.plan, shims)
        assert emulated_generations() == (generation,)


def test_310p_takes_no_bfloat16_anywhere():
    """No documentation says so operator by operator: the hardware does not compute it."""
    for row in ROWS.values():
        if "310p" in row.hardware:
            assert all("bfloat16" not in legal_dtypes(row, name, "310p") for name in row.dtypes)
    install(hardware="310p")
    x, gamma = torch.zeros(2, 8).bfloat16(), torch.zeros(8).bfloat16()
    with pytest.raises(OperatorRefusedError, match=r"input.*bfloat16; allowed: float16, float32"):
        torch.ops.npu.npu_rms_norm(x, gamma)


def test_columns_on_310p_are_whole_rows():
    arguments = written_arguments(ROWS["torch_npu.npu_grouped_matmul"], None)
    odd = arguments | {"weight": ["float16[2, 8, 24]"]}
    install(hardware="a3")
    make(ROWS["torch_npu.npu_grouped_matmul"], odd)
    install(hardware="310p")
    with pytest.raises(OperatorRefusedError, match="multiple of 16 on 310p"):
        make(ROWS["torch_npu.npu_grouped_matmul"], odd)
