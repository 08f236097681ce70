"""The processes of one run below this one: started, watched, and ended whatever happens."""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from ascend_recipes.errors import ExitCode, Finding, RecipeError, Severity
from ascend_recipes.findings import finding, message_of, phrase, recipe_error
from ascend_recipes.launch.arguments import DRAIN_SECONDS
from ascend_recipes.launch.audit import audit_receipts, await_receipts
from ascend_recipes.launch.decode import decode_failure, find_death_notice
from ascend_recipes.launch.environment import NATIVE
from ascend_recipes.launch.folder import RunFolder
from ascend_recipes.launch.process import ProcessTree, end_together, is_running, start_tree
from ascend_recipes.launch.stages import LogWatcher, StageListener
from ascend_recipes.launch.state import RUN_VARIABLE, ProcessState, StateFile, identity_of
from ascend_recipes.receipts import Receipt
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.plan import LaunchPlan

POLL_SECONDS = 0.2
SOLE_PROCESS = "vllm"
"""Name of the process where a run has only one."""
_END_PATIENCE_SECONDS = DRAIN_SECONDS + 15.0
_ABORT_PATIENCE_SECONDS = 5.0
_RECEIPT_SECONDS = 15.0
"""Time that receipts may lag behind the moment when vLLM says that it is ready."""

_Handler = Callable[[int, FrameType | None], object] | int | None


class StopRequestedError(Exception):
    """Somebody asked the launcher to end, by signal."""


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """A process that a session shall start."""

    name: str
    """What people call it."""
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    group: str = "vllm"
    """Processes of one group are started and ended together."""
    port: int | None = None
    """Port of its API, for the record."""


@dataclass(frozen=True)
class Running:
    """A started process and what its log has said so far."""

    spec: ProcessSpec
    tree: ProcessTree
    watcher: LogWatcher


class Session:
    """Context manager around the processes of one run."""

    def __init__(
        self,
        plan: LaunchPlan,
        folder: RunFolder,
        *,
        listener: StageListener,
        check: Callable[[], None] = lambda: None,
        nodes: tuple[int, ...] = (0,),
    ) -> None:
        """Nothing is started yet.

        Args:
            plan: What the processes run.
            folder: Where the run is recorded.
            listener: Shows stages to people.
            check: Called at every look; raises where something outside ends the run.
            nodes: Machines of the deployment that this run holds.
        """
        self._plan = plan
        self._folder = folder
        self._listener = listener
        self._check = check
        self._nodes = nodes
        self._stop: signal.Signals | None = None
        self._requests = 0
        self._previous: dict[signal.Signals, _Handler] = {}
        self._patience_s = _ABORT_PATIENCE_SECONDS
        self._running: list[Running] = []
        self.state: StateFile
        self.receipts: tuple[Receipt, ...] = ()

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._request_stop)
        plan = self._plan
        self.state = StateFile(self._folder.path, recipe=plan.recipe, digest=plan.digest)
        self.state.change(nodes=self._nodes)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._listener.abandon()
        failed = isinstance(error, RecipeError)
        if failed:
            self._patience_s = _ABORT_PATIENCE_SECONDS
        self.state.change(status="ending", message=str(error) if failed else "")
        for group in self.groups:
            self.end(group)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self.state.change(status="failed" if failed else "ended")

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that still run, the one that was started last first."""
        return tuple(dict.fromkeys(item.spec.group for item in reversed(self._running)))

    @property
    def is_ready(self) -> bool:
        """Whether every engine says that it can take requests."""
        return all(item.watcher.stage == "ready" for item in self._running)

    @property
    def is_hurried(self) -> bool:
        """Whether somebody asked for the end more than once."""
        return self._requests > 1

    def start(self, spec: ProcessSpec, listener: StageListener | None = None) -> None:
        """Start a process; its log is watched from now on.

        Raises:
            RecipeError: the command cannot be executed (exit code 4).
        """
        environment = {**spec.environment, RUN_VARIABLE: str(self._folder.path.resolve())}
        try:
            tree = start_tree(spec.command, environment, spec.log)
        except OSError as error:
            at = "runtime.kind"
            reason = error.strerror or str(error)
            item = finding("cluster.cannot_start", at=at, name=spec.command[0], reason=reason)
            raise RecipeError((item,), ExitCode.ENVIRONMENT) from None
        self._running.append(Running(spec, tree, LogWatcher(spec.log, listener or self._listener)))
        identity, log = identity_of(tree.pid), spec.log.relative_to(self._folder.path).as_posix()
        self.state.add(ProcessState(name=spec.name, identity=identity, log=log, port=spec.port))

    def end(self, group: str) -> None:
        """End the processes of a group, all of them at the same time."""
        members = [item for item in self._running if item.spec.group == group]
        end_together([item.tree for item in members], patience_s=self._patience_s)
        self._running = [item for item in self._running if item not in members]

    def wait_until(
        self,
        condition: Callable[[], bool],
        *,
        timeout_s: float,
        waiting_for: Callable[[], str] = lambda: "vLLM",
    ) -> None:
        """Watch until a condition holds.

        Raises:
            StopRequestedError: somebody asked the launcher to end.
            RecipeError: the processes ended, one was lost, or the time is up (exit code 5).
        """
        deadline = time.monotonic() + timeout_s
        while True:
            # Asked first: what a process wrote before its end is in the log when it is read.
            ended = self._first_ended()
            self.poll()
            if condition():
                return
            if ended:
                raise self._failure(ended)
            if time.monotonic() > deadline:
                raise self.overdue(waiting_for(), timeout_s)
            time.sleep(POLL_SECONDS)

    def wait_for_end(self, *, timeout_s: float) -> None:
        """Watch until the first process ends by itself, with status 0.

        Raises:
            StopRequestedError: somebody asked the launcher to end.
            RecipeError: another status, a lost process, or the time is up (exit code 5).
        """
        deadline = time.monotonic() + timeout_s
        while (ended := self._first_ended()) is None:
            self.poll()
            if time.monotonic() > deadline:
                raise self.overdue("vLLM", timeout_s)
            time.sleep(POLL_SECONDS)
        if ended.tree.returncode != 0:
            raise self._failure(ended)

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
            RecipeError: a server ended by itself or lost a process (exit code 5).
        """
        self.drain()
        try:
            while True:
                self.poll()
                self.check_running()
                time.sleep(POLL_SECONDS)
        except StopRequestedError:
            return

    def check_running(self) -> None:
        """Nothing may have ended by itself.

        Raises:
            RecipeError: a process did, or a worker below it (exit code 5).
        """
        self._check_members()
        if ended := self._first_ended():
            raise self._failure(ended)

    def drain(self) -> None:
        """From now on an end is orderly: running requests are drained."""
        self._patience_s = _END_PATIENCE_SECONDS

    def accept_stop(self) -> None:
        """The request to end was heard; a second one still ends everything at once."""
        self._stop = None

    def poll(self) -> None:
        """Take note of what happened since the last look.

        Raises:
            StopRequestedError: somebody asked the launcher to end.
        """
        if self._stop is not None:
            raise StopRequestedError(self._stop.name)
        self._check()
        for item in self._running:
            with suppress(FileNotFoundError):
                item.watcher.poll()

    def overdue(self, who: str, seconds: float) -> RecipeError:
        """The error of processes, named one after another, that took too long."""
        slow = next((item for item in self._running if item.spec.name in who), None)
        return recipe_error(
            "launch.timeout",
            exit_code=ExitCode.LAUNCH,
            who=who,
            seconds=round(seconds),
            stage=slow.watcher.stage if slow else "-",
            log=slow.spec.log if slow else self._folder.log,
        )

    def _request_stop(self, number: int, _frame: FrameType | None) -> None:
        self._requests += 1
        if self.is_hurried:
            # Asked twice: whoever asks is out of patience.
            for item in self._running:
                item.tree.kill()
        self._stop = signal.Signals(number)

    def _first_ended(self) -> Running | None:
        return next((item for item in self._running if item.tree.returncode is not None), None)

    def _check_members(self) -> None:
        lost = [item for item in self.receipts if _matters(item) and not is_running(item.pid)]
        if lost:
            raise self._loss(lost[0])

    def _failure(self, ended: Running) -> RecipeError:
        ended.watcher.poll()
        log, status = ended.spec.log, ended.tree.returncode
        if self.receipts and (notice := find_death_notice(log)):
            lost = phrase("launch.noticed", notice=notice)
            return recipe_error(
                "launch.process_lost", exit_code=ExitCode.LAUNCH, lost=lost, log=log
            )
        if self.receipts:
            return recipe_error("launch.ended", exit_code=ExitCode.LAUNCH, status=status, log=log)
        item = decode_failure(log, status)
        if len(self._running) > 1 or ended.spec.name != SOLE_PROCESS:
            name, cause = ended.spec.name, message_of(item)
            told = phrase("launch.all_ended", name=name, status=status, cause=cause)
            item = replace(item, message=told.en, message_zh=told.zh)
        return RecipeError((item,), ExitCode.LAUNCH)

    def _loss(self, receipt: Receipt) -> RecipeError:
        rank, log = receipt.rank, self._folder.log
        who = phrase("receipt.core") if rank is None else phrase("receipt.worker", rank=rank)
        lost = phrase("launch.unasked", who=who, pid=receipt.pid)
        return recipe_error("launch.process_lost", exit_code=ExitCode.LAUNCH, lost=lost, log=log)


def _matters(receipt: Receipt) -> bool:
    return receipt.phase in ("core", "worker")
