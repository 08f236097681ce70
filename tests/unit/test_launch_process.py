"""Process trees: what is started is found again, and nothing of it is left."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ascend_recipes.launch.process import find_process, is_running, start_tree

# A parent with a child that both take a polite request to end as `{trap}` says.
TREE = """\
import subprocess, sys, time
{trap}
child = subprocess.Popen([sys.executable, "-c", "{trap}; import time; time.sleep(300)"])
print("child", child.pid, flush=True)
time.sleep(300)
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
MEEK = "import signal"


def started(tmp_path, *, trap=MEEK):
    log = tmp_path / "log"
    code = TREE.format(trap=trap)
    tree = start_tree([sys.executable, "-c", code], os.environ, log)
    # The number may be written after the word: only a whole line has it.
    wait_for(lambda: log.read_text().endswith("\n"))
    return tree, int(log.read_text().split()[-1])


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.mark.parametrize("trap", [MEEK, STUBBORN])
def test_end_leaves_nothing(tmp_path, trap):
    tree, child = started(tmp_path, trap=trap)
    assert {tree.pid, child} <= tree.members()
    tree.end(patience_s=0.5)
    assert tree.members() == set()
    assert not is_running(child)
    assert find_process(child) is None, "a zombie is left"


def test_orphans_of_a_killed_parent_are_ended_too(tmp_path):
    tree, child = started(tmp_path)
    os.kill(tree.pid, signal.SIGKILL)
    wait_for(lambda: tree.returncode is not None)
    assert tree.returncode == -signal.SIGKILL
    assert tree.members() == {child}
    tree.end(patience_s=0.5)
    assert find_process(child) is None


def test_members_are_only_our_own(tmp_path):
    tree, _ = started(tmp_path)
    try:
        assert os.getpid() not in tree.members()
        assert os.getppid() not in tree.members()
    finally:
        tree.end(patience_s=1.0)


def test_tree_ends_with_a_killed_launcher(tmp_path):
    log = tmp_path / "log"
    code = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from ascend_recipes.launch.process import start_tree\n"
        f"tree = start_tree([sys.executable, '-c', 'import time; time.sleep(300)'],"
        f" os.environ, Path({str(tmp_path / 'inner')!r}))\n"
        "print(tree.pid, flush=True)\ntime.sleep(300)"
    )
    launcher = start_tree([sys.executable, "-c", code], os.environ, log)
    wait_for(lambda: log.read_text().strip())
    inner = int(log.read_text())
    os.kill(launcher.pid, signal.SIGKILL)
    wait_for(lambda: not is_running(inner))
    launcher.end(patience_s=1.0)


def test_output_of_all_goes_to_the_log(tmp_path):
    log = tmp_path / "log"
    tree = start_tree(["/bin/sh", "-c", "echo out; echo err >&2; exit 7"], os.environ, log)
    wait_for(lambda: tree.returncode is not None)
    assert tree.returncode == 7
    assert log.read_text().split() == ["out", "err"]


def test_zombies_do_not_run(tmp_path):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    wait_for(lambda: "Z" in Path(f"/proc/{pid}/stat").read_text())
    assert not is_running(pid)
    os.waitpid(pid, 0)
    assert not is_running(pid)
