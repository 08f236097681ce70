"""`ascend-run doctor` as people and programs meet it."""

import json

import pytest

from ascend_recipes.cli.main import main
from ascend_recipes.doctor import host as host_module
from tests.doctor.rig import machine


@pytest.fixture
def on(monkeypatch, tmp_path):
    """Makes the command run on a recorded machine."""

    def place(**change):
        recorded = machine(tmp_path, **change)
        monkeypatch.setattr(host_module, "Host", lambda: recorded)

    return place


def test_a_good_machine_ends_well(on, capsys):
    on()
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "16 x Ascend910" in out
    assert "error" not in out


def test_a_lack_of_the_machine_ends_with_four(on, capsys):
    on(environ={"ASCEND_HOME_PATH": None})
    assert main(["doctor"]) == 4
    out = capsys.readouterr().out
    assert "source /usr/local/Ascend/ascend-toolkit/set_env.sh" in out
    assert "doctor.cann_not_sourced" in out


def test_warnings_fail_where_that_is_asked_for(on):
    on(limits={"nofile": 1024})
    assert main(["doctor"]) == 0
    assert main(["doctor", "--strict"]) == 4


def test_the_document_names_every_check(on, capsys):
    on(smi="a2")
    assert main(["doctor", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["command"] == "doctor"
    checks = {item["id"]: item for item in body["checks"]}
    assert checks["npus"] == {
        "id": "npus",
        "state": "ok",
        "value": "8 x 910B3 (npu-smi 24.1.rc3)",
        "findings": [],
    }
    assert checks["npu_memory"]["state"] == "warning"
    assert "python3 (692318)" in checks["npu_memory"]["findings"][0]["message"]
    assert checks["recipe"]["state"] == "not here"


def test_chinese_has_its_own_words(on, capsys):
    on(environ={"ASCEND_HOME_PATH": None})
    assert main(["doctor", "--lang", "zh"]) == 4
    out = capsys.readouterr().out
    assert all(word in out for word in ("检查项", "NPU 健康状态", "错误", "没有 source"))


def test_a_recipe_that_the_rules_refuse_is_told_beside_the_machine(on, capsys):
    on()
    assert main(["doctor", "recipe=deepseek_v4_a3", "parallel.tp=3", "--json"]) == 3
    checks = {item["id"]: item for item in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["npus"]["state"] == "ok"
    assert checks["refused"]["state"] == "error"
    assert checks["refused"]["findings"]


def test_a_recipe_that_does_not_exist_is_a_mistyped_word(on):
    on()
    assert main(["doctor", "recipe=nope"]) == 2


def test_only_other_weights_than_the_recipes_are_a_mistake(on, tmp_path, capsys):
    on()
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "config.json").write_text('{"architectures": ["Other"]}')
    (weights / "quant_model_description.json").write_text('{"model_quant_type": "W8A8_DYNAMIC"}')
    words = ["recipe=deepseek_v4_a3", "runtime=vllm_ascend", f"checkpoint.path={weights}"]
    assert main(["doctor", *words]) == 3
    assert "checkpoint.architecture" in capsys.readouterr().out


def test_a_site_alone(on, tmp_path, capsys, monkeypatch):
    on()
    site = tmp_path / "site"
    site.mkdir()
    (site / "lab.yaml").write_text("network_interface: eth7\nnode_addresses: [10.0.0.1]\n")
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "site=lab"]) == 4
    assert "eth7" in capsys.readouterr().out


def test_this_machine_can_be_looked_at(capsys):
    """Whatever it has: every line is there, and no check fails to be made."""
    main(["doctor", "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert len(checks) > 20
    assert "doctor.probe_failed" not in {
        item["id"] for check in checks for item in check["findings"]
    }
