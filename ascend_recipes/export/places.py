"""How machines are called, in each target: by the site, by Slurm, by Kubernetes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ascend_recipes.export.words import Variable, Word
from ascend_recipes.planning.nodes import NodePlace
from ascend_recipes.rendering.topology import NO_ADDRESS, NO_INTERFACE

MARKER = re.compile(re.escape(NO_ADDRESS).replace(r"\{\}", r"(\d+)"))
"""What rendering writes for an address that the site does not give."""

POD_ADDRESS = Variable("POD_IP")
LEADER_ADDRESS = Variable("LWS_LEADER_ADDRESS")
"""Set by LeaderWorkerSet in every container (api/leaderworkerset/v1 of kubernetes-sigs/lws)."""


def hint(variable: str) -> str | None:
    """What somebody must set a variable to; none where the target sets it."""
    if variable == NO_INTERFACE:
        return "the network interface of this machine, as ip -brief address lists it"
    found = MARKER.fullmatch(variable)
    return f"the address of node {found[1]}" if found else None


class Places(Protocol):
    """Words for the machines of a deployment."""

    @property
    def deals_out(self) -> bool:
        """Whether the machines are chosen at the start, whatever the site says."""

    def own(self, node: int) -> Word:
        """Address of a machine, for a process on it."""

    def leader(self, node: int) -> Word:
        """Address of an instance's first machine, for a process of the instance."""

    def reached(self, node: int) -> Word:
        """Address of a machine, for any other."""

    def router(self) -> Word:
        """Address of the router, for servers."""

    def listened(self, host: str) -> Word:
        """What a server binds instead of what the recipe says."""


@dataclass(frozen=True)
class SitePlaces:
    """Addresses of the site file; those that it lacks are variables to be set."""

    addresses: tuple[str, ...]
    deals_out: bool = False

    def own(self, node: int) -> Word:
        """The site's address."""
        known = node < len(self.addresses)
        return Word.of(self.addresses[node] if known else Variable(NO_ADDRESS.format(node)))

    leader = own
    reached = own

    def router(self) -> Word:
        """The first machine's."""
        return self.own(0)

    def listened(self, host: str) -> Word:
        """What the recipe says."""
        return Word.of(host)


@dataclass(frozen=True)
class JobPlaces:
    """Addresses of the machines that Slurm gives a job, in an array of the batch script."""

    deals_out: bool = True

    def own(self, node: int) -> Word:
        """An element of the array."""
        return Word.of(Variable(f"addresses[{node}]"))

    leader = own
    reached = own

    def router(self) -> Word:
        """The first machine's."""
        return self.own(0)

    def listened(self, host: str) -> Word:
        """What the recipe says."""
        return Word.of(host)


@dataclass(frozen=True)
class PodPlaces:
    """Addresses of pods: their own by the downward API, others by names."""

    places: Sequence[NodePlace]
    sizes: Mapping[tuple[str, int], int]
    """Machines of each instance."""
    names: Mapping[tuple[str, int], str]
    """Name of each instance's workload."""
    service: str
    """Name of the service that clients talk to."""
    deals_out: bool = True

    def own(self, node: int) -> Word:
        """The pod's address; with the host's network the machine's."""
        del node
        return Word.of(POD_ADDRESS)

    def leader(self, node: int) -> Word:
        """What LeaderWorkerSet says, where there is more than one pod."""
        place = self.places[node]
        alone = self.sizes[place.role, place.instance] == 1
        return Word.of(POD_ADDRESS if alone else LEADER_ADDRESS)

    def reached(self, node: int) -> Word:
        """Name below the headless service that LeaderWorkerSet makes."""
        place = self.places[node]
        name = self.names[place.role, place.instance]
        pod = f"{name}-0" if place.node_rank == 0 else f"{name}-0-{place.node_rank}"
        return Word.of(f"{pod}.{name}")

    def router(self) -> Word:
        """The service."""
        return Word.of(self.service)

    def listened(self, host: str) -> Word:
        """Loopback would be the pod's own: services and probes reach its address."""
        return Word.of(host if host in ("0.0.0.0", "::") else POD_ADDRESS)
