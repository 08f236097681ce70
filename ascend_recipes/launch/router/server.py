"""The router's process: `python -m ascend_recipes.launch.router.server FILE`."""

import asyncio
import contextlib
import json
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascend_recipes.launch.router.handshake import (
    Body,
    StreamedAnswer,
    decode_body,
    is_recomputed,
    layerwise_decode_body,
    layerwise_prefill_body,
    prefill_body,
    request_ids,
)
from ascend_recipes.launch.router.wire import (
    Answer,
    MalformedError,
    Reply,
    Request,
    Server,
    ask,
    read_request,
)

OK = 200
DRAIN_SECONDS = 30.0
COMPLETIONS = ("/v1/completions", "/v1/chat/completions")
CALLBACK = "/v1/metaserver"
_MOST_RECOMPUTATIONS = 8
_STREAM = "text/event-stream"


class UpstreamError(Exception):
    """A server behind the router refused; its answer goes to the client."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status, self.body = status, body


@dataclass
class Waiting:
    """A request whose decode server will call back for its prompt."""

    path: str
    body: Body
    headers: Mapping[str, str]
    expected: tuple[str, ...]
    offered: dict[str, Any] = field(default_factory=dict)


class Router:
    """Spreads requests over servers; each goes to the least busy one of a role."""

    def __init__(
        self, prefill: Sequence[Server], decode: Sequence[Server], *, callback: str, layerwise: bool
    ) -> None:
        self._servers = {"prefill": tuple(prefill), "decode": tuple(decode)}
        self._callback, self._layerwise = callback, layerwise
        self._busy: Counter[Server] = Counter()
        self._waiting: dict[str, Waiting] = {}
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a connection."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        reply = Reply(writer)
        try:
            request = await read_request(reader)
            if request is not None:
                await self._with_listener(reader, self._answer(request, reply))
        except UpstreamError as error:
            if not reply.has_begun:
                await reply.send(error.status, error.body)
        except (OSError, MalformedError, asyncio.IncompleteReadError) as error:
            if not reply.has_begun:
                with contextlib.suppress(OSError):
                    await reply.refuse(502, f"no server could answer: {error}")
        finally:
            self._open.discard(task)
            writer.close()

    async def drain(self) -> None:
        """Let requests that have begun come to their end."""
        if self._open:
            await asyncio.wait(self._open, timeout=DRAIN_SECONDS)

    async def _with_listener(self, reader: asyncio.StreamReader, work: Awaitable[None]) -> None:
        """Do the work while the client listens; nobody computes for one that hung up."""
        working = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(reader.read(1))
        done, _ = await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if working not in done:
            working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working

    async def _answer(self, request: Request, reply: Reply) -> None:
        if request.path == "/health":
            await reply.send(OK, b"{}")
        elif request.path == CALLBACK:
            await self._prefill_on_callback(json.loads(request.body))
            await reply.send(OK, b'{"status": "ok"}')
        elif request.method == "POST" and request.path in COMPLETIONS:
            await self._complete(request, reply)
        else:
            async with self._least_busy("decode") as server:
                answer = await ask(
                    server, request.method, request.path, request.passed_on, request.body
                )
                await _pass_on(answer, reply)

    async def _complete(self, request: Request, reply: Reply) -> None:
        try:
            body = json.loads(request.body)
        except ValueError:
            await reply.refuse(400, "the request is no JSON")
            return
        answered = StreamedAnswer()
        more: Body | None = body
        for _ in range(_MOST_RECOMPUTATIONS):
            assert more is not None
            async with self._decoding(request, more) as answer:
                if answer.status != OK:
                    raise UpstreamError(answer.status, await answer.whole())
                if body.get("stream"):
                    finished = await _stream(answer, reply, answered)
                    more = answered.continuation(body)
                else:
                    finished = await _send_whole(answer, reply)
            if finished:
                return
            if more is None:
                break
        message = "the decode server ran out of cache again and again; send the request once more"
        await _give_up(reply, message)

    @contextlib.asynccontextmanager
    async def _decoding(self, request: Request, body: Body) -> AsyncIterator[Answer]:
        """The decode server's answer to a request whose prompt was, or will be, prefilled."""
        request_id = uuid.uuid4().hex
        headers = {**request.passed_on, "x-request-id": request_id}
        if self._layerwise:
            expected = request_ids(request.path, request_id, body)
            waiting = Waiting(request.path, body, headers, expected)
            self._waiting.update(dict.fromkeys(expected, waiting))
            whole = layerwise_decode_body(body, self._callback)
        else:
            expected = ()
            prefilled = await self._prefill(request.path, prefill_body(body), headers)
            whole = decode_body(body, prefilled)
        try:
            async with self._least_busy("decode") as server:
                answer = await ask(server, "POST", request.path, headers, _text(whole))
                try:
                    yield answer
                finally:
                    answer.close()
        finally:
            for name in expected:
                self._waiting.pop(name, None)

    async def _prefill(self, path: str, body: Body, headers: Mapping[str, str]) -> dict[str, Any]:
        async with self._least_busy("prefill") as server:
            answer = await ask(server, "POST", path, headers, _text(body))
            text = await answer.whole()
            answer.close()
        if answer.status != OK:
            raise UpstreamError(answer.status, text)
        tree = json.loads(text)
        return tree if isinstance(tree, dict) else {}

    async def _prefill_on_callback(self, offered: dict[str, Any]) -> None:
        """A decode server has room; once all parts of a request have, its prompt is computed."""
        name = str(offered.get("request_id"))
        waiting = self._waiting.get(name)
        if waiting is None:
            raise UpstreamError(404, _text({"error": f"nobody waits for {name}"}))
        waiting.offered[name] = offered
        if set(waiting.offered) != set(waiting.expected):
            return
        params = dict(waiting.offered[waiting.expected[0]])
        if len(waiting.expected) > 1:
            params["batch_kv_transfer_params"] = waiting.offered
        body = layerwise_prefill_body(waiting.body, params)
        await self._prefill(waiting.path, body, waiting.headers)

    @contextlib.asynccontextmanager
    async def _least_busy(self, role: str) -> AsyncIterator[Server]:
        server = min(self._servers[role], key=lambda item: self._busy[item])
        self._busy[server] += 1
        try:
            yield server
        finally:
            self._busy[server] -= 1


async def _pass_on(answer: Answer, reply: Reply) -> None:
    try:
        await reply.begin(answer.status, answer.headers.get("content-type", "application/json"))
        async for piece in answer.chunks():
            await reply.piece(piece)
        await reply.finish()
    finally:
        answer.close()


async def _send_whole(answer: Answer, reply: Reply) -> bool:
    """Send an unstreamed answer, unless it was given up and has to be asked for once more."""
    text = await answer.whole()
    tree = json.loads(text)
    if is_recomputed(tree):
        return False
    await reply.send(OK, text)
    return True


async def _stream(answer: Answer, reply: Reply, answered: StreamedAnswer) -> bool:
    """Pass events on as they come; whether the answer came to its end."""
    if not reply.has_begun:
        await reply.begin(OK, answer.headers.get("content-type", _STREAM))
    async for event in _events(answer):
        data = event.partition(b"data:")[2].strip()
        if data.startswith(b"{"):
            chunk = json.loads(data)
            if is_recomputed(chunk):
                return False
            answered.add(chunk)
        await reply.piece(event)
    await reply.finish()
    return True


async def _events(answer: Answer) -> AsyncIterator[bytes]:
    """Server-sent events, each with the empty line that ends it."""
    rest = b""
    async for piece in answer.chunks():
        *events, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            yield event + b"\n\n"
    if rest.strip():
        yield rest


async def _give_up(reply: Reply, message: str) -> None:
    if not reply.has_begun:
        await reply.refuse(502, message)
        return
    error = {"error": {"message": message, "type": "router_error", "code": 502}}
    await reply.piece(b"data: " + _text(error) + b"\n\ndata: [DONE]\n\n")
    await reply.finish()


def _text(tree: object) -> bytes:
    return json.dumps(tree, ensure_ascii=False).encode()


async def run_router(settings: Mapping[str, Any], say: Callable[[str], object]) -> None:
    """Route until the process is asked to end, then let requests finish."""
    host, port = settings["host"], settings["port"]
    router = Router(
        [Server(*item) for item in settings["prefill"]],
        [Server(*item) for item in settings["decode"]],
        callback=f"http://{Server(settings['address'], port).authority}{CALLBACK}",
        layerwise=settings["layerwise"],
    )
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    listening = await asyncio.start_server(router.serve, host, port)
    say(f"minimal router of ascend-recipes on {host}:{port}: no fairness, no retries, one process")
    await asked.wait()
    listening.close()
    await router.drain()


def main() -> None:
    """Read the settings that the launcher wrote and route."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    asyncio.run(run_router(settings, say))


if __name__ == "__main__":
    main()
