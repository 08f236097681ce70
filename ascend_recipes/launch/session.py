"""One run of vLLM below this process: started, watched, and ended whatever happens."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from ascend_recipes.errors import ExitCode, Finding, RecipeError, Severity, recipe_error
from ascend_recipes.launch.arguments import DRAIN_SECONDS
from ascend_recipes.launch.audit import audit_receipts, await_receipts
from ascend_recipes.launch.decode import decode_failure, find_death_notice
from ascend_recipes.launch.environment import NATIVE
from ascend_recipes.launch.folder import RunFolder
from ascend_recipes.launch.process import ProcessTree, is_running, start_tree
from ascend_recipes.launch.stages import LogWatcher, StageListener
from ascend_recipes.receipts import Receipt
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.plan import LaunchPlan

POLL_SECONDS = 0.2
_END_PATIENCE_SECONDS = DRAIN_SECONDS + 15.0
_ABORT_PATIENCE_SECONDS = 5.0
_RECEIPT_SECONDS = 15.0
"""Time that receipts may lag behind the moment when vLLM says that it is ready."""

_Handler = Callable[[int, FrameType | None], object] | int | None


class StopRequestedError(Exception):
    """Somebody asked the launcher to end, by signal."""


class Session:
    """Context manager around the processes of one run."""

    def __init__(
        self,
        plan: LaunchPlan,
        folder: RunFolder,
        *,
        command: Sequence[str],
        listener: StageListener,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._command = command
        self._listener = listener
        self._stop: signal.Signals | None = None
        self._previous: dict[signal.Signals, _Handler] = {}
        self._patience_s = _ABORT_PATIENCE_SECONDS
        self._tree: ProcessTree
        self._watcher: LogWatcher
        self.receipts: tuple[Receipt, ...] = ()

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._request_stop)
        self._folder.write_json("argv.json", list(self._command))
        self._tree = start_tree(self._command, self._folder.environment, self._folder.log)
        self._watcher = LogWatcher(self._folder.log, self._listener)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._listener.abandon()
        self._tree.end(patience_s=self._patience_s)
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def is_ready(self) -> bool:
        """Whether the engine says that it can take requests."""
        return self._watcher.stage == "ready"

    def wait_until(self, condition: Callable[[], bool], *, timeout_s: float) -> None:
        """Watch until a condition holds.

        Raises:
            StopRequestedError: somebody asked the launcher to end.
            RecipeError: the processes ended, one was lost, or the time is up (exit code 5).
        """
        deadline = time.monotonic() + timeout_s
        while True:
            # Asked first: what a process wrote before its end is in the log when it is read.
            ended = self._tree.returncode is not None
            self._poll()
            if condition():
                return
            if ended:
                raise self._failure()
            if time.monotonic() > deadline:
                raise self._overdue(timeout_s)
            time.sleep(POLL_SECONDS)

    def wait_for_end(self, *, timeout_s: float) -> None:
        """Watch until the processes end by themselves, with status 0.

        Raises:
            StopRequestedError: somebody asked the launcher to end.
            RecipeError: another status, a lost process, or the time is up (exit code 5).
        """
        deadline = time.monotonic() + timeout_s
        while self._tree.returncode is None:
            self._poll()
            if time.monotonic() > deadline:
                raise self._overdue(timeout_s)
            time.sleep(POLL_SECONDS)
        if self._tree.returncode != 0:
            raise self._failure()

    def audit(self) -> list[Finding]:
        """Compare what the processes report with the plan; warnings are returned.

        Raises:
            RecipeError: a process did not report, is foreign, or runs another plan (exit code 5).
        """
        if self._plan.runtime.name != NATIVE:
            return []
        self.receipts = await_receipts(self._plan, self._folder.path, seconds=_RECEIPT_SECONDS)
        findings = audit_receipts(self._plan, self.receipts, load_registry())
        if any(item.severity is Severity.ERROR for item in findings):
            raise RecipeError(tuple(findings), ExitCode.LAUNCH)
        return findings

    def watch(self) -> None:
        """Stay until somebody asks to end; then give running requests time to finish.

        Raises:
            RecipeError: the server ended by itself or lost a process (exit code 5).
        """
        # From here on an end is orderly: running requests are drained.
        self._patience_s = _END_PATIENCE_SECONDS
        try:
            while True:
                self._poll()
                self._check_members()
                if self._tree.returncode is not None:
                    raise self._failure()
                time.sleep(POLL_SECONDS)
        except StopRequestedError:
            return
        except RecipeError:
            self._patience_s = _ABORT_PATIENCE_SECONDS
            raise

    def _request_stop(self, number: int, _frame: FrameType | None) -> None:
        if self._stop is not None:
            # Asked twice: whoever asks is out of patience.
            self._tree.kill()
        self._stop = signal.Signals(number)

    def _poll(self) -> None:
        if self._stop is not None:
            raise StopRequestedError(self._stop.name)
        with suppress(FileNotFoundError):
            self._watcher.poll()

    def _check_members(self) -> None:
        lost = [item for item in self.receipts if _matters(item) and not is_running(item.pid)]
        if lost:
            raise self._loss(lost[0])

    def _failure(self) -> RecipeError:
        self._watcher.poll()
        log, ended = self._folder.log, self._tree.returncode
        if self.receipts and (notice := find_death_notice(log)):
            return _launch_error("launch.process_lost", f"vLLM ended: {notice}", log)
        if self.receipts:
            return _launch_error("launch.ended", f"vLLM ended with status {ended}", log)
        return RecipeError((decode_failure(log, ended),), ExitCode.LAUNCH)

    def _loss(self, receipt: Receipt) -> RecipeError:
        who = "the engine core" if receipt.rank is None else f"the worker of rank {receipt.rank}"
        message = f"{who} (process {receipt.pid}) ended without being asked; vLLM was stopped"
        return _launch_error("launch.process_lost", message, self._folder.log)

    def _overdue(self, seconds: float) -> RecipeError:
        log = self._folder.log
        message = f"vLLM was not ready after {seconds:.0f} s (stage {self._watcher.stage})"
        return _launch_error("launch.timeout", message, log)


def _matters(receipt: Receipt) -> bool:
    return receipt.phase in ("core", "worker")


def _launch_error(id: str, message: str, log: Path) -> RecipeError:
    return recipe_error(id, message, fix=f"the log is in {log}", exit_code=ExitCode.LAUNCH)
