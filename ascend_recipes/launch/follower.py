"""The launcher of every node but the leading one: does what that says, and reports."""

import time

from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.findings import finding
from ascend_recipes.launch.link import Message
from ascend_recipes.launch.meeting import FollowerMeeting
from ascend_recipes.launch.part import PEER_PATIENCE_SECONDS, Part
from ascend_recipes.launch.session import POLL_SECONDS, Session, StopRequestedError


class Follower:
    """Starts and ends groups when it is told to."""

    def __init__(self, part: Part) -> None:
        self._part = part
        deployment = part.deployment
        self._meeting = FollowerMeeting(*part.place, deployment.mine)
        self._session = Session(
            deployment.planned.plan, part.folder, listener=part.listener, nodes=deployment.mine
        )
        self._starting: str | None = None
        self._deadline = 0.0
        self._leaving_until: float | None = None

    def run(self) -> ExitCode:
        """Follow until the leading node says that it is over.

        Raises:
            RecipeError: a process ended or hung here, or the deployment failed (exit code 5).
            StopRequestedError: this launcher was asked to end before it met the leading one.
        """
        with self._session, self._meeting:
            self._reach()
            while (code := self._step()) is None:
                time.sleep(POLL_SECONDS)
            return code

    def _reach(self) -> None:
        part, meeting = self._part, self._meeting
        part.listener.begin("meeting")
        part.listener.detail(f"looking for node 0 at {meeting.place}")
        ours = part.deployment.agreement()
        try:
            self._session.wait_until(lambda: meeting.join(ours), timeout_s=part.ready_seconds)
        except RecipeError as error:
            if error.findings[0].id != "launch.timeout":
                raise
            seconds = f"{part.ready_seconds:.0f}"
            item = finding("cluster.no_lead", place=meeting.place, seconds=seconds)
            raise RecipeError((item,), ExitCode.LAUNCH) from None

    def _step(self) -> ExitCode | None:
        """Look around once; the exit code when it is over."""
        try:
            self._session.poll()
            if self._leaving_until is None:
                self._session.check_running()
        except StopRequestedError:
            # The leading node decides in which order things end; it is told that we want to.
            self._session.accept_stop()
            self._meeting.tell(stopping=True)
            self._leaving_until = time.monotonic() + PEER_PATIENCE_SECONDS
        while message := self._meeting.hear():
            if (code := self._obey(message)) is not None:
                return code
        self._report()
        waited = self._leaving_until is not None and time.monotonic() > self._leaving_until
        return ExitCode.INTERRUPTED if waited else None

    def _obey(self, message: Message) -> ExitCode | None:
        part, session = self._part, self._session
        match message:
            case {"start": str(group)}:
                part.start(session, group)
                self._starting = group
                self._deadline = time.monotonic() + part.ready_seconds
            case {"serving": str(url)}:
                session.drain()
                part.listener.end()
                session.state.change(status="serving", url=url)
                part.listener.serving(url, part.model_name, ())
            case {"end": str(group)}:
                if self._leaving_until is None:
                    part.listener.ending()
                    self._leaving_until = float("inf")
                session.end(group)
                self._meeting.tell(ended=group)
            case {"stop": True}:
                return ExitCode.INTERRUPTED
            case {"over": True}:
                return ExitCode.OK
        return None

    def _report(self) -> None:
        """Say that a group answers, or find that it takes too long."""
        if self._starting is None:
            return
        slow = self._part.unhealthy(self._starting)
        if not slow:
            self._part.tell_ready(self._starting)
            self._meeting.tell(ready=self._starting)
            self._starting = None
        elif time.monotonic() > self._deadline:
            raise self._session.overdue(", ".join(slow), self._part.ready_seconds)
