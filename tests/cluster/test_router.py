"""The minimal router, in this process, between servers that are functions."""

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ascend_recipes.launch.members import name_members
from ascend_recipes.launch.router.handshake import StreamedAnswer, prefill_body, request_ids
from ascend_recipes.launch.router.server import CALLBACK, Router
from ascend_recipes.launch.router.wire import Server
from ascend_recipes.launch.routing import plan_router
from tests.cluster.rig import wait_for

pytestmark = pytest.mark.serve


class Upstream(BaseHTTPRequestHandler):
    """Hands each request to a function, which yields pieces of the body after the status."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._answer(None)

    def do_POST(self):
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body):
        status, pieces = self.server.behave(self, body)
        self.send_response(status)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        try:
            for piece in pieces:
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.server.was_left = True


class UpstreamServer(ThreadingHTTPServer):
    daemon_threads = True
    was_left = False

    def __init__(self, behave: Callable) -> None:
        super().__init__(("127.0.0.1", 0), Upstream)
        self.seen: list[dict] = []

        def record(handler, body):
            self.seen.append(body)
            return behave(handler, body)

        self.behave = record


@contextmanager
def routing(prefill: Callable, *decode: Callable, layerwise: bool = False) -> Iterator:
    """A router in a thread; yields its port and the servers behind it."""
    servers = [UpstreamServer(behave) for behave in (prefill, *decode)]
    threads = [threading.Thread(target=server.serve_forever) for server in servers]
    places = [Server("127.0.0.1", server.server_address[1]) for server in servers]
    ready, loop = threading.Event(), asyncio.new_event_loop()
    found: dict = {}

    async def run():
        found["stop"] = asyncio.Event()
        listening = await asyncio.start_server(
            lambda r, w: found["router"].serve(r, w), "127.0.0.1"
        )
        port = found["port"] = listening.sockets[0].getsockname()[1]
        callback = f"http://127.0.0.1:{port}{CALLBACK}"
        found["router"] = Router(places[:1], places[1:], callback=callback, layerwise=layerwise)
        ready.set()
        await found["stop"].wait()
        listening.close()
        await found["router"].drain()

    threads.append(threading.Thread(target=loop.run_until_complete, args=(run(),)))
    for thread in threads:
        thread.start()
    ready.wait(10)
    try:
        yield found["port"], servers
    finally:
        loop.call_soon_threadsafe(found["stop"].set)
        threads[-1].join(20)
        loop.close()
        for server, thread in zip(servers, threads, strict=False):
            server.shutdown()
            thread.join(5)
            server.server_close()


def ask(port, path, body, method="POST", headers=None):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    text = body if isinstance(body, str) else json.dumps(body)
    link.request(method, path, text, headers or {})
    response = link.getresponse()
    answer = response.read()
    link.close()
    return response.status, answer


def completion(text, **choice):
    tree = {"choices": [{"index": 0, "text": text, **choice}]}
    return json.dumps(tree).encode()


def event(text, **choice):
    return b"data: " + completion(text, **choice) + b"\n\n"


def prefilled(handler, body):
    return 200, [json.dumps({"choices": [], "kv_transfer_params": {"blocks": [1]}}).encode()]


def test_stream_arrives_piece_by_piece():
    gate = threading.Event()

    def decode(handler, body):
        def pieces():
            yield event("a")
            gate.wait(10)
            yield event("b") + b"data: [DONE]\n\n"

        return 200, pieces()

    with routing(prefilled, decode) as (port, (first, second)):
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        link.request("POST", "/v1/completions", json.dumps({"prompt": "p", "stream": True}))
        response = link.getresponse()
        assert json.loads(response.readline()[5:])["choices"][0]["text"] == "a"
        gate.set()
        rest = response.read()
        link.close()
    assert b'"b"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    assert first.seen[0]["stream"] is False
    assert second.seen == [{"prompt": "p", "stream": True, "kv_transfer_params": {"blocks": [1]}}]


def test_streamed_request_that_decode_gives_up_goes_on_where_it_was():
    turns = []

    def decode(handler, body):
        turns.append(body)
        if len(turns) == 1:
            given_up = event("", stop_reason="recomputed")
            return 200, [event("Hello"), event(" wor"), given_up]
        return 200, [event("ld"), b"data: [DONE]\n\n"]

    with routing(prefilled, decode) as (port, (first, _)):
        body = {"prompt": "Say: ", "stream": True, "max_tokens": 10}
        _, answer = ask(port, "/v1/completions", body)
    texts = [
        json.loads(line[5:])["choices"][0]["text"]
        for line in answer.decode().split("\n\n")
        if line.startswith("data: {")
    ]
    assert texts == ["Hello", " wor", "ld"]
    assert turns[1]["prompt"] == "Say: Hello wor"
    assert turns[1]["max_tokens"] == 8
    assert first.seen[1]["prompt"] == "Say: Hello wor", "prefill computes what decode dropped"


def test_whole_request_that_decode_gives_up_is_asked_for_again():
    turns = []

    def decode(handler, body):
        turns.append(body)
        if len(turns) < 3:
            return 200, [completion("half", stop_reason="recomputed")]
        return 200, [completion("whole", finish_reason="stop")]

    with routing(prefilled, decode) as (port, _):
        _, answer = ask(port, "/v1/completions", {"prompt": "p", "max_tokens": 10})
    assert json.loads(answer)["choices"][0]["text"] == "whole"
    assert turns[0] == turns[1] == turns[2]


def test_request_that_is_given_up_for_ever_ends_in_an_error():
    def decode(handler, body):
        return 200, [completion("half", stop_reason="recomputed")]

    with routing(prefilled, decode) as (port, (_, second)):
        status, answer = ask(port, "/v1/completions", {"prompt": "p"})
    assert status == 502
    assert "ran out of cache" in json.loads(answer)["error"]["message"]
    assert len(second.seen) == 8


def test_decode_that_calls_back_for_the_prompt():
    called = []

    def decode(handler, body):
        params = body["kv_transfer_params"]
        port = int(params["metaserver"].rpartition(":")[2].partition("/")[0])
        names = [f"cmpl-{handler.headers['x-request-id']}-{index}" for index in range(2)]
        for name in names:
            offer = {"request_id": name, "room": name[-1]}
            called.append(ask(port, CALLBACK, offer)[0])
        return 200, [completion("done")]

    with routing(prefilled, decode, layerwise=True) as (port, (first, second)):
        _, answer = ask(port, "/v1/completions", {"prompt": ["a", "b"]})
        stray, _ = ask(port, CALLBACK, {"request_id": "nobody"})
    assert json.loads(answer)["choices"][0]["text"] == "done"
    assert called == [200, 200]
    (body,) = first.seen
    assert (body["prompt"], body["max_tokens"]) == (["a", "b"], 1)
    offers = body["kv_transfer_params"]["batch_kv_transfer_params"]
    assert sorted(item["room"] for item in offers.values()) == ["0", "1"]
    assert second.seen[0]["kv_transfer_params"]["do_remote_prefill"] is True
    assert stray == 404


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_refusal_of_a_server_reaches_the_client(role):
    def refuse(handler, body):
        return 400, [b'{"error": {"message": "too long"}}']

    def decode(handler, body):
        return 200, [completion("x")]

    pair = (refuse, decode) if role == "prefill" else (prefilled, refuse)
    with routing(*pair) as (port, _):
        status, answer = ask(port, "/v1/completions", {"prompt": "p"})
    assert (status, json.loads(answer)["error"]["message"]) == (400, "too long")


def test_least_busy_server_and_headers_of_the_client():
    gate = threading.Event()
    keys = []

    def decode(handler, body):
        keys.append(handler.headers["Authorization"])
        gate.wait(10)
        return 200, [completion("x")]

    with routing(prefilled, decode, decode) as (port, (_, one, two)):
        headers = {"Authorization": "Bearer k"}
        asking = [
            threading.Thread(
                target=ask, args=(port, "/v1/completions", {"prompt": "p"}, "POST", headers)
            )
            for _ in range(4)
        ]
        for thread in asking:
            thread.start()
        wait_for(lambda: len(one.seen) + len(two.seen) == 4)
        assert (len(one.seen), len(two.seen)) == (2, 2)
        gate.set()
        for thread in asking:
            thread.join(10)
    assert keys == ["Bearer k"] * 4


def test_nobody_computes_for_a_client_that_hung_up():
    def decode(handler, body):
        def pieces():
            for _ in range(2000):
                yield event("x" * 1000)
                threading.Event().wait(0.005)

        return 200, pieces()

    with routing(prefilled, decode) as (port, (_, second)):
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        link.request("POST", "/v1/completions", json.dumps({"prompt": "p", "stream": True}))
        link.getresponse().readline()
        link.close()
        wait_for(lambda: second.was_left, seconds=8)


def test_other_paths_and_nonsense():
    def decode(handler, body):
        return 200, [json.dumps({"path": handler.path}).encode()]

    with routing(prefilled, decode) as (port, _):
        assert json.loads(ask(port, "/v1/models", "", "GET")[1]) == {"path": "/v1/models"}
        assert ask(port, "/health", "", "GET")[0] == 200
        assert ask(port, "/v1/completions", "nonsense")[0] == 400


def test_prefill_makes_one_token_whatever_the_client_asks():
    body = {"messages": [], "stream": True, "stream_options": {}, "max_completion_tokens": 9}
    asked = prefill_body(body)
    assert (asked["max_tokens"], asked["max_completion_tokens"], asked["stream"]) == (1, 1, False)
    assert "stream_options" not in asked
    assert body["stream"] is True, "the client's request is left as it is"


def test_chat_goes_on_with_its_last_message():
    answered = StreamedAnswer()
    for text in ("你", "好"):
        answered.add({"choices": [{"delta": {"content": text}, "token_ids": [1, 2]}]})
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
    more = answered.continuation(body)
    assert more["messages"][-1] == {"role": "assistant", "content": "你好"}
    assert more["continue_final_message"] is True
    assert more["max_tokens"] == 6
    answered.add({"choices": [{"delta": {"reasoning": "hm"}}]})
    assert answered.continuation(body) is None


@pytest.mark.parametrize(
    ("path", "prompt", "wanted"),
    [
        ("/v1/completions", "a", ("cmpl-r-0",)),
        ("/v1/completions", [1, 2, 3], ("cmpl-r-0",)),
        ("/v1/completions", ["a", "b"], ("cmpl-r-0", "cmpl-r-1")),
        ("/v1/completions", [[1], [2]], ("cmpl-r-0", "cmpl-r-1")),
        ("/v1/chat/completions", None, ("chatcmpl-r",)),
    ],
)
def test_names_that_vllm_gives_to_requests(path, prompt, wanted):
    assert request_ids(path, "r", {"prompt": prompt}) == wanted


@pytest.mark.parametrize(
    ("recipe", "addresses", "bound"),
    [
        ("qwen3_5_397b_a17b_w8a8_a3_2n_pd", "10.0.0.1,10.0.0.2", "10.0.0.1"),
        ("qwen3_5_397b_a17b_w8a8_a3_2n_pd", "127.0.0.1,127.0.0.1", "127.0.0.1"),
        ("qwen3_5_27b_w8a8_a3_2n_pd", "10.0.0.1,10.0.0.2", "127.0.0.1"),
    ],
)
def test_decode_servers_can_call_the_router_back(recipe, addresses, bound, plan):
    planned = plan(f"recipe={recipe}", "runtime=vllm_ascend", f"site.node_addresses=[{addresses}]")
    found = plan_router(planned.resolved.recipe, name_members(planned.commands), {})
    assert found.host == bound
