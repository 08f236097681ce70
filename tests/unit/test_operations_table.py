"""Who serves what, at what cost, and whether what is installed can load it."""

import json
import math

import pytest

from ascend_recipes import operations_table
from ascend_recipes.cli.main import main
from ascend_recipes.errors import RecipeError
from ascend_recipes.launch import preflight
from ascend_recipes.operations_page import operations_page
from ascend_recipes.operations_table import (
    abi_findings,
    deployment_sizes,
    installed_versions,
    provider_states,
    served_by_plan,
    served_everywhere,
)
from ascend_recipes.paths import data_root
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.expression import evaluate, names_in

FITTING = {
    "torch": "2.13.0+cpu",
    "torch_npu": "2.13.0",
    "triton_ascend": "3.2.0",
    "vllm_ascend": None,
}
VENDOR_IMAGE = {"torch": "2.10.0", "torch_npu": "2.10.0.post4", "vllm_ascend": "0.23.0.post1"}


def states(**changes):
    return provider_states(load_registry(), FITTING | changes)


# --- the table ------------------------------------------------------------------------------------
def test_every_operation_on_every_generation():
    registry = load_registry()
    rows = served_everywhere(registry)
    assert {(row.operation, row.hardware) for row in rows} == {
        (name, hardware) for name in registry.operations for hardware in registry.hardware
    }
    by_key = {(row.operation, row.hardware): row for row in rows}
    assert by_key["swiglu", "a2"].binding == "torch_npu.npu_swiglu"
    assert not by_key["swiglu", "a2"].falls_back
    assert by_key["l2_norm", "a5"].falls_back
    assert by_key["paged_attention", "310p"].falls_back
    assert by_key["paged_attention", "310p"].heavy


def test_plan_table_has_the_plans_bindings_and_costs(plan):
    planned = plan("recipe=qwen3_5_27b_a2")
    rows = {row.operation: row for row in served_by_plan(planned)}
    assert {name: row.binding for name, row in rows.items()} == planned.plan.operations
    other = "torch_npu.npu_recurrent_gated_delta_rule (needs state_bfloat16)"
    assert other in rows["recurrent_gated_delta_rule"].others
    swiglu = rows["swiglu"]
    width, tokens = 17408 // 4, 32
    assert (swiglu.decode.tokens, swiglu.prefill.tokens) == (tokens, 16384)
    assert swiglu.decode.bytes == 3 * tokens * width * 2
    assert swiglu.prefill.flops == 5 * 16384 * width
    # A decode step reads every key and value of every sequence: two kv heads would be one die's
    # share at most, half the context each.
    attention = rows["paged_attention"].decode
    assert attention.bytes == pytest.approx(2 * 2 * 256 * (32 * 6 + 32 * 133000 / 2), rel=1e-6)


def test_cost_is_unknown_where_the_model_lacks_a_size(plan):
    planned = plan("recipe=qwen3_5_27b_a2")
    contract = load_registry().operations["causal_conv1d"]
    assert operations_table._cost(contract, {"tokens": 1, "e": 2}) is None
    assert all(row.decode for row in served_by_plan(planned))


RECIPES = sorted(path.stem for path in (data_root() / "recipes" / "recipe").glob("*.yaml"))


@pytest.mark.parametrize("name", RECIPES)
def test_every_operation_of_every_recipe_has_a_cost(plan, name):
    rows = served_by_plan(plan(f"recipe={name}"))
    assert rows
    for row in rows:
        for cost in (row.decode, row.prefill):
            assert cost is not None, row.operation
            assert math.isfinite(cost.flops)
            assert math.isfinite(cost.bytes)
            assert cost.flops >= 0
            assert cost.bytes > 0, row.operation


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [
        ({"n_routed_experts": 4, "num_experts": 9}, "n_routed_experts", 4),
        ({"text_config": {"num_experts": 9}}, "n_routed_experts", 9),
        ({"num_experts_per_token": 3}, "num_experts_per_tok", 3),
        ({"moe_intermediate_size": 5}, "intermediate_size", 5),
        (
            {"moe_intermediate_size": 5, "shared_expert_intermediate_size": 7},
            "intermediate_size",
            7,
        ),
    ],
)
def test_sizes_have_one_spelling(config, name, value):
    common = dict.fromkeys(("tensor_parallel", "tokens", "requests", "context", "block"), 1)
    assert deployment_sizes(config, **common)[name] == value


def test_cost_of_a_mixture_of_experts(plan):
    rows = {row.operation: row for row in served_by_plan(plan("recipe=qwen3_6_35b_a3b_w8a8_a3"))}
    grouped = rows["grouped_quant_matmul"].decode
    # 8 of 256 experts, 512 wide, in front of a hidden size of 2048.
    assert grouped.flops == 2 * (grouped.tokens * 8) * 512 * 2048


def test_sizes_flatten_nested_sections_and_leave_flags_out():
    sizes = deployment_sizes(
        {"hidden_size": 8, "tie": True, "rope": {"factor": 0.25, "type": "x"}},
        tensor_parallel=2,
        tokens=3,
        requests=1,
        context=10,
        block=128,
    )
    assert (sizes["hidden_size"], sizes["factor"], sizes["tp"]) == (8, 0.25, 2)
    assert "tie" not in sizes
    assert "type" not in sizes


def test_contracts_write_shapes_and_costs_that_can_be_evaluated():
    for name, contract in load_registry().operations.items():
        tensors = [*contract.inputs.values(), *contract.outputs.values()]
        shapes = set().union(*(names_in(item) for tensor in tensors for item in tensor.shape))
        if contract.cost is None:
            continue
        used = names_in(contract.cost.flops) | names_in(contract.cost.bytes)
        assert used <= {*contract.sizes, "e"}, name
        assert set(contract.sizes) <= shapes | used, f"{name}: a size that nothing needs"


# --- what loads here ------------------------------------------------------------------------------
def test_pinned_stack_loads_torch_npu_and_not_the_compiled_library():
    found = states()
    assert found["torch_npu"].differences == ()
    assert found["torch"].differences == ()
    assert found["triton"].differences == ()
    assert {str(item) for item in found["cann_custom"].differences} == {
        "torch 2.10.0 is wanted, 2.13.0+cpu is installed",
        "torch_npu 2.10.0.post4 is wanted, 2.13.0 is installed",
        "vllm_ascend 0.23.0.post1 is not installed",
    }


def test_vendor_image_loads_the_compiled_library_and_not_our_pin():
    found = states(**VENDOR_IMAGE)
    assert found["cann_custom"].differences == ()
    assert found["torch_npu"].differences != ()


def test_versions_are_read_from_metadata():
    found = installed_versions(["pydantic", "a_distribution_that_nobody_has"])
    assert found["a_distribution_that_nobody_has"] is None
    assert found["pydantic"].startswith("2.")


# --- launch ---------------------------------------------------------------------------------------
def findings(plan, state, *words):
    return list(abi_findings(plan("recipe=qwen3_5_27b_a2", *words).plan, load_registry(), state))


def test_another_stack_stops_heavy_operations_on_npus(plan):
    (finding,) = findings(plan, states(vllm_ascend="0.23.0.post1"))
    assert finding.id == "operation.abi"
    assert "recurrent_gated_delta_rule" in finding.message
    assert "causal_conv1d" not in finding.message
    assert "torch 2.10.0 is wanted, 2.13.0+cpu is installed" in finding.message
    assert "allow_reference=[recurrent_gated_delta_rule]" in finding.fix
    assert "torch==2.10.0" in finding.why


def test_an_absent_library_stops_every_operation_that_calls_it(plan):
    (finding,) = findings(plan, states())
    assert "causal_conv1d, recurrent_gated_delta_rule" in finding.message


def test_a_missing_stack_is_not_excused_operation_by_operation(plan):
    found = {item.evidence: item for item in findings(plan, states(torch_npu=None))}
    blocker = found["registry/providers/torch_npu.yaml"]
    assert blocker.fix == ""
    assert blocker.why == "it fits an environment with torch==2.13.0, torch_npu==2.13.0"


def test_the_remedy_of_an_abi_finding_helps(plan):
    words = "allow_reference=[causal_conv1d,recurrent_gated_delta_rule]"
    assert findings(plan, states(), words) == []
    bound = plan("recipe=qwen3_5_27b_a2", words).plan.operations
    assert bound["recurrent_gated_delta_rule"] == "torch.recurrent_gated_delta_rule"
    assert bound["chunk_gated_delta_rule"] == "torch_npu.npu_chunk_gated_delta_rule"


def test_emulated_devices_ask_for_no_abi(plan):
    assert findings(plan, states(), "device=emulated", "scale=tiny") == []


# --- the page -------------------------------------------------------------------------------------
def test_operations_page_is_current(request):
    text = operations_page(load_registry())
    path = data_root() / "docs" / "operations.md"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "run pytest --update-golden on this file"


# --- expressions ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "value"), [("2*I", 6), ("R+1", 3), ("max(1, I / 6)", 1), ("-(I - R) // 1", -1), (7, 7)]
)
def test_expressions(text, value):
    assert evaluate(text, {"I": 3, "R": 2}) == value


@pytest.mark.parametrize(
    "text",
    ["I.real", "__import__('os')", "I[0]", "I ** I", "True", "'I'", "open(I)", "(", "I/0", "X"],
)
def test_expressions_are_arithmetic_only(text):
    with pytest.raises(ValueError, match=r".+"):
        evaluate(text, {"I": 3})


def test_names_in_leaves_functions_out():
    assert names_in("max(1, N / tp) * D") == {"N", "tp", "D"}


# --- the command and the launch -------------------------------------------------------------------
def test_command_lists_all_operations_without_a_recipe(capsys):
    assert main(["ops"]) == 0
    text = capsys.readouterr().out
    assert "paged_attention" in text
    assert "operation " in text.splitlines()[0]
    assert "cann_custom" in text


def test_command_answers_in_json_for_a_recipe(capsys, plan):
    assert main(["ops", "--json", "recipe=qwen3_5_27b_a2"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["operation"]: row for row in document["operations"]}
    assert {name: row["binding"] for name, row in rows.items()} == dict(
        plan("recipe=qwen3_5_27b_a2").plan.operations
    )
    assert rows["l2_norm"]["falls_back"]
    assert rows["swiglu"]["prefill"]["bytes"] > 0
    assert {item["id"] for item in document["blockers"]} == {"operation.abi"}
    assert {state["provider"] for state in document["providers"]} == set(load_registry().providers)


def test_command_shows_costs_and_blockers(capsys):
    assert main(["ops", "recipe=qwen3_5_27b_a2"]) == 0
    text = capsys.readouterr().out
    assert "GB" in text
    assert "operation.abi" in text


def test_command_refuses_sweeps_and_unknown_recipes(capsys):
    assert main(["ops", "-m", "recipe=qwen3_5_27b_a2"]) == 2
    assert main(["ops", "recipe=nobody"]) == 2


def test_launch_on_npus_stops_at_another_stack(plan, monkeypatch):
    planned = plan("recipe=qwen3_5_27b_a2")
    here = {"torch": "2.13.0", "torch_npu": "2.13.0", "vllm": planned.plan.runtime.vllm}
    for module in (preflight, operations_table):
        monkeypatch.setattr(module, "version", here.__getitem__)
        monkeypatch.setattr(module, "PackageNotFoundError", KeyError)
    with pytest.raises(RecipeError) as caught:
        preflight.check_machine(planned.plan, serving=False)
    found = {item.id: item for item in caught.value.findings}
    assert "recurrent_gated_delta_rule" in found["operation.abi"].message
    # Without torch_npu that alone is said, not what follows from it.
    del here["torch_npu"]
    with pytest.raises(RecipeError) as caught:
        preflight.check_machine(planned.plan, serving=False)
    assert "operation.abi" not in {item.id for item in caught.value.findings}
