"""Ports of a deployment: who binds which, and where two would meet on one machine."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from ascend_recipes.findings import Phrase
from ascend_recipes.registry.load import load_registry

DIRECT_TRANSPORT_FIRST = 20000
"""First port of Mooncake's direct transport, which draws from 1000 ports a die at random.

Source: vllm-ascend docs/source/tutorials/features/pd_disaggregation_mooncake_multi_node.md:219-230
at 182b75ea.
"""
DIRECT_TRANSPORT_PORTS_PER_DIE = 1000


def collective_ports(variables: Mapping[str, str]) -> range | None:
    """Ports of collectives on a host; none where a variable of higher rank deals them out.

    Source: CANN documentation 9.0, HCCL_IF_BASE_PORT and HCCL_HOST_SOCKET_PORT_RANGE.
    """
    if "HCCL_HOST_SOCKET_PORT_RANGE" in variables:
        return None
    row, base = load_registry().collectives["hccl"], variables.get("HCCL_IF_BASE_PORT", "")
    first = int(base) if base.isdecimal() else row.first_port
    return range(first, first + row.host_ports)


def meeting_port(port_base: int) -> int:
    """Port at which launchers compare what they are about to start, on the leading node."""
    return port_base


@dataclass(frozen=True, order=True)
class PortRange:
    """Consecutive ports that one owner binds on one machine."""

    machine: str
    """Address of the machine; two nodes with one address share its ports."""
    first: int
    count: int
    owner: str | Phrase
    """Who binds them, for people."""
    at: str = ""
    """Recipe path that moves them."""
    drawn: bool = False
    """Ports are drawn from the range at random: it is too wide to be occupied as a whole."""

    @property
    def last(self) -> int:
        """Last port of the range."""
        return self.first + self.count - 1

    def joined(self, other: "PortRange") -> "PortRange":
        """The range that holds both; ports of one owner lie side by side."""
        first = min(self.first, other.first)
        return replace(self, first=first, count=max(self.last, other.last) - first + 1)

    def meets(self, other: "PortRange") -> bool:
        """Whether both want a port of the same machine."""
        apart = self.last < other.first or other.last < self.first
        return self.machine == other.machine and not apart

    def __str__(self) -> str:
        return str(self.first) if self.count == 1 else f"{self.first}-{self.last}"


def port_clashes(ranges: Iterable[PortRange]) -> Iterator[tuple[PortRange, PortRange]]:
    """Every pair of ranges that meet, the lower one first."""
    for first, second in combinations(sorted(ranges), 2):
        if first.meets(second):
            yield first, second


def out_of_range(ranges: Iterable[PortRange]) -> Iterator[PortRange]:
    """Ranges that leave what a port may be."""
    return (item for item in ranges if item.first < 1 or item.last > 65535)
