"""What is rendered is what the runtime version takes: the surface tables are the judge."""

import pytest

from ascend_recipes.compose import recipe_names
from ascend_recipes.errors import RecipeError, Severity
from ascend_recipes.registry.load import load_registry
from ascend_recipes.surface import load_surface
from tests.conftest import plan_of
from tests.rendering.atoms import atoms

VERSIONS = load_registry().runtimes["vllm_ascend"].versions
NAMES = [entry.name for entry in recipe_names()]
ADDITIONAL = "--additional-config."


def refused(version: str, found: dict[str, object]) -> list[str]:
    """Targets that the version does not take, or takes with a complaint."""
    surface = load_surface(version)
    wrong = []
    for target in found:
        if target.startswith("$"):
            verdict = surface.judge_variable(target[1:])
        elif target.startswith(ADDITIONAL):
            verdict = surface.judge_key(target.removeprefix(ADDITIONAL))
        elif target.startswith("--"):
            verdict = surface.judge_flag(target.partition(".")[0])
        else:
            continue
        if verdict is not None and verdict.severity is not Severity.INFO:
            wrong.append(f"{target}: {verdict.id}")
    return wrong


DRAFTERS_LACK = {
    "0.23.0": {"version.drafter"},
    "0.26.0rc1": {"version.drafter_hardware"},
    "main-2026-08": set(),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_rendered_argument_is_taken(version: str):
    lacking = set()
    for name in NAMES:
        words = (f"recipe={name}", "runtime=vllm_ascend", f"runtime.version={version}")
        try:
            planned = plan_of(*words)
        except RecipeError as error:
            # A release that has no such drafter is refused by name.
            lacking |= {i.id for i in error.findings if i.severity is Severity.ERROR}
            assert "dspark" in name
            continue
        for command in {item.role: item for item in planned.commands}.values():
            assert refused(version, atoms(command.argv, command.env)) == [], name
    assert lacking == DRAFTERS_LACK[version]


@pytest.mark.parametrize("version", VERSIONS)
def test_arguments_of_a_shared_replica_are_taken(version: str):
    words = ("recipe=qwen3_5_27b_w8a8_a2", "nodes=2", "parallel.tp=4", "parallel.pp=4")
    launched = plan_of(*words, "runtime=vllm_ascend", f"runtime.version={version}")
    for command in launched.commands:
        found = atoms(command.argv, command.env)
        assert "--nnodes" in found
        assert refused(version, found) == []


@pytest.mark.parametrize(
    "planted", ["--no-such-flag", f"{ADDITIONAL}fuse_muls_add", "$VLLM_ASCEND_NO_SUCH"]
)
def test_the_judge_can_refuse(planted: str):
    assert refused(VERSIONS[-1], {planted: True}) != []
