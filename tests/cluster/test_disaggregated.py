"""Prefill, decode and a router in front: order, handshake, failures, drain."""

import http.client
import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.rig import DISAGGREGATED, wait_for

pytestmark = pytest.mark.serve


def ask(port, path, body):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    link.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = link.getresponse()
    tree = json.loads(response.read())
    link.close()
    return response, tree


def indices(events, what, who):
    return [i for i, (event, name) in enumerate(events) if event == what and name.startswith(who)]


def test_roles_start_in_order_and_drain_in_reverse(place):
    place.behave(prefill_1="late:0.6")
    launcher = place.launch(*DISAGGREGATED)
    launcher.wait_until_ready()
    events = place.events
    assert max(indices(events, "healthy", "prefill")) < min(indices(events, "started", "decode"))
    assert max(indices(events, "healthy", "decode")) < min(indices(events, "asked", "prefill"))
    assert [item["name"] for item in launcher.state["processes"]] == [
        "prefill-rank0",
        "prefill-rank1",
        "decode-rank0",
        "decode-rank1",
        "router",
    ]
    assert launcher.terminate() == 0
    drained = [name for what, name in place.events if what == "drained"]
    assert [name[:-2] for name in drained] == ["decode", "decode", "prefill", "prefill"]


def test_each_rank_has_its_own_place(place):
    launcher = place.launch(*DISAGGREGATED)
    launcher.wait_until_ready()
    argv = {name: place.record(name)["argv"] for name in ("prefill-0", "prefill-1", "decode-1")}
    assert launcher.terminate() == 0
    ports = {name: int(words[words.index("--port") + 1]) for name, words in argv.items()}
    assert ports["prefill-0"] != ports["prefill-1"]
    assert place.port not in ports.values(), "clients know the router's port only"
    sides = {
        name: json.loads(words[words.index("--kv-transfer-config") + 1])
        for name, words in argv.items()
    }
    assert (
        sides["prefill-0"]["kv_connector_extra_config"]
        == sides["decode-1"]["kv_connector_extra_config"]
    )
    assert sides["prefill-0"]["engine_id"] != sides["decode-1"]["engine_id"]


def test_request_goes_through_prefill_and_decode(place):
    launcher = place.launch(*DISAGGREGATED)
    launcher.wait_until_ready()
    before = len(place.requests)
    response, answer = ask(place.port, "/v1/completions", {"prompt": "你好", "max_tokens": 9})
    assert launcher.terminate() == 0
    assert response.status == 200
    assert "minimal router" in response.headers["server"]
    assert answer["choices"][0]["text"].startswith("from decode")
    prefill, decode = place.requests[before:]
    assert prefill["name"].startswith("prefill")
    assert (prefill["body"]["max_tokens"], prefill["body"]["stream"]) == (1, False)
    assert prefill["body"]["kv_transfer_params"]["do_remote_decode"] is True
    assert decode["body"] == {
        "prompt": "你好",
        "max_tokens": 9,
        "kv_transfer_params": {"remote_engine_id": "0", "remote_host": prefill["name"]},
    }


@pytest.mark.parametrize(
    ("behaviour", "words", "id", "text"),
    [
        ({"prefill_1": "crash"}, (), "log.cache_memory_negative", "prefill-rank1 ended"),
        ({"decode": "crash"}, (), "log.cache_memory_negative", "decode-rank"),
        (
            {"decode_0": "hang"},
            ("serving.ready_timeout_s=1",),
            "launch.timeout",
            "decode-rank0 was not ready",
        ),
        ({"decode": "mute"}, (), "launch.canary", "no cache"),
    ],
)
def test_whatever_fails_ends_everything_with_one_message(place, behaviour, words, id, text):
    place.behave(**behaviour)
    launcher = place.launch(*DISAGGREGATED, *words)
    assert launcher.wait() == 5
    assert list(launcher.findings) == [id]
    assert text in launcher.findings[id]
    if "prefill_1" in behaviour:
        assert not indices(place.events, "started", "decode")


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_process_that_dies_later_ends_everything(place, role):
    place.behave(**{f"{role}_1": "die:2"})
    launcher = place.launch(*DISAGGREGATED)
    launcher.wait_until_ready()
    assert launcher.wait() == 5
    assert f"{role}-rank1 ended with status 3" in launcher.stderr


def test_router_that_dies_ends_everything(place):
    launcher = place.launch(*DISAGGREGATED)
    launcher.wait_until_ready()
    router = launcher.state["processes"][-1]
    assert router["name"] == "router"
    os.kill(router["identity"]["pid"], signal.SIGKILL)
    assert launcher.wait() == 5
    assert "router ended with status -9" in launcher.stderr


def test_request_to_end_during_the_start(place):
    place.behave(decode="hang")
    launcher = place.launch(*DISAGGREGATED)
    wait_for(lambda: indices(place.events, "started", "decode"))
    assert launcher.terminate() == 130


def test_second_request_does_not_wait_for_the_deaf(place):
    place.behave(decode="deaf")
    launcher = place.launch(*DISAGGREGATED)
    launcher.wait_until_ready()
    launcher.process.send_signal(signal.SIGTERM)
    time.sleep(1.0)
    assert launcher.process.poll() is None, "a server may finish its requests"
    began = time.monotonic()
    assert launcher.terminate() == 0
    assert time.monotonic() - began < 15


def test_ports_that_meet_are_refused_before_the_start(place):
    words = (f"site.port_base={place.port}",)
    launcher = place.launch(*DISAGGREGATED, *words)
    assert launcher.wait() == 3
    message = launcher.findings["cluster.port_clash"]
    assert "the meeting of the launchers" in message
    assert "the router" in message
    assert place.events == []


def test_real_router_speaks_the_same_handshake(place):
    """`vllm-router` from the package registry, chosen where nothing speaks against it."""
    launcher = place.launch(*DISAGGREGATED, "roles.decode.scheduler.recompute=false")
    launcher.wait_until_ready()
    pid = launcher.state["processes"][-1]["identity"]["pid"]
    title = Path(f"/proc/{pid}/cmdline").read_bytes()
    before = len(place.requests)
    _, answer = ask(place.port, "/v1/completions", {"prompt": "p", "max_tokens": 9, "model": "m"})
    assert launcher.terminate() == 0
    assert title.startswith(b"vllm::router"), "the name that vllm-router gives itself"
    assert answer["choices"][0]["text"].startswith("from decode")
    # It also asks servers to render the prompt, by which its own policy chooses among them.
    prefill, decode = (
        item for item in place.requests[before:] if item["path"] == "/v1/completions"
    )
    assert prefill["body"]["kv_transfer_params"]["do_remote_decode"] is True
    assert (prefill["body"]["max_tokens"], decode["body"]["max_tokens"]) == (1, 9)
    assert decode["body"]["kv_transfer_params"]["remote_host"] == prefill["name"]


@pytest.mark.parametrize(
    ("words", "id", "severity"),
    [
        ((), "cluster.router_recompute", "warn"),
        (("roles=mooncake_layerwise",), "cluster.router_protocol", "error"),
    ],
)
def test_router_that_does_not_fit(place, words, id, severity):
    launcher = place.launch(*DISAGGREGATED, *words, "site.router=vllm_router")
    if severity == "warn":
        launcher.wait_until_ready()
        assert launcher.findings[id]
        assert launcher.terminate() == 0
    else:
        assert launcher.wait() == 3
        assert "MooncakeLayerwiseConnector" in launcher.findings[id]
