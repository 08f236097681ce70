"""What is offered beside a machine is tried on that machine, with everything that it brings."""

import json

import pytest
import yaml

from ascend_recipes.cli.main import main


@pytest.fixture
def judged(tmp_path, capsys):
    def judge(installed, *words):
        file = tmp_path / "machine.yaml"
        file.write_text(yaml.safe_dump(installed))
        main(["check", *words, "runtime=vllm_ascend", "--installed", str(file), "--json"])
        found = json.loads(capsys.readouterr().out)["findings"]
        return {item["id"]: item.get("fix", "") for item in found}

    return judge


@pytest.mark.parametrize(
    ("recipe", "installed", "id", "fix"),
    [
        # Another generation has fewer dies a node: its nodes are typed with it.
        (
            "deepseek_v4_a3_pd",
            {"soc": "910b3"},
            "image.machine",
            "hardware=a2 roles.decode.nodes=2 roles.prefill.nodes=2",
        ),
        # No preset spreads the replicas of one node over smaller ones: nothing is offered.
        ("deepseek_v4_a3", {"soc": "910b3"}, "image.machine", ""),
        # The release on the machine does not draft so.
        ("deepseek_v4_a2_dspark", {"vllm_ascend": "0.23.0"}, "version.installed", ""),
        (
            "glm_5_1_w4a4_mxfp4_a5_4n_pd",
            {"vllm_ascend": "0.22.1rc1"},
            "version.window",
            "roles.decode.parallel.tp=8 roles.decode.parallel.dp=2 "
            "roles.decode.parallel.lm_head_tp=0",
        ),
    ],
)
def test_a_fix_holds_on_the_machine_or_is_not_offered(judged, recipe, installed, id, fix):
    found = judged(installed, f"recipe={recipe}")
    assert found[id] == fix
    if fix:
        assert id not in judged(installed, f"recipe={recipe}", *fix.split())
