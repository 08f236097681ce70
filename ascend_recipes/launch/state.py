"""What a run folder says about the processes of a run, readable after any crash.

A pid alone is no name: it is given to another program sooner or later. A process is ours only if
pid, moment of its start and boot of the machine all agree.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from ascend_recipes.launch.process import find_process, is_running
from ascend_recipes.schema.base import Spec

STATE_FILE = "state.json"
RUN_VARIABLE = "ASCEND_RECIPES_RUN"
"""Variable of every process of a run: its folder. Whoever inherits it belongs to the run."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")

RunStatus = Literal["starting", "serving", "ending", "ended", "failed"]


class ProcessIdentity(Spec):
    """A process that can be told from a later one with the same pid."""

    pid: int
    started: int
    """Clock ticks since the machine booted."""
    boot: str
    """Identifier of the boot."""

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        record = find_process(self.pid)
        same = record is not None and record.started == self.started and self.boot == boot_id()
        return same and is_running(self.pid)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; whether there was somebody to send it to."""
        if not self.is_alive:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False


class ProcessState(Spec):
    """One process of a run."""

    name: str
    identity: ProcessIdentity
    log: str
    """Name of its log in the run folder."""
    port: int | None = None
    """Port of its API."""


class RunState(Spec):
    """A run as the launcher last described it."""

    schema_version: Literal[1] = 1
    recipe: str
    digest: str
    status: RunStatus = "starting"
    message: str = ""
    """Why it failed."""
    launcher: ProcessIdentity
    url: str = ""
    """Where requests are answered."""
    nodes: tuple[int, ...] = (0,)
    """Machines of the deployment that this run holds."""
    processes: tuple[ProcessState, ...] = ()
    updated: float = Field(default_factory=time.time)
    """Seconds since the epoch."""

    @property
    def is_alive(self) -> bool:
        """Whether the launcher or any process still runs."""
        return self.launcher.is_alive or any(item.identity.is_alive for item in self.processes)


class StateFile:
    """The state of a running launch, on disk after every change."""

    def __init__(self, folder: Path, *, recipe: str, digest: str) -> None:
        self._path = folder / STATE_FILE
        self._state = RunState(recipe=recipe, digest=digest, launcher=identity_of(os.getpid()))
        self._write()

    def change(self, **changes: object) -> None:
        """Replace fields of the state."""
        tree = self._state.model_dump(mode="json") | changes | {"updated": time.time()}
        self._state = RunState.model_validate(tree, strict=False)
        self._write()

    def add(self, process: ProcessState) -> None:
        """Note a process that was just started."""
        processes = [item.model_dump(mode="json") for item in (*self._state.processes, process)]
        self.change(processes=processes)

    def _write(self) -> None:
        beside = self._path.with_suffix(".new")
        # A full disk must not end a server that answers, nor keep one from being ended.
        with suppress(OSError):
            beside.write_text(self._state.model_dump_json(indent=2) + "\n", encoding="utf-8")
            beside.replace(self._path)


def load_state(folder: Path) -> RunState | None:
    """The state of a run folder; none where there is none, or none that we can read."""
    try:
        return RunState.model_validate_json((folder / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def identity_of(pid: int) -> ProcessIdentity:
    """Identity of a process that has not been waited for."""
    record = find_process(pid)
    return ProcessIdentity(pid=pid, started=record.started if record else 0, boot=boot_id())


def boot_id() -> str:
    """Identifier that changes with every boot of the machine."""
    return _BOOT.read_text(encoding="utf-8").strip()
