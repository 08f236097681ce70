"""A child process with everything that it starts, and only that.

The child leads a session of its own, so that its descendants can be told from everybody else's.
The launcher is made the reaper of orphans below it: when the child dies first, its descendants
come to us and can be waited for instead of lingering.
"""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.05
_ENDED = "ZX"
"""States of processes that have ended and wait for their parent to look."""
_STARTED_FIELD = 19
"""Place of the start time behind the name: field 22 of proc_pid_stat(5)."""


@dataclass(frozen=True)
class ProcessRecord:
    """One line of the process table."""

    pid: int
    state: str
    """Letter of the kernel: R, S, D, Z, …"""
    parent: int
    session: int
    started: int
    """Moment of the start, in clock ticks since the machine booted."""


class ProcessTree:
    """A started child and the session that it leads."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        self.pid = child.pid

    @property
    def returncode(self) -> int | None:
        """Exit status of the child, negative for a signal; None while it runs."""
        return self._child.poll()

    def members(self) -> set[int]:
        """Pids of the session that still run; zombies do not count."""
        return {record.pid for record in self._session() if record.state not in _ENDED}

    def signal_child(self, number: signal.Signals) -> None:
        """Send a signal to the child alone: vLLM passes it on in the right order."""
        if self._child.poll() is None:
            self._child.send_signal(number)

    def kill(self) -> None:
        """End every member at once."""
        self._signal_members(signal.SIGKILL)

    def end(self, *, patience_s: float, asked: bool = False) -> None:
        """End every member: politely to the child, then to the rest, then for good.

        Args:
            patience_s: Seconds that the child may take.
            asked: The child was asked before; a second request would make it hurry.
        """
        if not asked:
            self.signal_child(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(patience_s)
        for number, seconds in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0)):
            if self._wait_until_empty(0.5):
                break
            self._signal_members(number)
            self._wait_until_empty(seconds)
        # Whoever ended since the last look is a zombie until it is asked for.
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(1.0)
        self._reap()

    def _signal_members(self, number: signal.Signals) -> None:
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _wait_until_empty(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            self._reap()
            if not self.members():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)

    def _reap(self) -> None:
        """Collect the child, and orphans of its session that were handed to us."""
        self._child.poll()
        for record in self._session():
            if record.state == "Z" and record.parent == os.getpid() and record.pid != self.pid:
                with suppress(ChildProcessError):
                    os.waitpid(record.pid, os.WNOHANG)

    def _session(self) -> list[ProcessRecord]:
        return [record for record in process_table() if record.session == self.pid]


def end_together(trees: Sequence[ProcessTree], *, patience_s: float) -> None:
    """End several trees at once: all are asked first, then each may take what is left of the time.

    Args:
        trees: What to end.
        patience_s: Seconds that all of them together may take before they are forced.
    """
    deadline = time.monotonic() + patience_s
    for tree in trees:
        tree.signal_child(signal.SIGTERM)
    for tree in trees:
        tree.end(patience_s=max(0.0, deadline - time.monotonic()), asked=True)


def start_tree(command: Sequence[str], environment: Mapping[str, str], log: Path) -> ProcessTree:
    """Start a command in a session of its own, with both output streams appended to `log`."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def follow_launcher() -> None:
        # A launcher that is killed outright cannot clean up: the kernel tells the child.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    with log.open("ab") as stream:
        child = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=follow_launcher,
        )
    return ProcessTree(child)


def process_table() -> list[ProcessRecord]:
    """Every process that the kernel shows us."""
    pids = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return [record for pid in pids if (record := find_process(pid))]


def find_process(pid: int) -> ProcessRecord | None:
    """Read one line of the process table; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name stands in brackets and may contain anything, brackets included.
    fields = text.rpartition(")")[2].split()
    state, parent, _group, session = fields[:4]
    return ProcessRecord(pid, state, int(parent), int(session), int(fields[_STARTED_FIELD]))


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    record = find_process(pid)
    return record is not None and record.state not in _ENDED
