"""What every target writes down: machines, their processes, and what these need."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ascend_recipes.export.words import Word, variables_of
from ascend_recipes.launch.routing import RouterKind
from ascend_recipes.schema.rows import ContainerFacts
from ascend_recipes.schema.serving import RoleName

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
"""Variable that names the dies of a process among those that its machine or container shows."""

_LONGEST_SLUG = 40


@dataclass(frozen=True, kw_only=True)
class Server:
    """One process of vLLM."""

    name: str
    """What people call it, for example `decode-rank3`."""
    rank: int | None
    argv: tuple[Word, ...]
    env: Mapping[str, Word]
    dies: tuple[int, ...]
    """Numbers of its dies on the machine."""
    port: int | None
    """Port of its API; none for a process without one."""
    host: Word
    """Where the API is asked on its own machine."""

    @property
    def health(self) -> Word:
        """URL that answers once the server can take requests; of servers with an API."""
        return self.host.joined("http://", f":{self.port}/health")


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine and what runs on it."""

    number: int
    """Number in the deployment: index into `site.node_addresses`."""
    role: RoleName
    instance: int
    local: int
    """Number in the instance; 0 leads."""
    size: int
    """Machines of the instance."""
    servers: tuple[Server, ...]
    address: Word
    """How other machines reach it."""

    @property
    def name(self) -> str:
        """Name of its files."""
        return f"node{self.number}-{self.role}"

    @property
    def dies(self) -> tuple[int, ...]:
        """Dies that its processes use together."""
        return tuple(dict.fromkeys(die for server in self.servers for die in server.dies))

    @property
    def listening(self) -> tuple[Server, ...]:
        """Processes with an API."""
        return tuple(server for server in self.servers if server.port is not None)

    @property
    def variables(self) -> tuple[str, ...]:
        """What the shell on the machine must know."""
        words = [word for server in self.servers for word in (*server.argv, *server.env.values())]
        return variables_of(words)

    def reached(self, server: Server) -> Word:
        """Health URL of one of its servers, from another machine."""
        return self.address.joined("http://", f":{server.port}/health")

    def in_container(self) -> "Node":
        """The same inside a container, which counts the dies that it was given from 0."""
        dies = self.dies
        return replace(self, servers=tuple(_renumbered(item, dies) for item in self.servers))


@dataclass(frozen=True, kw_only=True)
class Router:
    """What spreads requests over prefill and decode."""

    kind: RouterKind
    because: str
    port: int
    argv: tuple[Word, ...]
    """Its command; of the minimal router without the file of its settings."""
    settings: Word | None
    """JSON that the minimal router reads; none for others."""
    host: Word

    @property
    def health(self) -> Word:
        """URL that answers once requests are routed."""
        return self.host.joined("http://", f":{self.port}/health")

    @property
    def variables(self) -> tuple[str, ...]:
        """What the shell on the machine must know."""
        return variables_of([*self.argv, *([self.settings] if self.settings else [])])


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A deployment, ready to be written down."""

    recipe: str
    digest: str
    runtime: str
    """Runtime and version, for people."""
    command: str
    """What to type to write the files again."""
    nodes: tuple[Node, ...]
    router: Router | None
    image: str
    container: ContainerFacts
    resource: str
    """Name under which Kubernetes counts dies."""
    shared_memory_gib: int
    environment_files: tuple[str, ...]
    weights: tuple[str, ...]
    """Folders with weights on the machines."""
    weights_claim: str | None
    """Claim that holds them, in Kubernetes."""
    cache_folder: str | None
    """Folder of the machines for what is downloaded from a hub; none where nothing is."""
    secrets: tuple[str, ...]
    """Variables whose values stand in no file."""
    device_folder: str
    ready_seconds: int
    port: int
    """Port that clients talk to."""

    @property
    def groups(self) -> tuple[RoleName, ...]:
        """Roles in the order of their start."""
        return tuple(dict.fromkeys(node.role for node in self.nodes))

    @property
    def instances(self) -> tuple[tuple[Node, ...], ...]:
        """Machines that form one engine together."""
        keys = dict.fromkeys((node.role, node.instance) for node in self.nodes)
        return tuple(
            tuple(node for node in self.nodes if (node.role, node.instance) == key) for key in keys
        )

    @property
    def slug(self) -> str:
        """The recipe's name as names of Kubernetes and Compose are written."""
        return slug_of(self.recipe)

    def before(self, role: RoleName) -> tuple[Node, ...]:
        """Machines that must answer before those of a role start."""
        earlier = self.groups[: self.groups.index(role)]
        return tuple(node for node in self.nodes if node.role in earlier)


@dataclass(frozen=True)
class ExportFile:
    """One file of an export."""

    name: str
    text: str
    is_program: bool = False


def slug_of(recipe: str) -> str:
    """A name for objects: short enough for what Kubernetes appends to it (63 characters in all)."""
    slug = recipe.replace("_", "-").lower()
    if len(slug) <= _LONGEST_SLUG:
        return slug
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:6]
    return f"{slug[: _LONGEST_SLUG - 7].rstrip('-')}-{digest}"


def _renumbered(server: Server, shown: tuple[int, ...]) -> Server:
    env = {name: word for name, word in server.env.items() if name != VISIBLE}
    if server.dies != shown:
        env[VISIBLE] = Word.of(",".join(str(shown.index(die)) for die in server.dies))
    return replace(server, env=env)
