"""Every documented deployment has a recipe or a reason, and every difference a reason."""

import pytest

from ascend_recipes.commands.deployments import deviations
from ascend_recipes.compose import recipe_names
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.rows import Deployment

ROWS = [
    (f"{key}/{item.id}", item)
    for key in load_registry().deployments
    for item in load_registry().deployments[key].deployments
]
SERVED = [(name, item) for name, item in ROWS if item.recipe]
NAMES = {entry.name for entry in recipe_names()}
OWN = {
    *("qwen3_5_27b_a2", "qwen3_8_27b_fp8_a5", "deepseek_v4_a5", "deepseek_v4_pro_a5_2n"),
    *("deepseek_v4_a5_dspark", "deepseek_v4_pro_a5_2n_dspark"),
}
"""Recipes that no launch table holds: the walking skeleton's, one with measurements only, and
those of weights that A5 is said to serve without a command."""


@pytest.mark.parametrize("deployment", [item for _, item in ROWS], ids=[name for name, _ in ROWS])
def test_deployment_has_a_recipe_with_numbers_or_a_reason(deployment: Deployment):
    assert bool(deployment.recipe) != bool(deployment.reason)
    assert bool(deployment.recipe) == bool(deployment.roles)


@pytest.mark.parametrize(
    "deployment", [item for _, item in SERVED], ids=[name for name, _ in SERVED]
)
def test_recipe_has_the_documented_values_or_says_why_not(deployment: Deployment, plan):
    planned = plan(f"recipe={deployment.recipe}", *deployment.overrides)
    assert planned.findings == ()
    found = {item.key for item in deviations(deployment, planned.resolved.recipe)}
    assert found == set(deployment.differs)


def test_every_recipe_serves_a_documented_deployment():
    assert NAMES - {item.recipe for _, item in ROWS} == OWN


def test_there_are_enough_recipes():
    assert len(NAMES) >= 30


def test_ids_are_unique():
    names = [name for name, _ in ROWS]
    assert len(names) == len(set(names))


def test_the_comparison_can_fail(plan):
    deployment = Deployment.model_validate_json(
        '{"id": "x", "where": "here", "weights": "bf16", "recipe": "deepseek_v4_a3",'
        ' "roles": {"serve": {"dp": 3, "tp": 4, "draft": "mtp2", "buffer": 1}}}'
    )
    recipe = plan("recipe=deepseek_v4_a3").resolved.recipe
    found = {item.key for item in deviations(deployment, recipe)}
    assert found == {"weights", "serve.dp", "serve.draft", "serve.buffer"}
