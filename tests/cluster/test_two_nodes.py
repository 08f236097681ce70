"""Two launchers of one deployment: they agree or refuse, and live and end together."""

import itertools
import json
import signal

import pytest

from tests.cluster.rig import TWO_NODES

ELSEWHERE = "site.node_addresses=[198.51.100.1,198.51.100.2]"
pytestmark = pytest.mark.serve


def launch_both(place, *words, second=()):
    return (
        place.launch(*TWO_NODES, "--node", "0", *words, name="lead"),
        place.launch(*TWO_NODES, "--node", "1", *words, *second, name="other"),
    )


def test_nodes_start_and_end_together(place):
    # What may differ by machine: the name of the interface, and where weights are.
    place.write_site("other", network_interface="lo:1")
    lead, other = launch_both(place, second=("site=other",))
    lead.wait_until_ready()
    assert other.wait_until_ready()["url"] == lead.document["url"]
    served, headless = place.record("serve"), place.record("headless")
    assert served["env"]["HCCL_SOCKET_IFNAME"] == "lo"
    assert headless["env"]["HCCL_SOCKET_IFNAME"] == "lo:1"
    assert (served["env"]["HCCL_IF_IP"], headless["env"]["HCCL_IF_IP"]) == (
        "127.0.0.1",
        "127.0.0.2",
    )
    start = headless["argv"].index("--data-parallel-start-rank")
    assert headless["argv"][start + 1] == "1"
    assert place.requests[0]["name"] == "serve"
    assert lead.terminate() == 0
    assert other.wait() == 0
    assert [event for event in place.events if event[0] == "drained"]
    assert {who for what, who in place.events if what == "drained"} == {"serve", "headless"}


def test_end_that_is_asked_for_on_the_other_node(place):
    lead, other = launch_both(place)
    lead.wait_until_ready()
    other.wait_until_ready()
    assert other.terminate() == 0
    assert lead.wait() == 0


SHARED = ("parallel.dp=1", "parallel.pp=2")
"""Both nodes share one replica, a pipeline stage each."""


def test_nodes_that_share_a_replica(place):
    lead, other = launch_both(place, *SHARED, second=SHARED)
    lead.wait_until_ready()
    assert other.wait_until_ready()["url"] == lead.document["url"]
    served, headless = place.record("serve"), place.record("headless")
    for record, rank in ((served, "0"), (headless, "1")):
        argv = record["argv"]
        said = dict(itertools.pairwise(argv))
        assert said["--nnodes"] == "2"
        assert said["--node-rank"] == rank
        assert said["--master-addr"] == "127.0.0.1"
        assert int(said["--master-port"]) == place.port + 50 + 300
        assert "--data-parallel-size" not in said
    assert "--port" in served["argv"]
    assert "--port" not in headless["argv"]
    assert lead.terminate() == 0
    assert other.wait() == 0
    assert {who for what, who in place.events if what == "drained"} == {"serve", "headless"}


def test_rank_of_a_shared_replica_that_dies_ends_both_nodes(place):
    place.behave(headless="die:1")
    lead, other = launch_both(place, *SHARED, second=SHARED)
    assert (lead.wait(), other.wait()) == (5, 5)
    assert "serve-node1 ended with status 3" in lead.stderr


def test_each_node_of_a_shared_replica_holds_half_of_its_dies(place):
    # Thirty-two dies in all, and sixteen a machine: enough, but not with fifteen.
    for number in range(15, 32):
        (place.folder / "devices" / f"davinci{number}").unlink()
    lead = place.launch(*TWO_NODES, "--node", "0", *SHARED)
    assert lead.wait() == 4
    assert "16" in lead.findings["cluster.too_few_dies"]
    assert "15" in lead.findings["cluster.too_few_dies"]


def test_nodes_that_would_start_different_deployments(place):
    lead, other = launch_both(place, second=("scheduler.max_num_seqs=16",))
    assert (lead.wait(), other.wait()) == (3, 5)
    message = lead.findings["cluster.digest_differs"]
    assert "scheduler.max_num_seqs is 32 here, 16 there" in message
    assert message in other.findings["cluster.peer_failed"]
    assert place.events == []


def test_one_message_on_both_nodes_where_one_fails(place):
    place.behave(headless="crash")
    lead, other = launch_both(place)
    assert (lead.wait(), other.wait()) == (5, 5)
    assert list(other.findings) == ["log.cache_memory_negative"]
    assert "serve-node1 ended with status 1" in other.findings["log.cache_memory_negative"]
    # The leading server may have answered before the other process was gone.
    assert "node 1: serve-node1 ended with status 1" in lead.stderr + json.dumps(lead.document)


def test_process_that_dies_later_ends_both_nodes(place):
    place.behave(headless="die:2")
    lead, other = launch_both(place)
    lead.wait_until_ready()
    assert (lead.wait(), other.wait()) == (5, 5)
    assert "node 1" in lead.stderr
    assert "serve-node1 ended with status 3" in lead.stderr


def test_launcher_that_is_killed_ends_the_other_node(place):
    lead, other = launch_both(place)
    lead.wait_until_ready()
    other.wait_until_ready()
    lead.process.send_signal(signal.SIGKILL)
    lead.wait()
    assert other.wait() == 5
    assert "the launcher of node 0 is gone" in other.stderr
    # Nobody was left to end what the killed launcher's own server leaves behind.
    (run,) = [item for item in place.run("status")["runs"] if item["nodes"] == [0]]
    assert place.run("stop", run["name"])["ok"]


@pytest.mark.parametrize(("node", "id"), [("0", "cluster.nodes_missing"), ("1", "cluster.no_lead")])
def test_node_that_never_comes(place, node, id):
    launcher = place.launch(*TWO_NODES, "--node", node, "serving.ready_timeout_s=1")
    assert launcher.wait() == 5
    assert list(launcher.findings) == [id]
    assert place.events == []


def test_launcher_that_comes_too_late_disturbs_nobody(place):
    lead, other = launch_both(place)
    lead.wait_until_ready()
    words = (f"serving.port={place.port + 5}", "--node", "1")
    late = place.launch(*TWO_NODES, *words, name="late")
    assert late.wait() == 5
    assert "two launchers claim the node" in late.findings["cluster.peer_failed"]
    assert lead.terminate() == 0
    assert other.wait() == 0


@pytest.mark.parametrize(
    ("words", "code", "id"),
    [
        (("site.node_addresses=[127.0.0.1]",), 3, "site.too_few_addresses"),
        (("site.network_interface=null",), 3, "site.no_interface"),
        (("site.node_addresses=[198.51.100.1,198.51.100.2]",), 4, "cluster.not_a_node"),
        (
            ("site.node_addresses=[198.51.100.1,198.51.100.2]", "--node", "1"),
            4,
            "cluster.foreign_address",
        ),
        (("--node", "2"), 2, "cluster.unknown_node"),
    ],
)
def test_site_that_does_not_fit(place, words, code, id):
    launcher = place.launch(*TWO_NODES, *words)
    assert launcher.wait() == code
    assert id in launcher.findings
    assert place.events == []


def test_both_nodes_are_found_by_their_addresses(place):
    launcher = place.launch(*TWO_NODES)
    launcher.wait_until_ready()
    assert launcher.state["nodes"] == [0, 1]
    assert launcher.terminate() == 0
