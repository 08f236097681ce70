"""The command line from its words to its exit code, in this process; nothing is started."""

import json
import os
import pty
import socket
import subprocess
import sys

import pytest

from ascend_recipes.cli import commands
from ascend_recipes.cli.arguments import COMMANDS, parse_arguments
from ascend_recipes.cli.main import main
from ascend_recipes.compose import recipe_names
from ascend_recipes.errors import ExitCode

RECIPE = "recipe=qwen3_5_27b_a2"
TINY = ("device=emulated", "scale=tiny")


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run one command line; give exit code, stdout and stderr."""
    monkeypatch.setenv("ASCEND_RECIPES_CACHE", str(tmp_path / "cache"))

    def call(*argv):
        code = main(argv)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


@pytest.fixture
def document(run):
    """Run one command line with --json; give the exit code and the one document."""

    def call(*argv):
        code, out, _ = run(*argv, "--json")
        tree = json.loads(out)
        assert tree["exit_code"] == code
        assert tree["ok"] is (code == 0)
        return code, tree

    return call


def ids(tree):
    return [item["id"] for item in tree["findings"]]


# --- commands -------------------------------------------------------------------------------------


def test_every_command_has_a_function():
    assert set(commands.COMMANDS) == set(COMMANDS)


def test_list_shows_every_recipe(run, document):
    names = [entry.name for entry in recipe_names()]
    _, tree = document("list")
    assert [item["name"] for item in tree["recipes"]] == names
    code, out, _ = run("list")
    assert code == 0
    assert all(name in out for name in names)


def test_list_and_plan_know_a_folder_of_the_users(run, document, tmp_path):
    folder = tmp_path / "mine" / "recipe"
    folder.mkdir(parents=True)
    text = "# @package _global_\ndefaults: [qwen3_5_27b_a2]\nabout: my own\n"
    (folder / "my_recipe.yaml").write_text(text)
    words = ("--config-dir", str(tmp_path / "mine"))
    _, tree = document("list", *words)
    assert "my_recipe" in [item["name"] for item in tree["recipes"]]
    code, tree = document("plan", "recipe=my_recipe", *TINY, *words)
    assert (code, tree["plan"]["recipe"]) == (0, "my_recipe")


def test_plan_document_holds_plan_and_reasons(document):
    code, tree = document("plan", RECIPE, *TINY)
    assert code == 0
    assert tree["command"] == "plan"
    assert tree["plan"]["digest"] == tree["digest"]
    assert "engine.tensor_parallel_size" in tree["reasons"]


def test_plan_for_people_shows_values_and_reasons(run):
    code, out, _ = run("plan", RECIPE, *TINY)
    assert code == 0
    assert "max_num_batched_tokens" in out
    assert "recipe scheduler.max_num_batched_tokens" in out
    assert "fused_infer_attention" in out


def test_check_says_so_when_there_is_nothing(run, document):
    code, out, err = run("check", RECIPE, *TINY)
    assert (code, err) == (0, "")
    assert "no findings" in out
    assert ids(document("check", RECIPE, *TINY)[1]) == []


def test_check_prints_findings_on_stdout_and_plan_on_stderr(run):
    code, out, err = run("check", RECIPE, "parallel.tp=5")
    assert (code, err) == (3, "")
    assert "parallel.tp" in out
    code, out, err = run("plan", RECIPE, "parallel.tp=5")
    assert (code, out) == (3, "")
    assert "parallel.tp" in err


def test_strict_turns_a_warning_into_a_failure(run):
    words = (RECIPE, *TINY, "scheduler.max_num_seqs=4", "scheduler.max_num_seqs=8")
    code, out, _ = run("check", *words)
    assert code == 0
    assert "override.repeated" in out
    assert run("check", "--strict", *words)[0] == ExitCode.FINDINGS


def test_help_and_version(run):
    code, out, _ = run("--help")
    assert code == 0
    for name in COMMANDS:
        assert f"  {name} " in out
    assert run("--version")[1].startswith("ascend-run ")


# --- multirun -------------------------------------------------------------------------------------


def test_multirun_checks_every_combination_in_one_document(document):
    code, tree = document(
        "check", "-m", RECIPE, *TINY, "parallel.tp=1,2,5", "graph=none,full_decode"
    )
    assert code == ExitCode.FINDINGS
    results = {tuple(run["overrides"][-2:]): run["exit_code"] for run in tree["runs"]}
    assert len(results) == 6
    assert results["parallel.tp=2", "graph=none"] == 0
    assert results["parallel.tp=5", "graph=none"] == ExitCode.FINDINGS


def test_multirun_table_for_people(run):
    code, out, _ = run("plan", "-m", RECIPE, *TINY, "parallel.tp=1,2")
    assert code == 0
    assert out.count("ok") >= 2


@pytest.mark.parametrize("command", ["serve", "generate"])
def test_multirun_starts_nothing(document, command):
    code, tree = document(command, "-m", RECIPE, "--prompt=x" if command == "generate" else "a=1")
    assert (code, ids(tree)) == (ExitCode.USAGE, ["usage.multirun"])


# --- Hydra's own flags ----------------------------------------------------------------------------


def test_cfg_is_hydras_rendering(run):
    code, out, _ = run(RECIPE, "scheduler.max_num_seqs=7", "--cfg", "job")
    assert code == 0
    assert "max_num_seqs: 7" in out
    code, out, _ = run(RECIPE, *TINY, "--info", "defaults")
    assert code == 0
    assert "qwen3_5_27b_a2" in out


def test_cfg_validates_first(run):
    code, out, err = run(RECIPE, "+scheduler.speed=9", "--cfg", "job")
    assert (code, out) == (ExitCode.USAGE, "")
    assert "scheduler.speed" in err


# --- mistakes, each with its own message and exit code --------------------------------------------


@pytest.mark.parametrize(
    ("argv", "code", "id", "told"),
    [
        (["plan", "recipe=qwen3_5_27b"], 2, "recipe.unknown", "recipe=qwen3_5_27b_a2"),
        (["plan"], 2, "recipe.missing", "recipe=NAME"),
        (["plan", RECIPE, "parallel.tpp=4"], 2, "schema.unknown_key", "parallel.tp?"),
        (["plan", RECIPE, "paralel.tp=4"], 2, "schema.unknown_key", "parallel"),
        (["plan", RECIPE, "max_num_seqs=9"], 2, "schema.unknown_key", "scheduler.max_num_seqs=9"),
        (["plan", RECIPE, "tensor_parallel_size=2"], 2, "schema.unknown_key", "parallel.tp=2"),
        (["plan", RECIPE, "port=9000"], 2, "schema.unknown_key", "serving.port=9000"),
        (["plan", RECIPE, "cache.port=9000"], 2, "schema.unknown_key", "serving.port=9000"),
        (["plan", RECIPE, "host={a: 1}"], 2, "schema.unknown_key", "serving.host?"),
        (["plan", RECIPE, "graph=ful_decode"], 2, "compose.unknown_preset", "graph=full_decode"),
        (["plan", RECIPE, "parallel.tp=two"], 3, "schema.value", ""),
        (["plan", RECIPE, "parallel.tp=1,2"], 2, "override.sweep", "-m"),
        (["plan", RECIPE, "parallel.tp=5"], 3, None, "parallel.tp"),
        (["plan", RECIPE, "drafter=eagle3"], 2, "compose.unknown_preset", ""),
        (["plan", RECIPE, "hardware=a9"], None, "registry.unknown_key", ""),
        (["plam", RECIPE], 2, "usage.unknown_command", "plan"),
        (["plan", RECIPE, "--jsno"], 2, "usage.unknown_flag", "--json"),
        (["generate", RECIPE, *TINY], 2, "usage.prompt_missing", "--prompt"),
        (["generate", RECIPE, *TINY, "--prompt="], 2, "usage.prompt_empty", "--prompt"),
        (["serve", RECIPE, "--prompt", "x"], 2, "usage.stray_prompt", "generate"),
        (["serve", RECIPE], 3, "runtime.unverified", "accept_unverified=true"),
        (["serve", RECIPE, "accept_unverified=true"], 4, "environment.no_npu", "device=emulated"),
        (["serve", RECIPE, "device=emulated"], 3, "scale.real_on_cpu", "scale=tiny"),
    ],
)
def test_mistake(document, argv, code, id, told):
    actual, tree = document(*argv)
    assert code in (actual, None)
    assert actual not in (0, 1)
    if id:
        assert id in ids(tree)
    chosen = [item for item in tree["findings"] if id in (item["id"], None)]
    assert told in json.dumps(chosen, ensure_ascii=False)


def test_port_in_use(document):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, tree = document("serve", RECIPE, *TINY, f"serving.port={port}", "--quiet")
    assert (code, ids(tree)) == (4, ["environment.port_in_use"])
    assert tree["findings"][0]["fix"].startswith("serving.port=")


def test_pasted_json_is_understood(document):
    code, tree = document("plan", RECIPE, *TINY, 'scheduler={"max_num_seqs":4}')
    assert code == 0
    assert tree["plan"]["engine"]["max_num_seqs"] == 4


def test_unexpected_error_leaves_a_traceback_file_and_no_traceback(document, tmp_path, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("something of ours")

    monkeypatch.setitem(commands.COMMANDS, "list", broken)
    code, tree = document("list")
    assert (code, ids(tree)) == (1, ["internal.error"])
    assert "something of ours" in tree["findings"][0]["message"]
    (saved,) = (tmp_path / "cache" / "tracebacks").iterdir()
    assert str(saved) in tree["findings"][0]["fix"]
    assert "ZeroDivisionError" in saved.read_text()


def test_interrupt_has_its_own_code(run, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setitem(commands.COMMANDS, "list", interrupted)
    assert run("list")[0] == 130


# --- as a process ---------------------------------------------------------------------------------


def ascend_run(*argv, **options):
    code = "import sys; from ascend_recipes.cli.main import main; sys.exit(main())"
    return subprocess.Popen([sys.executable, "-c", code, *argv], text=True, **options)


def test_reader_may_leave_early():
    with ascend_run("list", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize("no_color", [False, True])
def test_colour_on_a_terminal_unless_no_color(no_color):
    leader, follower = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {"TERM": "xterm-256color"} | ({"NO_COLOR": "1"} if no_color else {})
    with ascend_run("plam", stderr=follower, env=environment) as process:
        assert process.wait(30) == ExitCode.USAGE
    shown = os.read(leader, 4096).decode()
    os.close(leader)
    os.close(follower)
    assert "usage.unknown_command" in shown
    assert ("\x1b[1;31m" in shown) is not no_color


def test_pipe_gets_no_colour_and_no_folding():
    with ascend_run("plan", RECIPE, "parallel.tp=5", stderr=subprocess.PIPE) as process:
        _, shown = process.communicate(timeout=30)
    assert "\x1b" not in shown


def test_default_command_is_serve():
    assert parse_arguments([RECIPE]).command == "serve"


def test_refusals_name_their_command(document):
    assert document("check", "recipe=nope")[1]["command"] == "check"
    assert document("plan", "--nonsense")[1]["command"] == ""


# --- a machine beside a recipe --------------------------------------------------------------------


def test_a_machine_file_is_held_against_the_recipe(document, tmp_path):
    file = tmp_path / "there.yaml"
    file.write_text("cann: 9.1.0\nvllm_ascend: 0.23.0rc1\n", encoding="utf-8")
    words = (RECIPE, "runtime=vllm_ascend", "runtime.version=0.23.0")
    code, tree = document("check", *words, "--installed", str(file))
    assert code == ExitCode.ENVIRONMENT
    by_id = {item["id"]: item for item in tree["findings"]}
    assert by_id["drift.version_granularity"]["severity"] == "error"
    assert by_id["env.matrix"]["at"] == "installed.cann"
    assert by_id["env.matrix"]["source"].endswith("there.yaml:1")
    assert document("check", *words)[0] == ExitCode.OK


def test_this_machine_can_be_held_against_the_recipe(document):
    code, tree = document("plan", RECIPE, "--installed", "here")
    assert code == ExitCode.OK
    assert tree["findings"] == []


def test_a_wrong_machine_file_is_a_usage_error(run, tmp_path):
    file = tmp_path / "there.yaml"
    file.write_text("canm: 9.1.0\n", encoding="utf-8")
    code, out, _ = run("check", RECIPE, "--installed", str(file))
    assert code == ExitCode.USAGE
    assert "canm" in out
