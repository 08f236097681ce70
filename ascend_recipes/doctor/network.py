"""Probes of the network: variables of HCCL, interfaces, addresses, ports and proxies."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ascend_recipes.doctor.probe import Case
from ascend_recipes.errors import Finding, RecipeError, Severity
from ascend_recipes.findings import finding
from ascend_recipes.launch.environment import NATIVE
from ascend_recipes.launch.ports import port_findings
from ascend_recipes.launch.preflight import server_address
from ascend_recipes.launch.readiness import bound_ranges
from ascend_recipes.planning.ports import PortRange
from ascend_recipes.surface import load_surface

_FAMILIES = ("HCCL_", "ASCEND_", "VLLM_ASCEND_", "RANK_TABLE_FILE")
_INTERFACES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_ADDRESS = "HCCL_IF_IP"
_RANK_TABLE = "RANK_TABLE_FILE"
_ALLOW_ALL, _ALLOWED = "HCCL_WHITELIST_DISABLE", "HCCL_WHITELIST_FILE"
_PCIE, _ROCE = "HCCL_INTRA_PCIE_ENABLE", "HCCL_INTRA_ROCE_ENABLE"
_CONTRADICTIONS = {
    ("1", "1"): Severity.ERROR,
    ("0", None): Severity.WARNING,
    (None, "0"): Severity.WARNING,
}
"""Values of the two variables that HCCL does not support together; half a choice is no choice.

Source: CANN HCCL guide, HCCL_INTRA_ROCE_ENABLE.
"""
_CONNECT, _EXECUTE = "HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_LOCAL = ("127.0.0.1", "localhost")
_STACK = "vllm_ascend"


# --- variables ----------------------------------------------------------------------------------
def read_variables(case: Case) -> Mapping[str, str] | None:
    """Variables of the shell that collectives and the runtime read."""
    found = {
        name: value
        for name, value in sorted(case.host.environ.items())
        if name.startswith(_FAMILIES)
    }
    return found or None


def show_variables(variables: Mapping[str, str]) -> str:
    """Their names; values stand in the findings that are about them."""
    names = [name for name in variables if name.startswith("HCCL_") or name == _RANK_TABLE]
    others = len(variables) - len(names)
    return ", ".join([*names, *([f"{others} of CANN and vllm-ascend"] if others else [])])


def judge_variables(variables: Mapping[str, str], case: Case) -> Iterator[Finding]:
    """Mistyped names, values that exclude each other, and files that are not there."""
    surface = load_surface(case.registry.runtimes[_STACK].versions[-1])
    for name in variables:
        if (item := surface.judge_variable(name)) is not None:
            yield item
    pair = variables.get(_PCIE), variables.get(_ROCE)
    if pair in _CONTRADICTIONS:
        told = [f"{name}={value or '-'}" for name, value in zip((_PCIE, _ROCE), pair, strict=True)]
        yield finding(
            "doctor.hccl_links",
            severity=_CONTRADICTIONS[pair],
            fix=f"unset {_PCIE} {_ROCE}",
            values=told,
        )
    yield from _timeouts(variables)
    yield from _rank_table(variables, case)
    if variables.get(_ALLOW_ALL) == "0" and not _is_file(variables.get(_ALLOWED), case):
        yield finding(
            "doctor.hccl_allowed",
            fix=f"export {_ALLOW_ALL}=1",
            file=variables.get(_ALLOWED, "-"),
        )


def _timeouts(variables: Mapping[str, str]) -> Iterator[Finding]:
    connect, execute = variables.get(_CONNECT, ""), variables.get(_EXECUTE, "")
    if connect.isdigit() and execute.isdigit() and 0 < int(execute) <= int(connect):
        yield finding("doctor.hccl_timeouts", connect=connect, execute=execute)


def _rank_table(variables: Mapping[str, str], case: Case) -> Iterator[Finding]:
    path = variables.get(_RANK_TABLE)
    if path is None:
        return
    try:
        whole = isinstance(json.loads(case.host.read(path) or ""), dict)
    except ValueError:
        whole = False
    yield finding(
        "doctor.rank_table" if whole else "doctor.rank_table_broken",
        fix=f"unset {_RANK_TABLE}",
        path=path,
    )


def _is_file(path: str | None, case: Case) -> bool:
    return path is not None and (case.host.at(path).is_file() or Path(path).is_file())


# --- interfaces ---------------------------------------------------------------------------------
def read_interfaces(case: Case) -> tuple[str, ...] | None:
    """Network interfaces of this machine or container."""
    return case.host.names("/sys/class/net") or None


def judge_interfaces(names: Sequence[str], case: Case) -> Iterator[Finding]:
    """What variables and the site name is there, and HCCL's address is ours."""
    for variable in _INTERFACES:
        wanted = case.host.environ.get(variable)
        if wanted is not None and not _matches(wanted, names, loose=variable == _INTERFACES[0]):
            yield finding(
                "doctor.no_interface", at=variable, wanted=wanted, present=names, owner=variable
            )
    interface = case.site.network_interface if case.site else None
    if interface is not None and interface not in names:
        yield finding(
            "doctor.no_interface",
            at="site.network_interface",
            wanted=interface,
            present=names,
            owner="site.network_interface",
        )
    address = case.host.environ.get(_ADDRESS)
    if address is not None and not case.host.owns_address(address):
        yield finding("doctor.foreign_address", at=_ADDRESS, address=address)


def _matches(wanted: str, names: Sequence[str], *, loose: bool) -> bool:
    """Whether a choice of interfaces leaves one.

    HCCL's variable names beginnings; `=` means whole names and `^` all others. Gloo's takes whole
    names.
    """
    others = loose and wanted.startswith("^")
    text = wanted.removeprefix("^") if loose else wanted
    exact = not loose or text.startswith("=")
    parts = [part.strip() for part in text.removeprefix("=").split(",") if part.strip()]

    def named(name: str) -> bool:
        return any(name == part if exact else name.startswith(part) for part in parts)

    return any(named(name) != others for name in names)


# --- addresses and ports ------------------------------------------------------------------------
def read_addresses(case: Case) -> tuple[int, ...] | None:
    """Nodes of the site that this machine is; none where the site names no addresses."""
    deployment, site = case.deployment, case.site
    if deployment is not None:
        return deployment.mine if deployment.nodes > 1 else None
    if site is None or not site.node_addresses:
        return None
    own = enumerate(site.node_addresses)
    return tuple(node for node, address in own if case.host.owns_address(address))


def show_addresses(nodes: Sequence[int]) -> str:
    """Their numbers, the leading one first."""
    return ", ".join(map(str, nodes)) or "-"


def judge_addresses(nodes: Sequence[int], case: Case) -> Iterator[Finding]:
    """This machine is one of the site's."""
    if isinstance(case.part, RecipeError):
        yield from case.part.findings
    elif not nodes and case.site is not None:
        yield finding(
            "cluster.not_a_node",
            at="site.node_addresses",
            addresses=", ".join(case.site.node_addresses),
        )


def read_ports(case: Case) -> tuple[PortRange, ...] | None:
    """Ports that the recipe's processes bind on this machine."""
    if case.planned is None:
        return None
    deployment = case.deployment
    if deployment is None:
        host, port = server_address(case.planned.plan)
        return (PortRange(host, port, 1, "the API", "serving.port"),)
    addresses = deployment.recipe.site.node_addresses
    here = {
        addresses[node] if node < len(addresses) else f"node {node}" for node in deployment.mine
    }
    ranges = bound_ranges(deployment)
    return tuple(item for item in ranges if item.machine in here or deployment.nodes == 1)


def show_ports(ranges: Sequence[PortRange]) -> str:
    """Ranges and who wants them."""
    return ", ".join(f"{item} {item.owner}" for item in ranges)


def judge_ports(ranges: Sequence[PortRange], case: Case) -> Iterator[Finding]:
    """Nobody else listens there, and no two owners want one port."""
    taken = set(case.installed.listening_ports)
    for item in ranges:
        busy = sorted(taken & set(range(item.first, item.last + 1)))
        if busy and not item.drawn:
            free = next(
                port for port in range(item.last + 1, 65536) if not taken & {port, port + 1}
            )
            fix = f"{item.at}={free}" if item.at and item.count == 1 else ""
            yield finding("doctor.port_taken", at=item.at, fix=fix, busy=busy, owner=item.owner)
    planned = case.planned
    if planned is not None and planned.plan.runtime.name != NATIVE and case.deployment is not None:
        yield from port_findings(bound_ranges(case.deployment))
    yield from (item for item in case.misfits if item.id.startswith("net."))


# --- proxies ------------------------------------------------------------------------------------
def read_proxies(case: Case) -> Mapping[str, str] | None:
    """Proxies of the shell, without what they may hold of passwords."""
    found = {name: _variable(case, name) for name in (*_PROXIES, "no_proxy")}
    known = {name: value.rpartition("@")[2] for name, value in found.items() if value}
    return known if set(known) & set(_PROXIES) else None


def _variable(case: Case, name: str) -> str:
    return case.host.environ.get(name) or case.host.environ.get(name.upper()) or ""


def show_proxies(proxies: Mapping[str, str]) -> str:
    """Names and addresses."""
    return ", ".join(f"{name}={value}" for name, value in proxies.items())


def judge_proxies(proxies: Mapping[str, str], case: Case) -> Iterator[Finding]:
    """Requests to the own server and to other nodes go past the proxy."""
    spared = {item.strip() for item in proxies.get("no_proxy", "").split(",")}
    nodes = case.site.node_addresses if case.site else ()
    missing = [place for place in (*_LOCAL, *nodes) if place not in spared]
    if missing and "*" not in spared:
        listed = ",".join([*sorted(spared - {""}), *missing])
        yield finding("doctor.proxy", fix=f"export no_proxy={listed}", missing=missing)
