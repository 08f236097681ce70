"""The set-up script, with a stub in place of Python: which stages run, and when again."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup.sh"

# Stands in for `python3`, and makes copies of itself as the environment's `python`.
STUB = """\
#!/usr/bin/env bash
echo "$*" >>"$STUB_LOG"
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip "*)
    case "$*" in *"$STUB_HANG"*) sleep 60 & echo $! >"$STUB_LOG.sleeper"; wait ;; esac
    case "$*" in *"$STUB_FAIL"*) echo "stub: no such package" >&2; exit 1 ;; esac ;;
  "-c "*) case "$*" in *"$STUB_BROKEN"*) exit 1 ;; esac ;;
esac
"""
NEVER = "a text that no command holds"
CHECKS = ("torch_npu==", "triton-ascend==")
PACKAGES = ("torch==", "setuptools_scm", "vllm==", "torchvision==", "-e .[dev]")


class Sandbox:
    """A checkout with the real script and a stub for everything that it calls."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "calls.log"
        self.log.touch()
        (root / "scripts").mkdir()
        for name in ("setup.sh", "cann_stub.py"):
            shutil.copy(SCRIPT.with_name(name), root / "scripts")
        (root / "pyproject.toml").write_text("[project]\n")
        (root / "bin").mkdir()
        stub = root / "bin" / "python3"
        stub.write_text(STUB)
        stub.chmod(0o755)

    def environment(self, **stub: str) -> dict[str, str]:
        settings = {"HANG": NEVER, "FAIL": NEVER, "BROKEN": NEVER} | stub
        return {
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "STUB_LOG": str(self.log),
            **{f"STUB_{name}": value for name, value in settings.items()},
        }

    def run(self, *words: str, **stub: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "scripts/setup.sh", *words],
            cwd=self.root,
            env=self.environment(**stub),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def installed(self) -> list[str]:
        """Packages whose installation was started since the last call, in order."""
        lines = self.log.read_text().splitlines()
        self.log.write_text("")
        installs = [line for line in lines if "pip install" in line]
        return [
            name
            for line in installs
            for name in (*PACKAGES, *CHECKS)
            if name in line.replace("--no-binary vllm", "")
        ]


@pytest.fixture
def sandbox(tmp_path):
    return Sandbox(tmp_path)


def test_first_run_installs_every_stage_in_order(sandbox):
    result = sandbox.run()
    assert result.returncode == 0, result.stderr
    assert sandbox.installed() == list(PACKAGES)
    for number in range(1, 7):
        assert f"[setup {number}/6]" in result.stderr


def test_second_run_installs_nothing(sandbox):
    sandbox.run()
    sandbox.installed()
    assert sandbox.run().returncode == 0
    assert sandbox.installed() == []


def test_failed_stage_says_where_the_output_is_and_runs_again(sandbox):
    failed = sandbox.run(FAIL="vllm==")
    assert failed.returncode == 1
    assert "stub: no such package" in failed.stderr
    assert "to resume here" in failed.stderr
    assert sandbox.installed() == ["torch==", "setuptools_scm", "vllm=="]
    assert sandbox.run().returncode == 0
    assert sandbox.installed() == ["vllm==", "torchvision==", "-e .[dev]"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_interrupted_stage_runs_again_and_finished_ones_do_not(sandbox, number):
    running = subprocess.Popen(
        ["bash", "scripts/setup.sh"],
        cwd=sandbox.root,
        env=sandbox.environment(HANG="vllm=="),
        stderr=subprocess.DEVNULL,
    )
    sleeper = sandbox.log.with_name("calls.log.sleeper")
    _wait_for(lambda: sleeper.exists() and sleeper.read_text().strip())
    running.send_signal(number)
    assert running.wait(30) != 0
    pid = int(sleeper.read_text())
    if number is signal.SIGKILL:
        os.kill(pid, signal.SIGTERM)  # nothing can end its children for a killed script
    _wait_for(lambda: _has_ended(pid))
    sandbox.installed()

    result = sandbox.run()
    assert result.returncode == 0, result.stderr
    assert "vllm was interrupted: again" in result.stderr
    assert sandbox.installed() == ["vllm==", "torchvision==", "-e .[dev]"]


def test_broken_environment_is_built_anew(sandbox):
    sandbox.run()
    sandbox.installed()
    (sandbox.root / ".venv" / "bin" / "python").unlink()
    result = sandbox.run()
    assert result.returncode == 0, result.stderr
    assert "does not work: building it anew" in result.stderr
    assert sandbox.installed() == list(PACKAGES)


def test_half_written_package_is_installed_by_force(sandbox):
    result = sandbox.run(BROKEN="import torch")
    assert result.returncode == 1
    calls = sandbox.log.read_text()
    assert "--force-reinstall torch==" in calls
    assert "setuptools_scm" not in calls


def test_changed_project_file_runs_the_last_stage_only(sandbox):
    sandbox.run()
    sandbox.installed()
    (sandbox.root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert sandbox.run().returncode == 0
    assert sandbox.installed() == ["-e .[dev]"]


def test_checks_add_the_vendor_stages_and_only_once(sandbox):
    sandbox.run()
    sandbox.installed()
    result = sandbox.run("checks")
    assert result.returncode == 0, result.stderr
    assert "pip download" in sandbox.log.read_text()
    assert sandbox.installed() == list(CHECKS)
    (sandbox.root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert sandbox.run("checks").returncode == 0
    assert sandbox.installed() == ["-e .[dev]"]
    (sandbox.root / "scripts" / "cann_stub.py").write_text("another stub")
    assert sandbox.run("checks").returncode == 0
    assert sandbox.installed() == ["torch_npu=="]


def test_script_names_no_index_and_no_machine_path():
    text = SCRIPT.read_text()
    for forbidden in ("http:", "https:", "--index-url", "-i ", "--find-links", "/root", "/home"):
        assert forbidden not in text


def _has_ended(pid: int) -> bool:
    """Whether a process is gone, or dead and not yet reaped.

    Launcher tests of the same run make this process the reaper of orphans, and nobody waits here.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def _wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
