"""A plan lists the patch rows that it needs, with the reason, and no others."""

import json
from dataclasses import replace

import pytest
import yaml

from ascend_recipes.compose import compose_recipe
from ascend_recipes.patching.select import PlanFacts, needed_patches
from ascend_recipes.plan import plan_launch
from ascend_recipes.registry.load import Table, load_registry
from ascend_recipes.resolve import resolve_recipe
from ascend_recipes.schema.patch import PatchRow
from ascend_recipes.validate import validate_recipe

FACTS = PlanFacts(
    traits=frozenset({"moe", "mrope"}),
    backends=frozenset({"dsa"}),
    hardware="a3",
    drafter="mtp",
    roles=frozenset({"prefill", "decode"}),
)


def row_values(**needs):
    return {
        "target": "vllm.v1.outputs:ModelRunnerOutput",
        "action": "replace",
        "implementation": "ascend_recipes.errors:Finding",
        "phases": ["worker"],
        "versions": ">=0.32,<0.33",
        "fingerprints": {"0.32.0": {"body": "0" * 12}},
        "because": "toy",
        "upstream": "none: toy",
        "remove_when": {"version_at_least": "0.33"},
        "test": "tests/patching",
        "needs": needs,
    }


def row(**needs):
    return PatchRow.model_validate_json(json.dumps(row_values(**needs)))


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ({"traits": ["moe"]}, "traits moe: toy"),
        ({"traits": ["moe", "mrope"]}, "traits moe, mrope: toy"),
        ({"traits": ["moe", "vision"]}, ""),
        ({"backends": ["dsa", "other"]}, "backend dsa, other: toy"),
        ({"backends": ["other"]}, ""),
        ({"hardware": ["a2", "a3"]}, "hardware a2, a3: toy"),
        ({"hardware": ["a5"]}, ""),
        ({"drafters": ["mtp"], "roles": ["decode"]}, "drafter mtp; role decode: toy"),
        ({"drafters": ["mtp"], "roles": ["serve"]}, ""),
    ],
)
def test_row_is_needed_for_what_the_plan_has(needs, reason):
    assert needed_patches({"row": row(**needs)}, FACTS).get("row", "") == reason


@pytest.fixture
def registry(tmp_path):
    files = {}
    for name, needs in {
        "for_delta_nets": {"traits": ["gated_delta_net"]},
        "for_hyper_connections": {"traits": ["hyper_connections"]},
        "for_a3": {"hardware": ["a3"]},
    }.items():
        files[name] = tmp_path / f"{name}.yaml"
        files[name].write_text(yaml.safe_dump(row_values(**needs)))
    return replace(load_registry(), patches=Table("patches", PatchRow, files))


@pytest.mark.parametrize(
    ("recipe", "patches"),
    [
        ("qwen3_5_27b_a2", ("for_delta_nets",)),
        ("deepseek_v4_a3", ("for_a3", "for_hyper_connections")),
    ],
)
def test_qwen_plan_carries_no_deepseek_row(registry, recipe, patches):
    composition = compose_recipe([f"recipe={recipe}"])
    resolved = resolve_recipe(validate_recipe(composition), registry, composition.source)
    planned = plan_launch(resolved)
    assert planned.plan.patches == patches
    for key in patches:
        reason = planned.reasons[f"patches.{key}"]
        assert key in reason.source
        assert ": toy" in reason.because


def test_no_recipe_needs_a_patch_now(plan):
    assert plan("recipe=qwen3_5_27b_a2").plan.patches == ()
