"""Scripts are run with a stand-in for vllm: order, readiness, and what happens when one ends."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from ascend_recipes.export.targets import export_deployment
from tests.cluster.rig import free_block
from tests.conftest import plan_of
from tests.export.deployments import COMMAND, VERSION

pytestmark = pytest.mark.serve

SECONDS = 60.0
STANDIN = Path(__file__).parents[1] / "cluster" / "standin.py"
TWO_ROLES = ("recipe=qwen3_5_27b_w8a8_a3_2n_pd", "parallel.tp=1", "parallel.dp=2")


class Yard:
    """A folder with an export, stand-ins on the path, and what was started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = folder / "standin"
        self.output = folder / "output.txt"
        self.port = free_block()
        self.started: list[subprocess.Popen] = []
        (folder / "bin").mkdir()
        self.records.mkdir()
        self.behave()
        self.program("vllm", f'exec {sys.executable} {STANDIN} "$@"')

    def behave(self, **words: str) -> None:
        (self.records / "behaviour.json").write_text(json.dumps(words))

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)

    def export(self, target: str, *words: str) -> None:
        plan = plan_of(
            *words,
            "runtime=vllm_ascend",
            f"runtime.version={VERSION}",
            "site.network_interface=lo",
            "site.router=minimal",
            f"serving.port={self.port}",
            f"site.port_base={self.port + 50}",
        )
        for item in export_deployment(plan, target, command=COMMAND, placeholders=True).files:
            path = self.folder / item.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(item.text)

    def start(self, *command: str, **variables: str) -> subprocess.Popen:
        environment = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "STANDIN_FOLDER": str(self.records),
            **variables,
        }
        with self.output.open("a") as output:
            process = subprocess.Popen(
                ["bash", *command],
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def events(self) -> list[str]:
        path = self.records / "events"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.rpartition(" ")[0] for line in lines]

    def servers(self) -> list[int]:
        """Stand-ins that still run."""
        recorded = [json.loads(path.read_text())["pid"] for path in self.records.glob("*-*.json")]
        return [pid for pid in recorded if Path(f"/proc/{pid}").exists()]

    def clear(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for path in (*self.records.glob("*.json"), *self.records.glob("*.worker")):
            text = json.loads(path.read_text())
            pid = text if isinstance(text, int) else text.get("pid")
            if pid and Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def yard(tmp_path):
    made = Yard(tmp_path)
    yield made
    made.clear()


def until(condition, what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def completion(port: int) -> dict:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=json.dumps({"model": "m", "prompt": "a"}).encode(),
        headers={"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as answer:
        return json.load(answer)


def is_routed(port: int) -> bool:
    try:
        return completion(port)["choices"][0]["text"].startswith("from decode")
    except OSError:
        return False


PLACES = {"NODE_0_ADDRESS": "127.0.0.1", "NODE_1_ADDRESS": "127.0.0.2"}


def test_nodes_start_in_their_turn_and_end_together(yard):
    yard.export("shell", *TWO_ROLES)
    yard.behave(prefill="late:1")
    decode = yard.start("start.sh", "1", **PLACES)
    first = yard.start("start.sh", "0", **PLACES)
    until(lambda: is_routed(yard.port), "the router answers")
    events = yard.events()
    healthy = [events.index(f"healthy prefill-{rank}") for rank in (0, 1)]
    assert max(healthy) < min(events.index(f"started decode-{rank}") for rank in (0, 1))
    assert len(yard.servers()) == 4
    first.send_signal(signal.SIGTERM)
    decode.send_signal(signal.SIGTERM)
    assert (first.wait(SECONDS), decode.wait(SECONDS)) == (143, 143)
    until(lambda: not yard.servers(), "no server is left")


def test_one_of_several_that_ends_ends_the_others(yard):
    yard.export("shell", *TWO_ROLES)
    yard.behave(**{"prefill-1": "crash"})
    script = yard.start("node0-prefill.sh", **PLACES)
    assert script.wait(SECONDS) == 1
    until(lambda: not yard.servers(), "no server is left")


def test_a_script_says_what_is_missing(yard):
    yard.export("shell", *TWO_ROLES)
    script = yard.start("node0-prefill.sh")
    assert script.wait(SECONDS) != 0
    assert "NODE_0_ADDRESS: export NODE_0_ADDRESS: the address of node 0" in yard.output.read_text()
    assert yard.events() == []


def test_start_without_a_node_names_the_order(yard):
    yard.export("shell", *TWO_ROLES)
    script = yard.start("start.sh", **PLACES)
    assert script.wait(SECONDS) == 2
    assert "order: prefill -> decode -> router" in yard.output.read_text()


def test_a_single_process_gets_what_was_rendered(yard):
    words = ("recipe=qwen3_5_27b_w8a8_a2",)
    yard.export("shell", *words)
    yard.start("start.sh", "0")
    until(lambda: "started serve" in yard.events(), "the server starts")
    record = json.loads((yard.records / "serve.json").read_text())
    plan = plan_of(*words, "runtime=vllm_ascend", f"runtime.version={VERSION}")
    (rendered,) = plan.commands
    wanted = [str(yard.port) if word == "8000" else word for word in rendered.argv[1:]]
    assert record["argv"] == wanted
    assert record["env"].items() >= rendered.env.items()


SRUN = """\
while [ "$1" != env ] && [ "$1" != ip ]; do
  case "$1" in --nodelist=*) export HOST="${1#--nodelist=}" ;; esac
  shift
done
exec "$@"
"""
JOB = {"SLURM_JOB_NODELIST": "host[1-2]", "SLURM_SUBMIT_DIR": "."}
IP = 'echo "1: lo    inet 127.0.0.${HOST#host}/8 scope host lo"'


@pytest.fixture
def cluster(yard):
    """A yard where two machines are given to a job."""
    yard.program("scontrol", 'printf "host1\\nhost2\\n"')
    yard.program("srun", SRUN)
    yard.program("ip", IP)
    yard.export("slurm", *TWO_ROLES)
    return yard


def test_a_job_starts_everything_in_order(cluster):
    cluster.behave(prefill="late:1")
    job = cluster.start("job.sbatch", **JOB)
    until(lambda: is_routed(cluster.port), "the router answers")
    events = cluster.events()
    healthy = [events.index(f"healthy prefill-{rank}") for rank in (0, 1)]
    assert max(healthy) < min(events.index(f"started decode-{rank}") for rank in (0, 1))
    record = json.loads((cluster.records / "decode-1.json").read_text())
    assert record["env"]["HCCL_IF_IP"] == "127.0.0.2"
    job.send_signal(signal.SIGTERM)
    assert job.wait(SECONDS) == 143
    until(lambda: not cluster.servers(), "no server is left")


def test_a_job_ends_with_a_process_that_crashes(cluster):
    cluster.behave(**{"prefill-0": "hang", "prefill-1": "crash"})
    began = time.monotonic()
    job = cluster.start("job.sbatch", **JOB)
    assert job.wait(SECONDS) == 1
    assert time.monotonic() - began < SECONDS / 2, "nobody waits for servers that cannot answer"
    assert "a process ended" in cluster.output.read_text()
    until(lambda: not cluster.servers(), "no server is left")


def test_a_job_ends_when_a_server_leaves_before_it_is_ready(cluster):
    cluster.behave(**{"prefill-0": "hang"})
    job = cluster.start("job.sbatch", **JOB)
    until(lambda: "started prefill-0" in cluster.events(), "the server starts")
    record = cluster.records / "prefill-0.worker"
    until(record.exists, "the server takes signals")
    time.sleep(0.5)
    os.kill(json.loads((cluster.records / "prefill-0.json").read_text())["pid"], signal.SIGTERM)
    assert job.wait(SECONDS) == 1
    assert "drained prefill-0" in cluster.events()
    until(lambda: not cluster.servers(), "no server is left")
