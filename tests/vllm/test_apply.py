"""Apply refuses what the registry does not have, and does its work once."""

import json
import os
import subprocess
import sys

import pytest

from ascend_recipes import apply, plugin
from ascend_recipes.errors import RecipeError
from ascend_recipes.paths import PLAN_VARIABLE
from ascend_recipes.receipts import load_receipts
from ascend_recipes.registry.load import load_registry

TWICE = """
import json, sys
from ascend_recipes.apply import apply_plan, current_plan
from ascend_recipes.errors import RecipeError
from vllm.model_executor.custom_op import op_registry_oot

plan = current_plan()
first = apply_plan(plan, sys.argv[1])
replaced = dict(op_registry_oot)
second = apply_plan(plan, sys.argv[1])
assert first is second and replaced == op_registry_oot
try:
    apply_plan(plan.model_copy(update={"recipe": "another"}).with_digest(), sys.argv[1])
except RecipeError as error:
    print(json.dumps([error.findings[0].id, sorted(replaced)]))
"""


@pytest.fixture
def tiny(plan, tmp_path, monkeypatch):
    made = plan("device=emulated", "scale=tiny").plan
    (tmp_path / "plan.json").write_text(made.to_json(), encoding="utf-8")
    monkeypatch.setenv(PLAN_VARIABLE, str(tmp_path / "plan.json"))
    return made


@pytest.mark.parametrize("field", ["hooks", "platform"])
def test_an_unknown_key_is_refused(tiny, field):
    value = (*tiny.hooks, "layer_of_somebody_else") if field == "hooks" else "platform_of_another"
    with pytest.raises(RecipeError) as caught:
        apply.apply_plan(tiny.model_copy(update={field: value}).with_digest(), "worker")
    assert caught.value.findings[0].id == "registry.unknown_key"


def test_a_platform_that_is_not_installed_is_refused(tiny):
    elsewhere = tiny.model_copy(update={"platform": "kernel_slot_mapping"}).with_digest()
    with pytest.raises(RecipeError) as caught:
        apply.apply_plan(elsewhere, "core")
    assert caught.value.findings[0].id == "apply.platform"


def test_the_plugin_is_inert_without_a_plan(monkeypatch):
    monkeypatch.delenv(PLAN_VARIABLE, raising=False)
    assert plugin.platform() is None
    plugin.apply()


def test_the_plugin_names_one_class_for_every_plan(monkeypatch):
    monkeypatch.setenv(PLAN_VARIABLE, "/nowhere/plan.json")
    row = load_registry().hooks["platform_ascend"]
    assert plugin.platform() == row.implementation.replace(":", ".")


@pytest.mark.parametrize(
    ("process", "phase"),
    [
        ("MainProcess", "frontend"),
        ("EngineCore", "core"),
        ("EngineCore_DP1", "core"),
        ("VllmWorker-3", "worker"),
    ],
)
def test_the_phase_follows_from_the_process(monkeypatch, process, phase):
    monkeypatch.setattr("multiprocessing.current_process", lambda: type("P", (), {"name": process}))
    assert plugin.process_phase() == phase


@pytest.mark.vllm
@pytest.mark.parametrize("phase", ["worker", "inspect"])
def test_a_process_applies_one_plan_once(tiny, tmp_path, phase):
    done = subprocess.run(
        [sys.executable, "-c", TWICE, phase],
        env={**os.environ, **tiny.env},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    refused, replaced = json.loads(done.stdout.splitlines()[-1])
    assert refused == "apply.second_plan"
    (receipt,) = load_receipts(tmp_path)
    assert receipt.phase == phase
    if phase == "inspect":
        assert replaced == []
        assert receipt.hooks == ()
        return
    assert set(receipt.hooks) == set(tiny.hooks)
    assert receipt.bindings == tiny.operations
    targets = {load_registry().hooks[key].target.split(":")[-1] for key in tiny.hooks}
    assert set(replaced) <= targets
    assert replaced
