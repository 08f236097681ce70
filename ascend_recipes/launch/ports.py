"""Ports that a rendered deployment binds, read from its own arguments."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ascend_recipes.errors import Finding
from ascend_recipes.findings import Phrase, finding, phrase
from ascend_recipes.launch.members import Member, flag_value
from ascend_recipes.planning.ports import (
    DIRECT_TRANSPORT_FIRST,
    DIRECT_TRANSPORT_PORTS_PER_DIE,
    PortRange,
    collective_ports,
    out_of_range,
    port_clashes,
)

_DIRECT_TRANSPORT = "Mooncake"
"""Connectors whose name begins so move caches by the direct transport."""
_STORE = "Store"
"""Those that only keep caches in a pool do not."""


def deployment_ranges(members: Sequence[Member], addresses: Sequence[str]) -> tuple[PortRange, ...]:
    """Every port that the processes of a deployment bind, machine by machine."""
    ranges: dict[tuple[str, str | Phrase], PortRange] = {}
    drawing: Counter[str] = Counter()
    for member in members:
        machine = _machine(member, addresses)
        for item in _ranges(member, machine):
            key = (item.machine, item.owner)
            ranges[key] = ranges[key].joined(item) if key in ranges else item
        if _draws(member):
            drawing[machine] += local_ranks(member)[1] * width_of(member)
    # Each process draws from the ports of all dies of its machine.
    drawn = (
        PortRange(
            machine,
            DIRECT_TRANSPORT_FIRST,
            dies * DIRECT_TRANSPORT_PORTS_PER_DIE,
            phrase("cluster.direct_transport"),
            drawn=True,
        )
        for machine, dies in drawing.items()
    )
    return (*ranges.values(), *drawn)


def port_findings(ranges: Sequence[PortRange]) -> Iterator[Finding]:
    """Errors for ports that two owners would bind, warnings for those that they might."""
    for item in out_of_range(ranges):
        fix = f"{item.at}=PORT" if item.at else ""
        yield finding(
            "cluster.port_out_of_range", at=item.at, fix=fix, owner=item.owner, ports=item
        )
    for low, high in port_clashes(ranges):
        if low.drawn and high.drawn:
            continue
        fixed, other = (high, low) if low.drawn or not low.at else (low, high)
        yield finding(
            "cluster.port_may_clash" if other.drawn else "cluster.port_clash",
            at=fixed.at,
            fix=f"{fixed.at}={other.last + 1}" if fixed.at else "",
            first=fixed.owner,
            first_ports=fixed,
            second=other.owner,
            second_ports=other,
            machine=fixed.machine,
        )


def engine_name(member: Member) -> str:
    """Role and copy that a process belongs to; its processes share ports without meeting."""
    return f"{member.command.role} {member.command.instance}"


def _machine(member: Member, addresses: Sequence[str]) -> str:
    node = member.command.node
    return addresses[node] if node < len(addresses) else f"node {node}"


def _ranges(member: Member, machine: str) -> Iterator[PortRange]:
    command = member.command
    if command.port is not None:
        owner = phrase("cluster.api", name=member.name)
        yield PortRange(machine, command.port, 1, owner, "serving.port")
    # The address names the leader of an engine, which alone binds; its followers connect.
    for address_flag, port_flag in (
        ("--data-parallel-address", "--data-parallel-rpc-port"),
        ("--master-addr", "--master-port"),
    ):
        port = flag_value(command.argv, port_flag)
        if port and _leads(member, address_flag, machine):
            owner = phrase("cluster.engine", name=engine_name(member))
            yield PortRange(machine, int(port), 1, owner, "site.port_base")
    yield from _transfer_ranges(member, machine)
    if hccl := collective_ports(command.env):
        owner = phrase("cluster.hccl")
        yield PortRange(machine, hccl.start, len(hccl), owner, "env.HCCL_IF_BASE_PORT")


def _leads(member: Member, flag: str, machine: str) -> bool:
    first = member.command.rank in (None, 0) and "--headless" not in member.command.argv
    follows = flag_value(member.command.argv, "--node-rank") not in (None, "0")
    return first and not follows and flag_value(member.command.argv, flag) in (machine, None)


def _transfer_ranges(member: Member, machine: str) -> Iterator[PortRange]:
    """Connector ports: one a worker, from kv_port on (vllm-ascend mooncake_connector.py:2112)."""
    first_rank, ranks = local_ranks(member)
    width = width_of(member)
    for connector in connectors_of(member):
        port = connector.get("kv_port")
        if port is not None:
            at = f"roles.{member.command.role}.transfer.port"
            owner = phrase("cluster.connector", name=engine_name(member))
            yield PortRange(machine, int(port) + first_rank * width, ranks * width, owner, at)


def local_ranks(member: Member) -> tuple[int, int]:
    """First data-parallel rank of a process, and how many it holds."""
    argv, rank = member.command.argv, member.command.rank
    if rank is not None:
        return rank, 1
    local = flag_value(argv, "--data-parallel-size-local") or _size(member, "--data-parallel-size")
    return int(flag_value(argv, "--data-parallel-start-rank") or 0), int(local)


def width_of(member: Member) -> int:
    """Workers of one data-parallel rank."""
    return _size(member, "--tensor-parallel-size") * _size(member, "--pipeline-parallel-size")


def _draws(member: Member) -> bool:
    """Whether caches go by Mooncake's direct transport."""
    names = (str(item.get("kv_connector", "")) for item in connectors_of(member))
    return any(name.startswith(_DIRECT_TRANSPORT) and _STORE not in name for name in names)


def connectors_of(member: Member) -> Iterator[dict[str, Any]]:
    """The connector, or those inside one that combines several."""
    config = json.loads(flag_value(member.command.argv, "--kv-transfer-config") or "{}")
    inner = config.get("kv_connector_extra_config", {}).get("connectors", [])
    yield from (item for item in inner if isinstance(item, dict))
    if config and not inner:
        yield config


def _size(member: Member, flag: str) -> int:
    return int(flag_value(member.command.argv, flag) or 1)
