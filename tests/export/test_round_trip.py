"""What lint and import read in an export is what rendering said."""

import json
from collections.abc import Iterator

import pytest
import yaml

from ascend_recipes.cli.main import main
from ascend_recipes.lint import ServeCommand, find_commands
from ascend_recipes.rendering.command import RenderedCommand
from tests.export.deployments import (
    DISAGGREGATED,
    MANY_RANKS,
    ONE_NODE,
    SITED,
    TWO_NODES,
    VERSION,
    exported,
    planned,
    texts,
)

RECIPES = (ONE_NODE, TWO_NODES, DISAGGREGATED, MANY_RANKS)
_SCRIPTS_OWN = {"LD_LIBRARY_PATH"}
_ADDRESSES = ("--data-parallel-address", "--master-addr")


def read(recipe: str, target: str, folder) -> list[ServeCommand]:
    """Commands of the files, in their order."""
    found = []
    for name, text in texts(recipe, target).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name != "start.sh":
            found += find_commands(path)
    return found


def env_of(command: ServeCommand) -> dict[str, str]:
    return {name: word.text for name, word in command.env.items() if name not in _SCRIPTS_OWN}


@pytest.mark.parametrize("recipe", RECIPES)
def test_scripts_hold_the_rendered_commands(recipe, tmp_path):
    rendered = planned(recipe).commands
    found = read(recipe, "shell", tmp_path)
    assert [item.texts for item in found] == [item.argv for item in rendered]
    assert [env_of(item) for item in found] == [dict(item.env) for item in rendered]
    assert not any(item.findings or item.unresolved for item in found)


@pytest.mark.parametrize("recipe", RECIPES)
def test_argv_holds_the_rendered_commands(recipe):
    head, *lines = map(json.loads, texts(recipe, "argv")["argv.jsonl"].splitlines())
    servers = [line for line in lines if line["role"] != "router"]
    rendered = planned(recipe).commands
    assert [(item["argv"], item["env"]) for item in servers] == [
        (list(item.argv), item.env) for item in rendered
    ]
    assert head["digest"] == planned(recipe).plan.digest
    assert len(lines) - len(servers) == (recipe in (DISAGGREGATED, MANY_RANKS))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("target", "own", "leader"),
    [
        ("slurm", "${addresses[%d]}", "${addresses[%d]}"),
        ("k8s", "${POD_IP}", "${LWS_LEADER_ADDRESS}"),
    ],
)
def test_addresses_are_all_that_differs(recipe, target, own, leader, tmp_path):
    rendered, found = planned(recipe).commands, read(recipe, target, tmp_path)
    assert len(found) == len(rendered)
    for before, after in zip(rendered, found, strict=True):
        assert dict(differences(before, after)).keys() <= {"--host", *_ADDRESSES, "HCCL_IF_IP"} | (
            {"ASCEND_RT_VISIBLE_DEVICES"} if target == "k8s" else set()
        )
        for flag, value in differences(before, after):
            if flag in _ADDRESSES and recipe != MANY_RANKS:
                node = 0
                assert value == (leader % node if "%" in leader else leader)
            elif flag in ("--host", "HCCL_IF_IP"):
                assert value == (own % before.node if "%" in own else own)


def differences(before: RenderedCommand, after: ServeCommand) -> Iterator[tuple[str, str]]:
    """Flag or variable, and what stands there instead."""
    assert len(before.argv) == len(after.texts)
    for index, (old, new) in enumerate(zip(before.argv, after.texts, strict=True)):
        if old != new:
            yield before.argv[index - 1], new
    env = env_of(after)
    assert env.keys() <= before.env.keys()
    for name, old in before.env.items():
        if env.get(name) != old:
            yield name, env.get(name, "")


def test_lint_has_nothing_against_an_export(tmp_path, capsys):
    for target in ("shell", "k8s", "slurm"):
        folder = tmp_path / target
        folder.mkdir()
        for item in exported(TWO_NODES, target).files:
            (folder / item.name).write_text(item.text)
        code = main(["lint", str(folder), "--runtime-version", VERSION, "--json"])
        tree = json.loads(capsys.readouterr().out)
        assert code == 0, tree["findings"]
        assert len(tree["commands"]) == 2


def test_import_makes_the_recipe_again(tmp_path, capsys):
    script = tmp_path / "node0-serve.sh"
    script.write_text(texts(ONE_NODE, "shell")[script.name])
    recipe = tmp_path / "recipe" / "again.yaml"
    words = ["import", str(script), "hardware=a2", f"runtime.version={VERSION}"]
    assert main([*words, "--output", str(recipe)]) == 0
    capsys.readouterr()
    site = [*SITED, "runtime=vllm_ascend", f"runtime.version={VERSION}"]
    command = ["export", "recipe=again", *site, "--config-dir", str(tmp_path), "--target", "argv"]
    assert main(command) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[1])
    (rendered,) = planned(ONE_NODE).commands
    assert flags(again["argv"]) == flags(rendered.argv)
    assert again["env"].items() >= rendered.env.items()


def flags(argv) -> dict[str, object]:
    """Values by flag; JSON compares as such."""
    found, name = {}, ""
    for word in argv[2:]:
        if word.startswith("--"):
            name = word
            found[name] = []
        else:
            found.setdefault(name, []).append(yaml.safe_load(word))
    return found
