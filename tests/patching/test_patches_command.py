"""`ascend-run patches`, as a user calls it."""

import json
import re
import subprocess
import sys
import time

import pytest

from ascend_recipes.cli.main import main
from ascend_recipes.patching.sources import installed_sources
from tests.boundaries.source_tree import ROOT


@pytest.fixture
def call(capsys):
    def run(*words):
        code = main(["patches", *words])
        return code, capsys.readouterr().out

    return run


@pytest.fixture
def document(call):
    def run(*words):
        code, out = call(*words, "--json")
        tree = json.loads(out)
        assert tree["exit_code"] == code
        return code, tree

    return run


TIMED = """
import json, sys, time
from ascend_recipes.cli.main import main
code = main({words!r})
print("cpu", time.process_time(), sorted({{"vllm", "torch", "transformers"}} & set(sys.modules)))
"""


@pytest.mark.parametrize("words", [(), ("--vllm", "0.33.0"), ("--targets", "vllm-ascend")])
def test_check_takes_less_than_two_seconds_and_imports_no_vllm(words):
    script = TIMED.format(words=["patches", "check", *words])
    spent = []
    # The quickest of three: the machine may be busy.
    while len(spent) < 3 and min(spent, default=2.0) >= 2.0:
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
        )
        match = re.search(r"cpu ([\d.]+) (\[.*\])", done.stdout)
        assert match[2] == "[]"
        spent.append(float(match[1]))
    print(f"patches check {' '.join(words)}: {min(spent):.2f} s of CPU time")
    assert min(spent) < 2.0


def test_check_reports_every_kind(document):
    code, tree = document("check")
    assert code == 0
    assert {line["kind"] for line in tree["lines"]} >= {"hook", "class", "import"}
    classes = [line for line in tree["lines"] if line["kind"] == "class"]
    assert all({"overridden", "without_super"} <= set(line) for line in classes)


def test_check_reads_a_folder_and_fails_on_a_break(document, call, tmp_path):
    sources = installed_sources("vllm")
    for path in sources.paths():
        text = sources.read(path)
        if path == "model_executor/layers/activation.py":
            text = text.replace("class SiluAndMul(", "class SiluMul(")
        file = tmp_path / "vllm" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "PKG-INFO").write_text("Name: vllm\nVersion: 0.32.0.dev1\n")
    started = time.monotonic()
    code, tree = document("check", "--vllm", str(tmp_path))
    print(f"folder: {time.monotonic() - started:.2f} s")
    assert code == 3
    assert tree["vllm"] == "0.32.0.dev1"
    assert "upgrade.hook_missing" in {item["id"] for item in tree["findings"]}
    _, text = call("check", "--vllm", str(tmp_path))
    assert "layer_silu_and_mul" in text


def test_recorded_version_shows_what_0_33_changes(document):
    code, tree = document("diff", "0.32.0", "0.33.0")
    assert code == 0
    assert tree["changes"]["vllm.v1.worker.gpu_worker:Worker.init_device"] == "body"


def test_radar_over_the_targets_of_vllm_ascend(document, call):
    code, tree = document("check", "--targets", "vllm-ascend", "--vllm", "0.33.0")
    assert code == 3
    assert len(tree["targets"]) == 128
    assert "gone" in tree["targets"].values()
    _, text = call("check", "--targets", "vllm-ascend", "--vllm", "0.33.0")
    assert "platform/patch_kv_cache_utils.py" in text
    _, tree = document("diff", "0.27.1", "0.28.0", "--targets", "vllm-ascend")
    assert tree["changes"]["vllm.v1.engine.core:EngineCoreProc.run_engine_core"] == "body"


def test_list_of_a_recipe_has_only_what_it_needs(document, call):
    _, everything = document("list")
    _, planned = document("list", "recipe=qwen3_5_27b_a2")
    keys = {row["key"] for row in planned["rows"]}
    assert "layer_qwen_gated_delta_net" in keys
    assert keys <= {row["key"] for row in everything["rows"]}
    assert all(row["because"] for row in planned["rows"])
    assert "0 patch rows" in call("list")[1]


@pytest.mark.parametrize(
    "key", ["layer_rms_norm", "kernel_state_copy", "vllm.v1.worker.utils:bind_kv_cache"]
)
def test_show_tells_the_history_of_a_target(document, call, key):
    _, tree = document("show", key)
    assert list(tree["versions"])[-1] == "0.33.0"
    assert tree["versions"]["0.27.1"] == "same"
    assert key in call("show", key)[1]


@pytest.mark.parametrize(
    ("words", "code", "id", "fix"),
    [
        (("checks",), 2, "patches.unknown_action", "ascend-run patches check"),
        (("show",), 2, "patches.arguments", "ascend-run patches show KEY"),
        (("diff", "0.32.0"), 2, "patches.arguments", "OLD NEW"),
        (("show", "layer_rms"), 2, "patches.unknown_row", ""),
        (("check", "--vllm", "nowhere"), 4, "patches.no_sources", "REPOSITORY@REVISION"),
        (("check", "--targets", "theirs"), 2, "usage.bad_value", "vllm-ascend"),
        (("list", "-m"), 2, "usage.multirun", ""),
    ],
)
def test_bad_words_are_explained(document, words, code, id, fix):
    found, tree = document(*words)
    (finding,) = tree["findings"]
    assert (found, finding["id"]) == (code, id)
    assert fix in finding.get("fix", "")


@pytest.mark.parametrize("action", ["record", "docs"])
def test_writing_needs_a_checkout(document, monkeypatch, tmp_path, action):
    from ascend_recipes import paths

    monkeypatch.setattr(paths, "data_root", lambda: tmp_path)
    code, tree = document(action)
    assert (code, tree["findings"][0]["id"]) == (4, "patches.no_checkout")
    assert list(tmp_path.iterdir()) == []
