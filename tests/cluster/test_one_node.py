"""One process on one node: what it is given, how it fails, how it ends, how it is found again."""

import json
import os
import signal
import socket
import time

import pytest

from ascend_recipes.cli.pipeline import planned_launch
from ascend_recipes.launch.process import is_running
from ascend_recipes.launch.state import ProcessIdentity, identity_of
from ascend_recipes.rendering.render import render_commands
from tests.cluster.rig import ONE_NODE, SOURCES, wait_for

pytestmark = pytest.mark.serve
SECRET = "hf_never_write_me_down"


def test_serves_with_the_rendered_command(place):
    launcher = place.launch(*ONE_NODE, "site.secrets={HF_TOKEN: env}", HF_TOKEN=SECRET)
    document = launcher.wait_until_ready()
    assert document["url"] == f"http://127.0.0.1:{place.port}/v1"
    given = place.record("serve")
    words = (f"serving.port={place.port}", f"site.sources={json.dumps(SOURCES)}")
    (wanted,) = render_commands(
        planned_launch((*ONE_NODE, "runtime=vllm_ascend", *words), ()).resolved
    )
    assert given["argv"] == list(wanted.argv[1:])
    assert wanted.env.items() <= given["env"].items()
    assert given["env"]["VLLM_USE_MODELSCOPE"] == "True"
    assert given["env"]["HF_TOKEN"] == SECRET
    assert "ASCEND_RECIPES_PLAN" not in given["env"], "our plugin stays inert beside vllm-ascend"
    assert [item["body"]["max_tokens"] for item in place.requests] == [1]
    assert launcher.state["status"] == "serving"
    assert launcher.terminate() == 0
    assert place.events[-1] == ("drained", "serve")
    assert launcher.state["status"] == "ended"
    told = [path for path in launcher.folder.rglob("*") if path.is_file()]
    assert not [path for path in told if SECRET in path.read_text()]
    assert len(told) > 5
    assert SECRET not in launcher.stderr


@pytest.mark.parametrize(
    ("behaviour", "words", "id", "text"),
    [
        ("crash", (), "log.cache_memory_negative", "weights leave no memory"),
        ("hang", ("serving.ready_timeout_s=1",), "launch.timeout", "not ready after 1 s"),
        ("mute", (), "launch.canary", "status 500"),
    ],
)
def test_failed_start(place, behaviour, words, id, text):
    place.behave(serve=behaviour)
    launcher = place.launch(*ONE_NODE, *words)
    assert launcher.wait() == 5
    assert list(launcher.findings) == [id]
    assert text in launcher.findings[id]
    assert launcher.state["status"] == "failed"


def test_everything_missing_is_named_at_once(place):
    place.write_site("bare", sources=None, device_folder=str(place.folder / "cache"))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", place.port))
        other.listen()
        launcher = place.launch(
            *ONE_NODE, "site=bare", "site.secrets={HF_TOKEN: env}", PATH="/usr/bin:/bin"
        )
        assert launcher.wait() == 4
    assert set(launcher.findings) >= {
        "cluster.vllm_version",
        "cluster.no_plugin",
        "cluster.too_few_dies",
        "cluster.port_in_use",
        "checkpoint.missing",
        "site.secret_missing",
    }
    assert place.events == []


def test_machine_is_judged_with_the_packages_beside_vllm(place):
    (beside,) = (place.folder / "env").rglob("torch_npu-*")
    beside.rename(beside.with_name("torch_npu-2.9.0.dist-info"))
    metadata = beside.with_name("torch_npu-2.9.0.dist-info") / "METADATA"
    metadata.write_text("Name: torch_npu\nVersion: 2.9.0\n")
    launcher = place.launch(*ONE_NODE)
    launcher.wait_until_ready()
    assert "torch-npu 2.9.0 is installed" in launcher.findings["env.matrix"]
    assert launcher.terminate() == 0
    strict = place.launch(*ONE_NODE, "--strict", name="strict")
    assert strict.wait() == 3
    assert "env.matrix" in strict.findings


def test_command_that_cannot_be_executed(place):
    script = place.folder / "env" / "bin" / "vllm"
    script.write_text(f"#!{place.folder / 'gone' / 'python'}\n")
    launcher = place.launch(*ONE_NODE)
    assert launcher.wait() == 4
    assert "cannot be started" in launcher.findings["cluster.cannot_start"]


def test_generate_is_for_the_native_runtime(place):
    document = place.run("generate", *ONE_NODE, "runtime=vllm_ascend", "--prompt", "1")
    assert document["exit_code"] == 2
    assert [item["id"] for item in document["findings"]] == ["cluster.serve_only"]


def test_status_logs_and_stop(place):
    assert place.run("status")["runs"] == []
    assert place.run("stop")["findings"][0]["id"] == "cluster.no_run"
    launcher = place.launch(*ONE_NODE)
    launcher.wait_until_ready()
    (run,) = place.run("status")["runs"]
    assert (run["condition"], run["recipe"]) == ("serving", "deepseek_v4_a3")
    assert [item["alive"] for item in run["processes"]] == [True]
    assert place.run("status", run["name"])["runs"][0]["url"] == launcher.document["url"][:-3]
    assert list(place.run("logs")["logs"]) == ["vllm"]
    assert place.run("logs", run["name"], "nobody")["findings"][0]["id"] == "cluster.no_process"
    assert place.run("stop", run["name"])["was_alive"] is True
    assert launcher.wait() == 0
    assert place.events[-1] == ("drained", "serve")
    assert place.run("stop")["was_alive"] is False


def test_run_of_a_killed_launcher_is_found_and_ended(place):
    place.behave(serve="deaf")
    launcher = place.launch(*ONE_NODE)
    launcher.wait_until_ready()
    launcher.process.send_signal(signal.SIGKILL)
    launcher.wait()
    (run,) = place.run("status")["runs"]
    assert run["condition"] == "abandoned"
    worker = int((place.records / "serve.worker").read_text())
    assert is_running(worker)
    # The server goes first: its worker must be found without it.
    os.kill(run["processes"][0]["identity"]["pid"], signal.SIGKILL)
    wait_for(lambda: not is_running(run["processes"][0]["identity"]["pid"]))
    assert place.run("stop", run["name"])["ok"]
    assert not is_running(worker)


def test_recycled_pid_is_nobody_of_ours():
    mine = identity_of(os.getpid())
    assert mine.is_alive
    for change in ({"started": mine.started - 1}, {"boot": "another"}):
        other = ProcessIdentity.model_validate(mine.model_dump() | change)
        assert not other.is_alive
        assert not other.send(signal.SIGKILL)


def test_stop_leaves_a_stranger_with_our_pid_alone(place):
    launcher = place.launch(*ONE_NODE)
    launcher.wait_until_ready()
    assert launcher.terminate() == 0
    state = launcher.state
    stranger = identity_of(os.getpid())
    # What a reboot or a long time makes of a state file: a pid that somebody else has now.
    for identity in (state["launcher"], state["processes"][0]["identity"]):
        identity.update(pid=stranger.pid, started=stranger.started + 1)
    (launcher.folder / "state.json").write_text(json.dumps(state))
    began = time.monotonic()
    assert place.run("stop", launcher.folder.name)["was_alive"] is False
    assert time.monotonic() - began < 10
