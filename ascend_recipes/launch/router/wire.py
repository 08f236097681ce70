"""HTTP/1.1 over asyncio streams: as much as a router between trusted machines needs."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

_MOST_HEADERS = 1 << 16
_MOST_BODY = 1 << 28
"""Bytes; prompts with images are long."""

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 502: "Bad Gateway"}
_HOP_HEADERS = frozenset({"connection", "content-length", "transfer-encoding", "host"})
"""Headers that belong to one connection and are not passed on."""


class MalformedError(Exception):
    """The other side does not speak HTTP."""


@dataclass(frozen=True)
class Request:
    """A request that was read as a whole."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def passed_on(self) -> dict[str, str]:
        """Headers that a server behind us shall see."""
        return {key: value for key, value in self.headers.items() if key not in _HOP_HEADERS}


@dataclass(frozen=True)
class Server:
    """A server behind the router."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """Host and port as a URL has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Answer:
    """The head of a response, and its body as it comes."""

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.status = status
        self.headers = headers
        self._reader, self._writer = reader, writer

    async def chunks(self) -> AsyncIterator[bytes]:
        """Pieces of the body, without their framing."""
        if "chunked" in self.headers.get("transfer-encoding", ""):
            while size := int((await self._reader.readline()).partition(b";")[0] or b"0", 16):
                yield await self._reader.readexactly(size)
                await self._reader.readline()
        elif "content-length" in self.headers:
            left = int(self.headers["content-length"])
            while left and (piece := await self._reader.read(min(left, 1 << 16))):
                left -= len(piece)
                yield piece
            if left:
                raise asyncio.IncompleteReadError(b"", left)
        else:
            while piece := await self._reader.read(1 << 16):
                yield piece

    async def whole(self) -> bytes:
        """The body at once."""
        return b"".join([piece async for piece in self.chunks()])

    def close(self) -> None:
        """Hang up; a server that is still at work learns that nobody listens."""
        self._writer.close()


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection; none at its end.

    Raises:
        MalformedError: what came is no request.
    """
    first = await reader.readline()
    if not first.strip():
        return None
    try:
        method, path, _version = first.decode("latin-1").split()
        headers = await _read_headers(reader)
        length = int(headers.get("content-length", "0"))
    except ValueError:
        raise MalformedError(first[:80]) from None
    if length > _MOST_BODY:
        raise MalformedError(f"a body of {length} bytes")
    if "chunked" in headers.get("transfer-encoding", ""):
        raise MalformedError("requests in chunks are not read")
    return Request(method, path, headers, await reader.readexactly(length))


async def ask(
    server: Server, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> Answer:
    """Send a request and read the head of its response.

    Raises:
        OSError: nobody answers, or the connection broke.
        MalformedError: the answer is no response.
    """
    reader, writer = await asyncio.open_connection(server.host, server.port)
    lines = [f"{method} {path} HTTP/1.1", f"host: {server.authority}", "connection: close"]
    lines += [f"{key}: {value}" for key, value in headers.items() if key not in _HOP_HEADERS]
    lines.append(f"content-length: {len(body)}")
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        await writer.drain()
        first = (await reader.readline()).split()
        if len(first) < 2 or not first[1].isdigit():
            raise ConnectionResetError(f"{server.authority} hung up")
        answer_headers = await _read_headers(reader)
    except BaseException:
        writer.close()
        raise
    return Answer(int(first[1]), answer_headers, reader, writer)


async def _read_headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    size = 0
    while (line := await reader.readline()).strip():
        size += len(line)
        if size > _MOST_HEADERS:
            raise MalformedError("headers without end")
        key, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise MalformedError(line[:80])
        headers[key.strip().lower()] = value.strip()
    return headers


class Reply:
    """What goes back to the client: a head once, then pieces."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.has_begun = False

    async def begin(self, status: int, content_type: str) -> None:
        """Send the head of a response whose length nobody knows yet."""
        self.has_begun = True
        self._head(status, content_type, "transfer-encoding: chunked")
        await self._writer.drain()

    async def piece(self, data: bytes) -> None:
        """Send a piece of the body."""
        if data:
            self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await self._writer.drain()

    async def finish(self) -> None:
        """Say that there are no more pieces."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def send(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """Send a whole response."""
        self.has_begun = True
        self._head(status, content_type, f"content-length: {len(body)}")
        self._writer.write(body)
        await self._writer.drain()

    async def refuse(self, status: int, message: str) -> None:
        """Send an error in the form of the OpenAI API."""
        error = {"message": message, "type": "router_error", "code": status}
        await self.send(status, _json({"error": error}))

    def _head(self, status: int, content_type: str, framing: str) -> None:
        lines = [
            f"HTTP/1.1 {status} {REASONS.get(status, 'Response')}",
            f"content-type: {content_type}",
            "server: ascend-recipes minimal router",
            "connection: close",
            framing,
        ]
        self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))


def _json(tree: Any) -> bytes:
    return json.dumps(tree, ensure_ascii=False).encode()
