"""What works is not called wrong: shipped recipes and documented deployments."""

import pytest

from ascend_recipes.compose import compose_recipe, recipe_names
from ascend_recipes.errors import Severity
from ascend_recipes.paths import data_root
from ascend_recipes.registry.load import load_registry
from tests.rules.configurations import Configuration, errors_of, judge

RECIPES = [entry.name for entry in recipe_names()]
DEPLOYMENTS = [
    (deployment.recipe, *deployment.overrides)
    for row in load_registry().deployments.values()
    for deployment in row.deployments
    if deployment.recipe is not None
]
MOST_REASONS = 10


def findings_of(*words: str):
    return judge(Configuration(words=words))


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipe_is_clean(name):
    said = [item for item in findings_of(f"recipe={name}") if not launch_only(item.id)]
    assert [(item.id, item.at) for item in said] == []


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipe_has_no_errors_under_the_other_runtime(name):
    assert errors_of(findings_of(f"recipe={name}", "runtime=vllm_ascend")) == set()


@pytest.mark.parametrize("words", sorted(set(DEPLOYMENTS)), ids=" ".join)
def test_documented_deployment_has_no_errors(words):
    name, *overrides = words
    assert errors_of(findings_of(f"recipe={name}", *overrides, "runtime=vllm_ascend")) == set()


def test_few_warnings_are_silenced():
    trees = [compose_recipe([f"recipe={name}"]).tree for name in RECIPES]
    reasons = [reason for tree in trees for reason in tree.get("because") or ()]
    assert 0 < len(reasons) <= MOST_REASONS
    assert all(reason["source"] and reason["reason"] for reason in reasons)
    readme = (data_root() / "README.md").read_text(encoding="utf-8")
    assert f"\n{len(reasons)} warnings are silenced" in readme


LIMITED = [
    (name, reason["finding"], reason["runtime"])
    for name in RECIPES
    for reason in compose_recipe([f"recipe={name}"]).tree.get("because") or ()
    if "runtime" in reason
]


@pytest.mark.parametrize(("name", "id", "runtime"), LIMITED)
def test_a_reason_for_one_runtime_silences_a_warning_there(name, id, runtime):
    words = (f"recipe={name}", f"runtime={runtime}")
    assert id not in {item.id for item in findings_of(*words)}
    assert id in {item.id for item in findings_of(*words, "because=[]")}


def test_a_refused_recipe_would_be_noticed():
    found = findings_of(f"recipe={RECIPES[0]}", "parallel.tp=7", "runtime=vllm_ascend")
    assert "parallel.heads_not_divisible" in errors_of(found)
    assert all(item.severity is Severity.ERROR for item in found if item.at == "parallel.tp")


def launch_only(id: str) -> bool:
    """Whether a finding stops only the launch on this machine."""
    return id.startswith(("runtime.", "site."))
