"""The shipped pytest plugin, as a repository of recipes uses it: in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from ascend_recipes.cli.main import main

RECIPE = """\
# @package _global_
defaults:
  - override /attention: hybrid
  - override /cache: hybrid_prefix
  - override /parallel: tp4
about: ours
source: [our own wiki]
model: qwen3_5_27b
hardware: a2
scheduler: {max_model_len: 32768, max_num_seqs: 16, max_num_batched_tokens: 16384}
"""


SHORT = """\
# @package _global_
defaults: [deepseek_v4_a3]
about: cached prefixes are found in steps that no request reaches, which is a remark
scheduler: {max_model_len: 2048, max_num_batched_tokens: 512, max_num_seqs: 8}
graph: {capture_sizes: [2, 4, 8, 16]}
"""


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "deploy" / "recipe").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_own.py").write_text("def test_own():\n    assert True\n")
    return tmp_path


def add(repository, name, text=RECIPE):
    (repository / "deploy" / "recipe" / f"{name}.yaml").write_text(text)


def run(repository, *arguments, found_by_itself=False):
    """Outcome, and the last line's counts, of pytest in the repository.

    Plugins of others take most of its start; without them ours is named by its entry point.
    """
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    if not found_by_itself:
        command += ["-p", "ascend_recipes"]
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command += arguments
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, env=env)


def test_a_folder_of_recipes_becomes_tests_beside_the_own_ones(repository):
    add(repository, "ours_a2")
    done = run(repository, "tests", "--recipes", "deploy", "-v", found_by_itself=True)
    assert done.returncode == 0, done.stdout
    for stage in ("compose", "validate", "rules", "plan"):
        assert f"ours_a2.yaml::{stage} PASSED" in done.stdout
    assert "golden" not in done.stdout
    assert "5 passed" in done.stdout


def test_a_folder_inside_the_collected_one_is_tested_once(repository):
    add(repository, "ours_a2")
    done = run(repository, ".", "--recipes", "deploy")
    assert "5 passed" in done.stdout, done.stdout


def test_a_mistake_fails_one_stage_and_says_what_to_type(repository):
    add(repository, "broken", RECIPE.replace("tp4", "tp4\n").replace("about:", "about_:"))
    add(repository, "heads", RECIPE + "parallel: {tp: 7}\n")
    states = RECIPE.replace("max_num_batched_tokens: 16384", "max_num_batched_tokens: 512")
    add(repository, "states", states + "cache: {state_mode: none}\n")
    done = run(repository, "--recipes", "deploy", "deploy")
    assert done.returncode == 1
    assert "3 failed" in done.stdout
    # What a fix brings is fixed with it: it was tried.
    assert "cache.state_mode=align scheduler.max_num_batched_tokens=" in done.stdout
    assert "did you mean" in done.stdout or "about" in done.stdout
    assert "heads.yaml" in done.stdout
    assert "fix" in done.stdout
    assert "Traceback" not in done.stdout
    assert "During handling" not in done.stdout
    # heads: compose and validate hold, rules fails, plan has nothing to stand on.
    assert "5 passed" in done.stdout
    assert "skipped" in done.stdout


def test_plans_are_recorded_and_compared(repository):
    add(repository, "ours_a2")
    assert run(repository, "--recipes", "deploy", "deploy", "--update-plans").returncode == 0
    golden = repository / "deploy" / "golden" / "ours_a2.plan.json"
    assert json.loads(golden.read_text())["recipe"] == "ours_a2"
    assert run(repository, "--recipes", "deploy", "deploy").returncode == 0
    add(repository, "ours_a2", RECIPE.replace("max_num_seqs: 16", "max_num_seqs: 24"))
    changed = run(repository, "--recipes", "deploy", "deploy")
    assert changed.returncode == 1
    assert "max_num_seqs" in changed.stdout
    assert "1 failed" in changed.stdout


def test_a_recipe_without_a_recorded_plan_fails_where_plans_are_recorded(repository):
    add(repository, "ours_a2")
    run(repository, "--recipes", "deploy", "deploy", "--update-plans")
    add(repository, "second_a2")
    done = run(repository, "--recipes", "deploy", "deploy")
    assert "second_a2.plan.json: pytest --recipes deploy --update-plans" in done.stdout
    assert "1 failed" in done.stdout


def test_a_warning_fails_only_where_strictness_is_asked_for(repository):
    warned = RECIPE + "graph: {capture_sizes: [2, 4]}\n"
    add(repository, "many", warned)
    relaxed = run(repository, "--recipes", "deploy", "deploy")
    assert relaxed.returncode == 0, relaxed.stdout
    assert "graph." in relaxed.stdout
    line = len(warned.splitlines())
    assert f"many.yaml:{line}: PytestWarning: graph.off_stride" in relaxed.stdout
    strict = run(repository, "--recipes", "deploy", "deploy", "--recipes-strict")
    assert strict.returncode == 1
    assert "1 failed" in strict.stdout


def test_a_remark_fails_nothing(repository, capsys):
    add(repository, "short", SHORT)
    place = ["--config-dir", str(repository / "deploy"), "--json"]
    assert main(["check", "recipe=short", *place]) == 0
    (remark,) = json.loads(capsys.readouterr().out)["findings"]
    assert remark["severity"] == "info"
    strict = run(repository, "--recipes", "deploy", "deploy", "--recipes-strict")
    assert strict.returncode == 0, strict.stdout


def test_a_folder_without_recipes_is_a_usage_error(repository):
    done = run(repository, "--recipes", "nowhere")
    assert done.returncode == 4
    assert "there is no folder" in done.stderr


def test_without_the_option_nothing_is_imported(repository):
    add(repository, "ours_a2")
    (repository / "tests" / "test_own.py").write_text(
        "import sys\n\ndef test_own():\n    assert 'ascend_recipes.compose' not in sys.modules\n"
    )
    done = run(repository, "tests", "deploy", found_by_itself=True)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
