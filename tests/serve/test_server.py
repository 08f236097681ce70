"""A real client against `ascend-run serve` on the tiny model."""

import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.serve.launcher import Launcher, still_there

pytestmark = [pytest.mark.serve, pytest.mark.vllm]

MODEL = "qwen3_5_27b"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    launcher = Launcher(tmp_path_factory.mktemp("server"))
    launcher.ready = launcher.wait_until_ready()
    yield launcher
    launcher.end()


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def ask(client, text, **options):
    messages = [{"role": "user", "content": text}]
    settings = {"max_tokens": 8, "temperature": 0} | options
    return client.chat.completions.create(model=MODEL, messages=messages, **settings)


def said(message):
    """The tiny model rarely closes its thinking, so that all it says may be reasoning."""
    return (message.content or "") + (getattr(message, "reasoning", None) or "")


def test_ready_document(server):
    tree = server.ready
    assert (tree["command"], tree["ok"], tree["url"], tree["model"]) == (
        "serve",
        True,
        server.url,
        MODEL,
    )
    assert list(tree["stages"])[-1] == "ready"
    assert tree["findings"] == []
    folder = Path(tree["run_folder"])
    assert {"plan.json", "argv.json", "env.json", "vllm.log"} <= {p.name for p in folder.iterdir()}


def test_chat(client):
    answer = ask(client, "你好，世界")
    assert answer.usage.completion_tokens == 8
    assert said(answer.choices[0].message)
    assert said(ask(client, "你好，世界").choices[0].message) == said(answer.choices[0].message)


def test_streaming_gives_the_same_text_in_pieces(client):
    whole = said(ask(client, "Hello, world").choices[0].message)
    with ask(client, "Hello, world", stream=True) as stream:
        pieces = [said(chunk.choices[0].delta) for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole
    assert len([piece for piece in pieces if piece]) > 1


def test_two_requests_at_once_do_not_disturb_each_other(client):
    texts = ("it's", "a=b")
    alone = [said(ask(client, text, max_tokens=24).choices[0].message) for text in texts]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda text: ask(client, text, max_tokens=24), texts))
    assert [said(answer.choices[0].message) for answer in together] == alone


def test_bad_requests_are_refused_and_the_server_lives_on(client):
    with pytest.raises(openai.BadRequestError):
        ask(client, "x", max_tokens=10**6)
    with pytest.raises(openai.BadRequestError):
        ask(client, "x", temperature=-1)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=[{"role": "user", "content": "x"}])
    assert said(ask(client, "x").choices[0].message)


def test_a_second_server_on_the_same_port_is_refused(server, tmp_path):
    second = Launcher(tmp_path, f"serving.port={server.port}")
    assert second.wait() == 4
    (finding,) = [f for f in second.document["findings"] if f["id"] != "override.repeated"]
    assert finding["id"] == "environment.port_in_use"
    assert "serving.port=" in finding["fix"]


def test_sigterm_drains_and_leaves_nothing(server, client):
    """Last: it ends the server of this module."""
    below = server.descendants()
    assert len(below) >= 2
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, client, "Hello", max_tokens=48, stream=True)
        stream = running.result(60)
        first = next(iter(stream))
        assert first.choices
        server.process.send_signal(signal.SIGTERM)
        rest = [chunk for chunk in stream if chunk.choices]
    assert rest[-1].choices[0].finish_reason == "length"
    assert server.wait() == 0
    assert "no process is left" in server.stderr
    assert still_there(below) == set()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.port)) != 0
    receipts = (Path(server.ready["run_folder"]) / "receipts").iterdir()
    phases = {json.loads(path.read_text())["phase"] for path in receipts}
    assert {"frontend", "core"} <= phases
