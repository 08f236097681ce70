"""Lines of JSON between two launchers."""

import json
import queue
import socket
import threading
from contextlib import suppress

from ascend_recipes.schema.base import Json

_KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 10),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 3),
)
"""Seconds of silence, seconds between questions, and questions without an answer."""

Message = dict[str, Json]

_LONGEST_LINE = 1 << 20
"""Bytes; a stranger that sends more is no launcher."""


class Link:
    """One connection; a thread reads, so that nobody ever waits for the network."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A machine that loses power says nothing; the kernel finds out, within half a minute.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self._connection = connection
        self._received: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True, name="link")
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Whether the other side is gone and everything that it said has been taken."""
        return self._closed.is_set() and self._received.empty()

    def send(self, **message: Json) -> None:
        """Say something; a side that is gone hears nothing."""
        line = json.dumps(message, ensure_ascii=False).encode() + b"\n"
        with suppress(OSError):
            self._connection.sendall(line)

    def take(self) -> Message | None:
        """The next message, if there is one."""
        try:
            return self._received.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._thread.join(1.0)

    def _read(self) -> None:
        try:
            with self._connection.makefile("rb") as stream:
                while line := stream.readline(_LONGEST_LINE):
                    message = json.loads(line)
                    if not isinstance(message, dict):
                        break
                    self._received.put(message)
        except (OSError, ValueError):
            pass
        finally:
            self._closed.set()
