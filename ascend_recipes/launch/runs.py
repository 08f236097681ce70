"""Runs on this machine, found again from their folders: who lives, what they say, how they end."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.findings import finding
from ascend_recipes.launch.folder import runs_root
from ascend_recipes.launch.process import process_table
from ascend_recipes.launch.state import (
    RUN_VARIABLE,
    ProcessIdentity,
    RunState,
    identity_of,
    load_state,
)

_LOOK_SECONDS = 0.1
_TAIL_BYTES = 64_000
_STOP_SECONDS = 150.0
"""Time for a run to drain group after group before it is forced."""
_FORCE_SECONDS = 5.0


@dataclass(frozen=True)
class Run:
    """A run folder and its state."""

    folder: Path
    state: RunState

    @property
    def name(self) -> str:
        """What people type to mean this run."""
        return self.folder.name

    @property
    def condition(self) -> str:
        """The status, unless the launcher was killed before it could change it."""
        status = self.state.status
        if status in ("ended", "failed") or self.state.launcher.is_alive:
            return status
        return "abandoned" if self.state.is_alive else "killed"


def find_runs() -> list[Run]:
    """Every run that left a state, the latest first."""
    folders = (path for path in runs_root().glob("*") if path.is_dir())
    found = ((path, load_state(path)) for path in folders)
    runs = [Run(path.resolve(), state) for path, state in found if state is not None]
    return sorted(runs, key=lambda run: run.state.updated, reverse=True)


def find_run(name: str) -> Run:
    """The run of a name or a folder; the latest that lives where no name is given.

    Raises:
        RecipeError: there is none (exit code 2).
    """
    if "/" in name:
        state = load_state(Path(name))
        if state is not None:
            return Run(Path(name).resolve(), state)
    runs = find_runs()
    matching = [run for run in runs if name in run.name]
    if not name:
        matching = [run for run in runs if run.state.is_alive] or runs
    if matching:
        return matching[0]
    item = finding("cluster.no_run", name=name or "any", folder=runs_root())
    raise RecipeError((item,), ExitCode.USAGE)


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a log, or nothing where there is none yet."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return text.splitlines()[-lines:]


def stop_run(run: Run) -> bool:
    """End a run: its launcher does, in order; without one its processes are ended from here.

    Returns:
        Whether nothing of it is left.
    """
    if run.state.launcher.send(signal.SIGTERM):
        _wait(lambda: _living(run), _STOP_SECONDS)
    for number, seconds in ((signal.SIGTERM, _FORCE_SECONDS), (signal.SIGKILL, _FORCE_SECONDS)):
        for identity in _living(run):
            identity.send(number)
        if _wait(lambda: _living(run), seconds):
            return True
    return False


def _wait(living: Callable[[], list[ProcessIdentity]], seconds: float) -> bool:
    """Whether nobody lives any more within the time."""
    deadline = time.monotonic() + seconds
    while living():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _living(run: Run) -> list[ProcessIdentity]:
    """The launcher, its processes, and whatever those have started."""
    state = load_state(run.folder) or run.state
    known = [state.launcher, *(item.identity for item in state.processes)]
    return [item for item in known if item.is_alive] + list(_descendants(run.folder))


def _descendants(folder: Path) -> Iterator[ProcessIdentity]:
    """Processes that inherited the mark of the run, whoever their parent is by now."""
    mark = f"{RUN_VARIABLE}={folder}".encode()
    for record in process_table():
        with suppress(OSError):
            environment = Path(f"/proc/{record.pid}/environ").read_bytes().split(b"\0")
            identity = identity_of(record.pid)
            if mark in environment and identity.started == record.started and identity.is_alive:
                yield identity
