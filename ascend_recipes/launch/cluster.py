"""Starts a rendered deployment and stays with it until it ends.

Roles start in order, each when the one before it answers; the router comes last, then one request
through everything. The launcher of node 0 conducts, the others follow it (`meeting`). Whatever ends
by itself, or hangs before it is ready, ends everything with one message.
"""

import sys
from functools import partial

from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.findings import finding
from ascend_recipes.launch.canary import check_canary
from ascend_recipes.launch.deployment import Deployment
from ascend_recipes.launch.folder import RunFolder
from ascend_recipes.launch.follower import Follower
from ascend_recipes.launch.http import ServerClient
from ascend_recipes.launch.listener import ServeListener
from ascend_recipes.launch.meeting import LeadMeeting, PeerStopError
from ascend_recipes.launch.part import PEER_PATIENCE_SECONDS, Part
from ascend_recipes.launch.routing import router_spec
from ascend_recipes.launch.session import Session, StopRequestedError

_ROUTER_SECONDS = 120.0


def run_deployment(deployment: Deployment, folder: RunFolder, listener: ServeListener) -> ExitCode:
    """Start, serve, and end when somebody asks.

    Raises:
        RecipeError: a process did not start or did not stay up, here or on another node, or the
            nodes do not agree (exit code 5). No process is left here in either case.
    """
    part = Part(deployment, folder, listener)
    listener.started(folder.path, part.write_down())
    try:
        return _Conductor(part).run() if deployment.leads else Follower(part).run()
    except (StopRequestedError, PeerStopError):
        return ExitCode.INTERRUPTED


class _Conductor:
    """The launcher of node 0."""

    def __init__(self, part: Part) -> None:
        self._part = part
        deployment = part.deployment
        address, port = part.place
        self._meeting = LeadMeeting(address, port, deployment.mine, range(deployment.nodes))
        self._session = Session(
            deployment.planned.plan,
            part.folder,
            listener=part.listener,
            check=self._meeting.poll,
            nodes=deployment.mine,
        )

    def run(self) -> ExitCode:
        """Lead the start of all nodes, serve, and lead the end."""
        part, listener = self._part, self._part.listener
        with self._session as session, self._meeting as meeting:
            self._gather()
            for group in part.deployment.groups:
                meeting.tell(start=group)
                part.start(session, group)
                part.wait(session, group, partial(meeting.unsaid, "ready", group))
            clients = self._start_router() or part.clients
            for client in clients:
                check_canary(client, part.folder.path)
            listener.end()
            url = clients[0].url
            session.state.change(status="serving", url=url)
            listener.serving(url, clients[0].model_name(), ())
            meeting.tell(serving=url)
            self._watch()
            listener.ending()
            self._end()
        return ExitCode.OK

    def _gather(self) -> None:
        """Wait until the launcher of every node has come with the same deployment."""
        meeting, part = self._meeting, self._part
        if not meeting.missing:
            return
        part.listener.begin("meeting")
        nodes = ", ".join(map(str, meeting.missing))
        part.listener.detail(f"waiting at {meeting.place} for node {nodes}")
        ours = part.deployment.agreement()
        try:
            self._session.wait_until(lambda: meeting.welcome(ours), timeout_s=part.ready_seconds)
        except RecipeError as error:
            if error.findings[0].id != "launch.timeout":
                raise
            missing = ", ".join(map(str, meeting.missing))
            item = finding(
                "cluster.nodes_missing",
                missing=missing,
                seconds=f"{part.ready_seconds:.0f}",
                place=meeting.place,
            )
            raise RecipeError((item,), ExitCode.LAUNCH) from None

    def _start_router(self) -> tuple[ServerClient, ...]:
        """Start what spreads requests, where there is something to spread."""
        part, plan = self._part, self._part.deployment.router
        if plan is None:
            return ()
        part.listener.begin("router")
        spec = router_spec(plan, part.folder, sys.executable, part.deployment.outer)
        self._session.start(spec, _Silent())
        self._session.wait_until(
            plan.client.is_healthy, timeout_s=_ROUTER_SECONDS, waiting_for=lambda: "router"
        )
        part.listener.detail(f"{plan.kind} on port {plan.port} ({plan.because})")
        return (plan.client,)

    def _watch(self) -> None:
        """Stay until somebody asks to end, on whichever node."""
        try:
            self._session.watch()
        except PeerStopError:
            return

    def _end(self) -> None:
        """End everything in the reverse order of the start, node by node the same group."""
        meeting, session = self._meeting, self._session
        session.accept_stop()
        meeting.close_down()
        for group in (*session.groups, *reversed(self._part.deployment.groups)):
            meeting.tell(end=group)
            session.end(group)
            meeting.await_said(
                "ended",
                group,
                seconds=PEER_PATIENCE_SECONDS,
                hurried=lambda: session.is_hurried,
            )
        meeting.tell(over=True)


class _Silent:
    """The router's log is not vLLM's: nothing is read from it."""

    def begin(self, stage: str) -> None:
        """Nothing to show."""

    def detail(self, text: str) -> None:
        """Nothing to show."""

    def end(self) -> None:
        """Nothing to show."""

    def abandon(self) -> None:
        """Nothing to show."""
