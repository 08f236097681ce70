"""A session from start to end, with a small program in vLLM's place: no vLLM, real processes."""

import json
import os
import signal
import sys
import threading
import time

import pytest

from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.launch import session
from ascend_recipes.launch.folder import create_run_folder
from ascend_recipes.launch.process import process_table
from ascend_recipes.launch.session import ProcessSpec, Session, StopRequestedError

READY = "init engine (profile, create kv cache, warmup model) took 1 s"

# Writes the receipt that it is given, says what vLLM says when it is ready, and does `then`.
SERVER = """\
import json, os, signal, subprocess, sys, time
from pathlib import Path
receipt = json.loads(sys.argv[1])
folder = Path(os.environ["ASCEND_RECIPES_PLAN"]).parent / "receipts"
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
if receipt:
    receipt["pid"] = worker.pid
    (folder / f"core-{worker.pid}.json").write_text(json.dumps(receipt))
print("Model loading took 1 GiB memory and 1 seconds", flush=True)
print(sys.argv[2], flush=True)
exec(sys.argv[3])
"""
STAY = "time.sleep(300)"
DRAIN = """
def end(*_):
    print("drained", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
while True:
    time.sleep(0.05)
"""


class SingleSession(Session):
    """Starts one process when it is entered."""

    def __init__(self, plan, folder, *, command):
        super().__init__(plan, folder, listener=Silent())
        self.spec = ProcessSpec(
            name="vllm",
            command=tuple(command),
            environment=folder.environment,
            log=folder.log,
        )

    def __enter__(self):
        super().__enter__()
        self.start(self.spec)
        return self


class Silent:
    """Listener that only remembers whether the start was abandoned."""

    abandoned = False

    def begin(self, stage):
        pass

    def detail(self, text):
        pass

    def end(self):
        pass

    def abandon(self):
        self.abandoned = True


@pytest.fixture(scope="module")
def tiny(plan):
    return plan("device=emulated", "scale=tiny")


@pytest.fixture
def start(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("ASCEND_RECIPES_CACHE", str(tmp_path))
    monkeypatch.setattr(session, "_ABORT_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(session, "_RECEIPT_SECONDS", 0.5)

    def call(receipt, *, says=READY, then=STAY):
        folder = create_run_folder(tiny, [])
        tree = json.loads(receipt.model_dump_json()) if receipt else None
        command = [sys.executable, "-c", SERVER, json.dumps(tree), says, then]
        return SingleSession(tiny.plan, folder, command=command), folder

    before = {record.pid for record in process_table() if record.parent == os.getpid()}
    yield call
    after = {record.pid for record in process_table() if record.parent == os.getpid()}
    assert after <= before, "a process is left"


def later(seconds, action, *arguments):
    timer = threading.Timer(seconds, action, arguments)
    timer.daemon = True
    timer.start()


def refused(error):
    assert error.value.exit_code is ExitCode.LAUNCH
    return {item.id: item for item in error.value.findings}


def test_server_that_stays_is_drained_on_request(start, receipt_of_core):
    running, folder = start(receipt_of_core, then=DRAIN)
    with running:
        running.wait_until(lambda: running.is_ready, timeout_s=20)
        assert running.audit() == []
        later(0.5, os.kill, os.getpid(), signal.SIGTERM)
        running.watch()
    assert "drained" in folder.log.read_text()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_request_to_end_during_the_start(start, receipt_of_core):
    running, _ = start(receipt_of_core, says="still loading")
    later(0.5, os.kill, os.getpid(), signal.SIGINT)
    with pytest.raises(StopRequestedError), running:
        running.wait_until(lambda: running.is_ready, timeout_s=20)


def test_second_request_does_not_wait(start, receipt_of_core):
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(300)"
    running, _ = start(receipt_of_core, then=deaf)
    began = time.monotonic()
    with running:
        running.wait_until(lambda: running.is_ready, timeout_s=20)
        running.audit()
        for seconds in (0.3, 1.0):
            later(seconds, os.kill, os.getpid(), signal.SIGTERM)
        running.watch()
    assert time.monotonic() - began < 15


def test_missing_receipt_aborts(start):
    running, _ = start(None)
    with pytest.raises(RecipeError) as caught, running:
        running.wait_until(lambda: running.is_ready, timeout_s=20)
        running.audit()
    assert set(refused(caught)) == {"receipt.missing"}


@pytest.mark.parametrize(
    ("change", "id"),
    [
        ({"digest": "another"}, "receipt.digest"),
        ({"platform": "vllm.platforms.cpu:CpuPlatform"}, "receipt.platform"),
    ],
)
def test_foreign_receipt_aborts(start, receipt_of_core, change, id):
    running, _ = start(receipt_of_core.model_copy(update=change))
    with pytest.raises(RecipeError) as caught, running:
        running.wait_until(lambda: running.is_ready, timeout_s=20)
        running.audit()
    assert id in refused(caught)


def test_failed_start_is_decoded(start):
    running, folder = start(None, says="loading", then="raise ValueError('no such weights')")
    with pytest.raises(RecipeError) as caught, running:
        running.wait_until(lambda: running.is_ready, timeout_s=20)
    (finding,) = refused(caught).values()
    assert "ValueError: no such weights" in finding.message
    assert str(folder.log) in finding.fix


def test_start_that_takes_too_long(start, receipt_of_core):
    running, _ = start(receipt_of_core, says="still loading")
    with pytest.raises(RecipeError) as caught, running:
        running.wait_until(lambda: running.is_ready, timeout_s=0.5)
    assert set(refused(caught)) == {"launch.timeout"}


def test_lost_process_is_named(start, receipt_of_core):
    running, _ = start(receipt_of_core)
    with pytest.raises(RecipeError) as caught, running:
        running.wait_until(lambda: running.is_ready, timeout_s=20)
        running.audit()
        os.kill(running.receipts[0].pid, signal.SIGKILL)
        running.watch()
    finding = refused(caught)["launch.process_lost"]
    assert "rank 0" in finding.message


def test_server_that_ends_by_itself(start, receipt_of_core):
    running, _ = start(receipt_of_core, then="time.sleep(1); worker.kill(); worker.wait()")
    with pytest.raises(RecipeError) as caught, running:
        running.wait_until(lambda: running.is_ready, timeout_s=20)
        running.audit()
        running.watch()
    assert set(refused(caught)) <= {"launch.ended", "launch.process_lost"}


def test_offline_run_ends_with_status_zero(start, receipt_of_core):
    running, _ = start(receipt_of_core, then="worker.kill(); worker.wait()")
    with running:
        running.wait_for_end(timeout_s=20)


def test_offline_run_that_ends_with_another_status_failed(start, receipt_of_core):
    running, _ = start(receipt_of_core, then="worker.kill(); sys.exit(3)")
    with pytest.raises(RecipeError) as caught, running:
        running.wait_for_end(timeout_s=20)
    refused(caught)
