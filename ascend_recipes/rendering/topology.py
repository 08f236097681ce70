"""Which processes a role consists of, and how they find each other.

The forms are those that vLLM documents (docs/serving/data_parallel_deployment.md): one process on
one node; a leader and headless processes where data parallelism spans nodes, behind the leader's
own load balancer; one process a rank where an outer router spreads requests, which is how the
tutorials of vllm-ascend run prefill and decode.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ascend_recipes.rendering.arguments import Arguments
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.schema.serving import RoleName

ROLES: tuple[RoleName, ...] = ("serve", "prefill", "decode")
"""Order of machines: prefill instances first, then decode."""

_PORTS_AN_INSTANCE = 10
_FIRST_RPC_PORT = 300
"""Distance from `site.port_base`, where launchers meet."""

_LOOPBACK = "127.0.0.1"

NO_ADDRESS = "NODE_{}_ADDRESS"
"""Stands for an address that the site does not give yet."""
NO_INTERFACE = "NETWORK_INTERFACE"


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process of one instance of a role, before its arguments."""

    role: RoleName
    instance: int
    node: int
    """Number of the machine in the deployment."""
    local_node: int
    """Number of the machine in the instance."""
    leader: int
    """Machine of the instance's first process."""
    rank: int | None
    """Data-parallel rank, where every rank is a process."""
    slot: int
    """How many processes of the instance run on the machine before this one."""
    engine: int
    """Number of the instance in the deployment."""
    port_slot: int = 0
    """How many processes with an API run at the same address before this one."""


@dataclass(frozen=True)
class Deployment:
    """All processes of a recipe, machine by machine."""

    processes: tuple[Process, ...]
    machines: int


def lay_out(recipe: Recipe, views: dict[RoleName, ResolvedRecipe]) -> Deployment:
    """Number machines and processes: prefill before decode, instance by instance."""
    processes: list[Process] = []
    machine = engine = 0
    for role in (name for name in ROLES if name in views):
        view = views[role].recipe
        for instance in range(recipe.roles[role].instances):
            processes.extend(_instance(view, role, instance, machine, engine))
            machine += view.nodes
            engine += 1
    return Deployment(tuple(_number_ports(recipe, views, processes)), machine)


def _number_ports(
    recipe: Recipe, views: dict[RoleName, ResolvedRecipe], processes: list[Process]
) -> Iterator[Process]:
    """Count processes with an API by address: several machines of a test may be one."""
    taken: dict[str, int] = {}
    for process in processes:
        address = node_address(recipe, process.node)
        yield replace(process, port_slot=taken.get(address, 0))
        if not is_headless(views[process.role].recipe, process):
            taken[address] = taken.get(address, 0) + 1


def _instance(
    view: Recipe, role: RoleName, instance: int, first: int, engine: int
) -> Iterator[Process]:
    external = role != "serve" and view.parallel.dp > 1
    ranks = view.parallel.dp // view.nodes if external else 1
    for node in range(view.nodes):
        for slot in range(ranks):
            yield Process(
                role=role,
                instance=instance,
                node=first + node,
                local_node=node,
                leader=first,
                rank=node * ranks + slot if external else None,
                slot=slot,
                engine=engine,
            )


def spreads_evenly(view: Recipe) -> bool:
    """Whether every machine of an instance gets the same whole number of replicas."""
    return view.parallel.dp % view.nodes == 0 or view.parallel.dp == 1


def fitting_nodes(view: Recipe, dies_per_node: int) -> int | None:
    """The fewest machines that hold the world in equal shares; none where no number does.

    Args:
        view: an instance of a role.
        dies_per_node: dies of one machine.
    """
    parallel = view.parallel
    needed = -(-parallel.world_size // dies_per_node)
    whole = parallel.dp if parallel.dp > 1 else parallel.world_size
    return next((nodes for nodes in range(needed, whole + 1) if whole % nodes == 0), None)


def shares_evenly(view: Recipe) -> bool:
    """Whether machines that share one replica get the same number of its dies."""
    return view.parallel.dp > 1 or view.parallel.world_size % view.nodes == 0


def is_headless(view: Recipe, process: Process) -> bool:
    """Whether the process has no API server of its own."""
    return process.rank is None and view.nodes > 1 and process.local_node > 0


def serving_port(view: Recipe, process: Process) -> int | None:
    """Port of the process's API: processes at one address count up.

    Clients talk to `serving.port`; with prefill and decode apart that is the router's.
    """
    if is_headless(view, process):
        return None
    behind_router = process.role != "serve"
    return view.serving.port + behind_router + process.port_slot


def node_address(recipe: Recipe, node: int) -> str:
    """Address of a machine, or a word that stands for it."""
    addresses = recipe.site.node_addresses
    return addresses[node] if node < len(addresses) else NO_ADDRESS.format(node)


def put_topology(arguments: Arguments, view: Recipe, process: Process) -> None:
    """Arguments by which the processes of an instance find each other."""
    parallel, nodes = view.parallel, view.nodes
    address = node_address(view, process.leader)
    rpc_port = view.site.port_base + _FIRST_RPC_PORT + _PORTS_AN_INSTANCE * process.engine
    where = "site.node_addresses"
    if process.rank is not None:
        arguments.put("--data-parallel-rank", process.rank, f"rank {process.rank} of parallel.dp")
        arguments.put("--data-parallel-address", address, where)
        arguments.put("--data-parallel-rpc-port", rpc_port, "site.port_base")
    elif nodes > 1 and parallel.dp > 1:
        local = parallel.dp // nodes
        arguments.put("--data-parallel-size-local", local, f"parallel.dp over {nodes} nodes")
        if process.local_node:
            start = process.local_node * local
            arguments.put("--data-parallel-start-rank", start, "first rank on this node")
        arguments.put("--data-parallel-address", address, where)
        arguments.put("--data-parallel-rpc-port", rpc_port, "site.port_base")
    elif nodes > 1:
        # The default; but a process inside a Ray cluster would take Ray (vllm/config/parallel.py).
        because = "one engine over several nodes"
        arguments.put("--distributed-executor-backend", "mp", because)
        arguments.put("--nnodes", nodes, "nodes")
        arguments.put("--node-rank", process.local_node, "number of the node")
        arguments.put("--master-addr", address, where)
        arguments.put("--master-port", rpc_port, "site.port_base")
    if is_headless(view, process):
        arguments.put("--headless", True, "the first node answers requests")
    elif process.rank is None and (parallel.dp > 1 or view.serving.api_servers > 1):
        arguments.put("--api-server-count", view.serving.api_servers, "serving.api_servers")


def put_endpoint(arguments: Arguments, view: Recipe, process: Process, machines: int) -> int | None:
    """Where the process answers; the port, or none where it does not."""
    port = serving_port(view, process)
    if port is None:
        for flag in ("--host", "--port"):
            arguments.drop(flag)
        return None
    arguments.flags["--port"] = port
    if machines > 1 and process.role != "serve" and view.serving.host == _LOOPBACK:
        arguments.flags["--host"] = node_address(view, process.node)
        arguments.reasons["--host"] = "site.node_addresses: the router is on another machine"
    return port


def put_network(arguments: Arguments, view: Recipe, process: Process, machines: int) -> None:
    """Variables by which collectives find the right interface, where there are other machines."""
    if machines > 1:
        address = node_address(view, process.node)
        arguments.put("$HCCL_IF_IP", address, "site.node_addresses")
        interface = view.site.network_interface or NO_INTERFACE
        for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"):
            arguments.put(f"${name}", interface, "site.network_interface")
    if devices := _devices(view, process):
        arguments.put("$ASCEND_RT_VISIBLE_DEVICES", ",".join(map(str, devices)), "site.device_ids")


def _devices(view: Recipe, process: Process) -> tuple[int, ...]:
    """Dies of a process; none where it takes all of the node in order."""
    own = view.site.device_ids
    if process.rank is None:
        return own
    width = view.parallel.tp * view.parallel.pp
    wanted = range(process.slot * width, (process.slot + 1) * width)
    return tuple(own[index] if index < len(own) else index for index in wanted)
