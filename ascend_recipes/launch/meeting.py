"""Launchers of one deployment meet at the leading node, compare, and go through the start together.

The leading node conducts: it says which group starts and which one ends; the others do so on their
machines and say when they are done. Whoever fails says why, and everybody ends. A launcher whose
connection breaks counts as gone.
"""

import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from ascend_recipes.errors import ExitCode, Finding, RecipeError
from ascend_recipes.findings import Phrase, finding, message_of, phrase
from ascend_recipes.launch.agreement import Agreement
from ascend_recipes.launch.link import Link, Message

PROTOCOL = 1
_CONNECT_SECONDS = 2.0
_LOOK_SECONDS = 0.05
_SPEAK_SECONDS = 10.0
"""Time that a new connection may take to say who it is."""


class PeerStopError(Exception):
    """Somebody asked the launcher of another node to end."""


class Peer:
    """Another launcher, as the leading node knows it."""

    def __init__(self, link: Link, nodes: tuple[int, ...]) -> None:
        self.link = link
        self.nodes = nodes
        self.said: set[tuple[str, str]] = set()
        """What it has reported: ("ready", "prefill"), ("ended", "decode"), …"""
        self.is_leaving = False


class LeadMeeting:
    """The leading node's side."""

    def __init__(self, address: str, port: int, mine: Iterable[int], every: Iterable[int]) -> None:
        self.place = f"{address}:{port}"
        self._address, self._port = address, port
        self._missing = set(every) - set(mine)
        self._listening: socket.socket | None = None
        self._strangers: list[tuple[float, Link]] = []
        self._peers: list[Peer] = []
        self._over = False

    def __enter__(self) -> Self:
        if not self._missing:
            return self
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self._address, self._port))
        except OSError:
            listening.close()
            raise _refusal(
                finding(
                    "cluster.port_in_use",
                    at="site.port_base",
                    fix=f"site.port_base={self._port + 1000}",
                    host=self._address,
                    port=self._port,
                    owner=phrase("cluster.meeting"),
                ),
                ExitCode.ENVIRONMENT,
            ) from None
        listening.listen()
        listening.setblocking(False)
        self._listening = listening
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, RecipeError):
            self.tell(failed=error.findings[0].message)
        elif error is not None:
            self.tell(stop=True)
        for _, link in self._strangers:
            link.close()
        for peer in self._peers:
            peer.link.close()
        if self._listening is not None:
            self._listening.close()

    @property
    def missing(self) -> tuple[int, ...]:
        """Nodes whose launcher has not come yet."""
        return tuple(sorted(self._missing))

    def welcome(self, ours: Agreement) -> bool:
        """Hear who came since the last look; whether everybody is there.

        Raises:
            RecipeError: somebody would start another deployment, or claims a node twice.
        """
        self._accept()
        for entry in list(self._strangers):
            began, link = entry
            if message := link.take():
                self._strangers.remove(entry)
                self._admit(link, message, ours)
            elif link.is_lost or time.monotonic() - began > _SPEAK_SECONDS:
                self._strangers.remove(entry)
                link.close()
        return not self._missing

    def poll(self) -> None:
        """Hear what the others report.

        Raises:
            RecipeError: another node failed or is gone (exit code 5).
            PeerStopError: another node was asked to end.
        """
        self._turn_away()
        for peer in self._peers:
            while message := peer.link.take():
                self._hear(peer, message)
            if peer.link.is_lost and not self._over:
                raise _refusal(finding("cluster.peer_lost", node=_numbers(peer.nodes)))

    def tell(self, **message: str | bool) -> None:
        """Say something to every other launcher."""
        for peer in self._peers:
            peer.link.send(**message)

    def unsaid(self, what: str, group: str) -> tuple[int, ...]:
        """Nodes that have not reported something about a group."""
        return tuple(
            node for peer in self._peers if (what, group) not in peer.said for node in peer.nodes
        )

    def await_said(
        self, what: str, group: str, *, seconds: float, hurried: Callable[[], bool]
    ) -> None:
        """Wait until every other launcher has reported something, or is gone; fail for nobody.

        Args:
            what: Kind of report.
            group: What it is about.
            seconds: Longest wait.
            hurried: Whether somebody has run out of patience here.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not hurried():
            for peer in self._peers:
                while message := peer.link.take():
                    self._note(peer, message)
            waited_for = (peer for peer in self._peers if not peer.link.is_lost)
            if all((what, group) in peer.said for peer in waited_for):
                return
            time.sleep(_LOOK_SECONDS)

    def close_down(self) -> None:
        """From now on others may hang up."""
        self._over = True

    def _turn_away(self) -> None:
        """Whoever comes when every node has its launcher is told so; the rest goes on."""
        if self._missing or self._over:
            return
        self._accept()
        while self._strangers:
            _, link = self._strangers.pop()
            link.send(**_failure(finding("cluster.node_twice", node=phrase("cluster.named"))))
            link.close()

    def _accept(self) -> None:
        while self._listening is not None:
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:
                return
            self._strangers.append((time.monotonic(), Link(connection)))

    def _admit(self, link: Link, message: Message, ours: Agreement) -> None:
        nodes, theirs = message.get("nodes"), message.get("values")
        if message.get("protocol") != PROTOCOL or not isinstance(theirs, dict):
            link.close()
            return
        listed = nodes if isinstance(nodes, list) else []
        numbers = tuple(node for node in listed if isinstance(node, int))
        self._peers.append(Peer(link, numbers))
        if claimed := [node for node in numbers if node not in self._missing]:
            raise _refusal(finding("cluster.node_twice", node=claimed[0]), ExitCode.USAGE)
        if Agreement(theirs).digest != ours.digest:
            raise _refusal(
                finding(
                    "cluster.digest_differs",
                    node=_numbers(numbers),
                    theirs=Agreement(theirs).digest,
                    ours=ours.digest,
                    difference=ours.difference(theirs),
                ),
                ExitCode.FINDINGS,
            )
        self._missing -= set(numbers)

    def _note(self, peer: Peer, message: Message) -> None:
        for what in ("ready", "ended"):
            if isinstance(group := message.get(what), str):
                peer.said.add((what, group))

    def _hear(self, peer: Peer, message: Message) -> None:
        self._note(peer, message)
        if message.get("failed"):
            node = _numbers(peer.nodes)
            raise _refusal(finding("cluster.peer_failed", node=node, reason=_reason(message)))
        if message.get("stopping") and not peer.is_leaving:
            peer.is_leaving = True
            raise PeerStopError(_numbers(peer.nodes))


class FollowerMeeting:
    """The side of every other node."""

    def __init__(self, address: str, port: int, mine: Iterable[int]) -> None:
        self.place = f"{address}:{port}"
        self._address, self._port = address, port
        self._mine = tuple(mine)
        self._link: Link | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._link is None:
            return
        if isinstance(error, RecipeError) and error.findings[0].id not in _HEARD:
            self._link.send(**_failure(error.findings[0]))
        elif error is not None:
            self._link.send(stopping=True)
        self._link.close()

    def join(self, ours: Agreement) -> bool:
        """Try once to reach the leading node; whether it answered."""
        with suppress(OSError):
            connection = socket.create_connection(
                (self._address, self._port), timeout=_CONNECT_SECONDS
            )
            self._link = Link(connection)
            self._link.send(protocol=PROTOCOL, nodes=list(self._mine), values=dict(ours.values))
        return self._link is not None

    def tell(self, **message: str | bool) -> None:
        """Say something to the leading node."""
        assert self._link is not None
        self._link.send(**message)

    def hear(self) -> Message | None:
        """What the leading node said since the last look.

        Raises:
            RecipeError: the deployment failed, or the leading node is gone (exit code 5).
        """
        assert self._link is not None
        message = self._link.take()
        if message and message.get("failed"):
            raise _refusal(finding("cluster.peer_failed", node="0", reason=_reason(message)))
        if message is None and self._link.is_lost:
            raise _refusal(finding("cluster.peer_lost", node="0"))
        return message


_HEARD = ("cluster.peer_failed", "cluster.peer_lost")
"""Failures that came from the other side, which need not be told them."""


def _failure(item: Finding) -> dict[str, str]:
    """A failure as it is told to others."""
    told = message_of(item)
    return {"failed": told.en, "failed_zh": told.zh}


def _reason(message: Message) -> Phrase:
    said = str(message["failed"])
    return Phrase(said, str(message.get("failed_zh") or said))


def _numbers(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes))


def _refusal(item: Finding, code: ExitCode = ExitCode.LAUNCH) -> RecipeError:
    return RecipeError((item,), code)
