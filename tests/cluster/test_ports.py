"""Ports of a deployment, against an independent account: every port of every worker, as a set."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_recipes.compose import recipe_names
from ascend_recipes.errors import Severity
from ascend_recipes.launch.members import name_members
from ascend_recipes.launch.ports import deployment_ranges, port_findings
from ascend_recipes.planning.nodes import deployment_nodes
from ascend_recipes.planning.ports import (
    PortRange,
    collective_ports,
    out_of_range,
    port_clashes,
)
from ascend_recipes.rendering.render import render_commands
from tests.conftest import plan_of

RANGES = st.builds(
    PortRange,
    machine=st.sampled_from(["a", "b"]),
    first=st.integers(1, 120),
    count=st.integers(1, 20),
    owner=st.uuids().map(str),
)


def ports(item):
    return {(item.machine, port) for port in range(item.first, item.first + item.count)}


@given(st.lists(RANGES, max_size=8, unique_by=lambda item: item.owner))
def test_clashes_are_the_pairs_with_a_common_port(ranges):
    found = {frozenset((low.owner, high.owner)) for low, high in port_clashes(ranges)}
    wanted = {
        frozenset((one.owner, two.owner))
        for one, two in combinations(ranges, 2)
        if ports(one) & ports(two)
    }
    assert found == wanted


@given(st.lists(RANGES, min_size=1, max_size=5))
def test_joined_range_holds_every_port(ranges):
    joined = ranges[0]
    for item in ranges[1:]:
        joined = joined.joined(item)
    numbers = {port for item in ranges for _, port in ports(item)}
    assert (joined.first, joined.last) == (min(numbers), max(numbers))


def test_last_port_is_65535():
    assert not list(out_of_range([PortRange("a", 65535, 1, "x")]))
    assert list(out_of_range([PortRange("a", 65530, 7, "x")]))


ADDRESSES = [f"10.0.0.{node}" for node in range(1, 17)]
"""As many as the largest deployment has nodes; a site may name more machines than one needs."""


def deployment(recipe, *words, addresses=ADDRESSES):
    site = (f"site.node_addresses=[{','.join(addresses)}]", "site.network_interface=eth0")
    planned = plan_of(f"recipe={recipe}", "runtime=vllm_ascend", *words, *site)
    members = name_members(render_commands(planned.resolved))
    return planned, members, planned.resolved.recipe.site.node_addresses


RECIPES = [entry.name for entry in recipe_names()]


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_recipe_clashes_with_itself(recipe):
    planned, members, addresses = deployment(recipe)
    assert len({member.name for member in members}) == len(members)
    numbered = {
        (place.node, place.role, place.instance)
        for place in deployment_nodes(planned.resolved.recipe)
    }
    commands = [member.command for member in members]
    assert {(item.node, item.role, item.instance) for item in commands} == numbered
    findings = list(port_findings(deployment_ranges(members, addresses)))
    assert [item for item in findings if item.severity is Severity.ERROR] == []


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name.endswith("_pd")])
def test_connector_ports_are_one_a_worker(recipe):
    """The formula of the connectors: kv_port + (dp rank * pp + pp stage) * tp + tp rank."""
    planned, members, addresses = deployment(recipe)
    recipe_ = planned.resolved.recipe
    wanted = set()
    for place in deployment_nodes(recipe_):
        spec = recipe_.roles[place.role]
        sizes = {**recipe_.parallel.model_dump(), **spec.parallel}
        if spec.transfer is None or spec.transfer.port is None:
            continue
        per_node = sizes["dp"] // spec.nodes
        for rank in range(place.node_rank * per_node, (place.node_rank + 1) * per_node):
            for worker in range(sizes["tp"] * sizes["pp"]):
                first = spec.transfer.port + 100 * place.instance
                offset = rank * sizes["tp"] * sizes["pp"] + worker
                wanted.add((addresses[place.node], first + offset))
    found = {
        port
        for item in deployment_ranges(members, addresses)
        if str(item.owner).startswith("the connector")
        for port in ports(item)
    }
    assert found == wanted


def test_connector_inside_the_drawn_range_is_a_warning_with_a_fix_that_works():
    recipe = "deepseek_v4_a3_pd"
    _, members, addresses = deployment(recipe)
    doubtful = {item.at: item for item in port_findings(deployment_ranges(members, addresses))}
    assert {item.id for item in doubtful.values()} == {"cluster.port_may_clash"}
    fixes = [item.fix for item in doubtful.values()]
    assert "roles.prefill.transfer.port=36000" in fixes
    _, members, addresses = deployment(recipe, *fixes)
    assert not list(port_findings(deployment_ranges(members, addresses)))


def test_roles_on_one_machine_meet_where_their_ports_are_equal():
    words = ("roles.decode.transfer.port=30008",)
    _, members, addresses = deployment("deepseek_v4_a3_pd", *words, addresses=["127.0.0.1"] * 2)
    found = list(port_findings(deployment_ranges(members, addresses)))
    (clash,) = [item for item in found if item.id == "cluster.port_clash"]
    assert "the connector of prefill 0 (30000-30015)" in clash.message
    assert "the connector of decode 0 (30008-30023)" in clash.message


def test_port_in_the_collectives_range():
    words = ("serving.port=60003",)
    _, members, addresses = deployment("deepseek_v4_a3", *words)
    (clash,) = port_findings(deployment_ranges(members, addresses))
    assert clash.id == "cluster.port_clash"
    _, members, addresses = deployment("deepseek_v4_a3", *words, clash.fix)
    assert not list(port_findings(deployment_ranges(members, addresses)))
    moved = (*words, "env.HCCL_IF_BASE_PORT=50000")
    _, members, addresses = deployment("deepseek_v4_a3", *moved)
    assert not list(port_findings(deployment_ranges(members, addresses)))


def test_ports_of_the_collectives_move_with_their_variables():
    """CANN 9.0: 60000 to 60031, or 32 from the base; a given range has the last word."""
    assert collective_ports({}) == range(60000, 60032)
    moved = {"HCCL_IF_BASE_PORT": "50000"}
    assert collective_ports(moved) == range(50000, 50032)
    assert collective_ports({**moved, "HCCL_HOST_SOCKET_PORT_RANGE": "auto"}) is None
