"""Golden exports: what changes in them is read in review as a diff."""

import json
import re
from pathlib import Path

import pytest
import yaml

from ascend_recipes import __version__
from tests.conftest import plan_of
from tests.export.deployments import (
    DISAGGREGATED,
    ONE_NODE,
    TARGETS,
    TWO_NODES,
    planned,
    texts,
)

FOLDER = Path(__file__).parent / "exports"
RECIPES = (ONE_NODE, TWO_NODES, DISAGGREGATED)
VERSIONS = ("0.23.0", "0.26.0rc1", "main-2026-08")
COMMANDS = (
    "deepseek_v4_a2",
    "deepseek_v4_a3",
    "deepseek_v4_pro_a3_2n",
    "glm_5_1_w4a4_mxfp4_a5",
    "glm_5_2_w4a8_a3",
    "glm_5_2_w4a8_a3_4n_pd_1m",
    "glm_5_w8a8_a3_2n",
    "kimi_k3_w4a8_a3_4n",
    "qwen3_5_27b_w8a8_310p",
    "qwen3_5_397b_a17b_w8a8_a3_2n_pd",
    "qwen3_6_35b_a3b_w8a8_a2",
    "qwen3_8_27b_w8a8_mxfp8_a5",
)
"""Recipes of every family, generation and drafter, of one machine and of several."""


def compared(path: Path, text: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "review, then pytest --update-golden"


def without_marks(text: str, digest: str) -> str:
    """What every other change changes too is left out."""
    return text.replace(digest, "DIGEST").replace(f"ascend_recipes {__version__}", "ascend_recipes")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("target", TARGETS)
def test_export_matches_golden(recipe, target, request):
    digest = planned(recipe).plan.digest
    for name, text in texts(recipe, target).items():
        if is_golden(target, name):
            shown = without_marks(own_part(text) if target == "k8s" else text, digest)
            if target == "argv":
                shown = re.sub(rf'"version": "{__version__}"', '"version": "…"', shown)
            compared(FOLDER / recipe / target / name, shown, request)


def is_golden(target: str, name: str) -> bool:
    """Modules of the router are sources of ours; scripts for Compose are those for shells."""
    return "/" not in name and not (target == "compose" and name.endswith(".sh"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_scripts_for_compose_are_those_for_shells(recipe):
    shell = texts(recipe, "shell")
    found = {name: text for name, text in texts(recipe, "compose").items() if ".sh" in name}
    assert found == {name: shell[name] for name in found}
    assert found


def own_part(text: str) -> str:
    """Manifests without the modules of the router that they bring along."""
    head, *documents = text.split("---\n")
    kept = [
        re.sub(r"(?ms)^  router-ascend_recipes-[^\n]*\n(?:    [^\n]*\n|\n)*", "", item)
        for item in documents
    ]
    return "---\n".join([head, *kept])


def test_left_out_parts_are_the_routers_alone():
    text = texts(DISAGGREGATED, "k8s")["manifests.yaml"]
    whole, kept = (list(yaml.safe_load_all(item)) for item in (text, own_part(text)))
    for before, after in zip(whole, kept, strict=True):
        data = before.get("data", {})
        for key in [key for key in data if key.startswith("router-")]:
            del data[key]
        assert before == after


@pytest.mark.parametrize("recipe", COMMANDS)
def test_commands_match_golden(recipe, request):
    """The first command of each role, for every version, one argument a line."""
    lines = []
    for version in VERSIONS:
        plan = plan_of(f"recipe={recipe}", "runtime=vllm_ascend", f"runtime.version={version}")
        first = {item.role: item for item in reversed(plan.commands)}
        for role, command in reversed(first.items()):
            lines += [f"== {version} {role}"]
            lines += [f"{name}={text}" for name, text in sorted(command.env.items())]
            lines += list(flags(command.argv))
    compared(FOLDER / "commands" / f"{recipe}.txt", "\n".join(lines) + "\n", request)


def flags(argv):
    groups = [[]]
    for word in argv:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(json.dumps(json.loads(word)) if word.startswith("{") else word)
    return (" ".join(group) for group in groups)


def test_no_golden_file_is_left_over():
    folders = {path.name for path in FOLDER.iterdir()}
    assert folders == {*RECIPES, "commands"}
    assert {path.stem for path in (FOLDER / "commands").iterdir()} == set(COMMANDS)
    for recipe in RECIPES:
        found = {path.relative_to(FOLDER / recipe) for path in (FOLDER / recipe).rglob("*.*")}
        wanted = {
            Path(target, name)
            for target in TARGETS
            for name in texts(recipe, target)
            if is_golden(target, name)
        }
        assert found == wanted


def test_golden_exports_name_no_machine():
    for path in FOLDER.rglob("*.*"):
        text = path.read_text(encoding="utf-8")
        assert str(Path.home()) not in text, path
        assert str(FOLDER.parents[2]) not in text, path
