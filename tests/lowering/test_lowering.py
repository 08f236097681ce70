"""Triton kernels of ours lower to HIVM at the sizes of the recipes; no statement beyond that."""

from functools import cache
from pathlib import Path

import pytest

from ascend_recipes.compose import recipe_names
from ascend_recipes.registry.load import load_registry
from ascend_recipes.resolve import choose_binding
from tests.conftest import BASE, plan_of
from tests.lowering.environment import TARGETS, LoweringCase, interpret, lower, problems
from tests.lowering.launches import launches_of

pytestmark = pytest.mark.lowering

HERE = Path(__file__).parent
TABLES = {"x": "*fp32", "y": "*fp32"}
NUMBERS = {"x": "*i32", "y": "*i32"}
BAD = {
    "unknown_operation": (64, TABLES, "stops at ttir", "operation_of_tomorrow"),
    "addresses_from_memory": (64, TABLES, "stops at linalg", "Assertion"),
    "too_much_memory": (65536, TABLES, "stops at hivm", "ub overflow"),
    "double_precision": (256, TABLES, "stops at hivm", "unsupported datatype"),
    "foreign_assembly": (64, NUMBERS, "pieces of inline assembly", "holds"),
}
"""Kernel -> size, types, and what the verdict says."""


@cache
def cases_of(hardware: str) -> list[LoweringCase]:
    """Every different launch that the recipes of a generation need."""
    models = load_registry().models
    recipes = [
        f"recipe={entry.name}"
        for entry in recipe_names()
        if entry.hardware == hardware and "gated_delta_net" in models[entry.model].traits
    ]
    plans = [plan_of(recipe) for recipe in recipes]
    return list({str(case): case for planned in plans for case in launches_of(planned)}.values())


def bad_cases() -> list[LoweringCase]:
    return [
        LoweringCase(
            file=HERE / "bad_kernels.py",
            kernel=kernel,
            signature=signature,
            constants={"BLOCK": block},
        )
        for kernel, (block, signature, _, _) in BAD.items()
    ]


@pytest.mark.parametrize("hardware", TARGETS)
def test_kernels_lower_to_hivm_at_the_sizes_of_recipes(hardware, capsys):
    cases = cases_of(hardware)
    results = lower(cases, hardware)
    with capsys.disabled():
        print()
        for case, result in zip(cases, results, strict=True):
            used = f"{result['peak'].get('ub', 0)} B" if result["lowered"] else result["stage"]
            print(f"  {hardware} {case!s:118} {used}")
    verdicts = {
        str(case): problems(result, hardware) for case, result in zip(cases, results, strict=True)
    }
    assert {case: found for case, found in verdicts.items() if found} == {}
    assert {case.kernel for case in cases} == {"gating_kernel", "norm_rotary_kernel"}


@pytest.mark.parametrize("hardware", TARGETS)
def test_bad_kernels_are_refused_at_their_stage(hardware):
    results = lower(bad_cases(), hardware)
    for (kernel, (_, _, stage, detail)), result in zip(BAD.items(), results, strict=True):
        (verdict,) = problems(result, hardware)
        assert stage in verdict, kernel
        assert detail in verdict, kernel


GOOD = {
    "lowered": True,
    "peak": {"ub": 1024},
    "reported_ub": None,
    "missing": [],
    "inline_assembly": 0,
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"missing": ["vexp_1d_bfloat16_t"]}, "vexp_1d_bfloat16_t, which the device library lacks"),
        ({"peak": {"ub": 200 * 1024}}, "needs 204800 bytes"),
        ({"reported_ub": 512}, "512 as the compiler does"),
        ({"inline_assembly": 2}, "2 pieces of inline assembly"),
    ],
)
def test_each_check_can_fail(change, says):
    assert problems(GOOD, "a2") == []
    (verdict,) = problems(GOOD | change, "a2")
    assert says in verdict


# --- numbers --------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def interpreted():
    return interpret(HERE / "interpret.py")


def test_bindings_equal_references_in_the_interpreter(interpreted):
    contracts = load_registry().operations
    assert len(interpreted["results"]) == 36
    for item in interpreted["results"]:
        # The decay is float32 whatever the inputs are, but its inputs were rounded for both.
        allowed = contracts[item["operation"]].tolerance[item["dtype"]]
        assert max(item["errors"]) <= allowed, item


def test_wrong_conventions_change_the_result(interpreted):
    assert min(interpreted["wrong"]) > 0.1


def test_unsupported_sizes_are_refused(interpreted):
    assert "cosine_TF has 12 frequencies" in interpreted["refusal"]
    assert "allowed: a power of two" in interpreted["refusal"]


# --- plans ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("operation", ["delta_rule_gates", "rms_norm_rotary"])
def test_no_plan_chooses_a_kernel_that_nobody_has_run(operation):
    contract = load_registry().operations[operation]
    for hardware in TARGETS:
        assert choose_binding(contract, hardware, frozenset()).provider == "torch"
        able = choose_binding(contract, hardware, frozenset({"triton_kernels"}))
        assert able.provider == "triton"
    chosen = plan_of(f"recipe={BASE}").plan.operations.get(operation, "torch.")
    assert chosen.startswith("torch.")
