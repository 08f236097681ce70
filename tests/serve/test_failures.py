"""Starts and runs that go wrong: one clear message, the right exit code, nothing left."""

import os
import signal
import time
from pathlib import Path

import pytest

from ascend_recipes.receipts import load_receipts
from tests.serve.launcher import Launcher, still_there

pytestmark = [pytest.mark.serve, pytest.mark.vllm]


@pytest.fixture
def launch(tmp_path):
    started = []

    def call(*words, **env):
        launcher = Launcher(tmp_path, *words, **env)
        started.append(launcher)
        return launcher

    yield call
    for launcher in started:
        launcher.end()


def test_killed_worker_ends_everything_with_a_clear_message(launch):
    launcher = launch("parallel.tp=2")
    ready = launcher.wait_until_ready()
    below = launcher.descendants()
    workers = [item for item in load_receipts(Path(ready["run_folder"])) if item.phase == "worker"]
    assert sorted(item.rank for item in workers) == [0, 1]
    victim = next(item for item in workers if item.rank == 1)
    os.kill(victim.pid, signal.SIGKILL)
    assert launcher.wait() == 5
    assert launcher.document == ready, "one document, which was printed when the server was ready"
    told = launcher.stderr
    assert "launch.process_lost" in told
    assert "rank 1" in told or "VllmWorker-1" in told
    assert ready["run_folder"] in told
    assert still_there(below) == set()


def test_plugin_that_does_not_import_is_named(launch, tmp_path):
    # What a broken installation does: the module is there, its import fails.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['ascend_recipes.plugin'] = None\n"
    )
    launcher = launch(PYTHONPATH=str(tmp_path))
    assert launcher.wait() == 5
    (finding,) = launcher.document["findings"]
    assert finding["id"] == "log.plugin_failed"


def test_interrupted_start_leaves_nothing(launch):
    launcher = launch()
    deadline = time.monotonic() + 60
    while not (below := launcher.descendants()) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2)
    below |= launcher.descendants()
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.wait() == 130
    assert still_there(below) == set()
