"""Who spreads requests over prefill and decode, and the process that does it."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.launch.environment import rendered_environment
from ascend_recipes.launch.folder import RunFolder
from ascend_recipes.launch.http import ServerClient
from ascend_recipes.launch.members import LOG_FOLDER, Member, bound_host, find_executable
from ascend_recipes.launch.ports import connectors_of
from ascend_recipes.launch.session import ProcessSpec
from ascend_recipes.planning.ports import meeting_port
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.schema.roles import role_recipe

ROUTER = "router"
EXECUTABLE = "vllm-router"
MODULE = "ascend_recipes.launch.router.server"
_CALLS_BACK = "Layerwise"
"""Part of the names of connectors whose decode side calls back for the prompt."""
_WILDCARDS = ("0.0.0.0", "::")
_LOOPBACKS = ("127.0.0.1", "::1", "localhost")

RouterKind = Literal["vllm_router", "minimal"]


@dataclass(frozen=True)
class RouterPlan:
    """The router of a deployment with prefill and decode apart."""

    kind: RouterKind
    because: str
    host: str
    port: int
    address: str
    """Address of the leading node, where decode servers call back."""
    prefill: tuple[tuple[str, int], ...]
    decode: tuple[tuple[str, int], ...]
    layerwise: bool
    metrics_port: int

    @property
    def client(self) -> ServerClient:
        """Whom clients talk to."""
        return ServerClient(self.host, self.port)


def plan_router(
    recipe: Recipe, members: Sequence[Member], outer: Mapping[str, str]
) -> RouterPlan | None:
    """Choose the router; none where one role does everything."""
    if "serve" in recipe.roles:
        return None
    addresses = recipe.site.node_addresses
    servers = {
        role: tuple(
            (_reachable(item, addresses), item.command.port)
            for item in members
            if item.command.role == role and item.command.port is not None
        )
        for role in ("prefill", "decode")
    }
    installed = find_executable(EXECUTABLE, outer) is not None
    kind, because = choose_router(recipe, members, names=outer, installed=installed)
    layerwise = calls_back(members)
    return RouterPlan(
        kind=kind,
        because=because,
        host=bound_by_router(recipe, addresses[0], layerwise=layerwise),
        port=recipe.serving.port,
        address=addresses[0],
        prefill=servers["prefill"],
        decode=servers["decode"],
        layerwise=layerwise,
        metrics_port=meeting_port(recipe.site.port_base) + 1,
    )


def bound_by_router(recipe: Recipe, address: str, *, layerwise: bool) -> str:
    """What the router binds: its machine's address where other machines call it back."""
    apart = len(set(recipe.site.node_addresses)) > 1 or not recipe.site.node_addresses
    is_hidden = recipe.serving.host in _LOOPBACKS
    return address if layerwise and apart and is_hidden else recipe.serving.host


def router_findings(
    recipe: Recipe, members: Sequence[Member], outer: Mapping[str, str]
) -> Iterator[Finding]:
    """What speaks against the router that the site asks for."""
    if "serve" in recipe.roles or recipe.site.router != "vllm_router":
        return
    fix = "site.router=minimal"
    if find_executable(EXECUTABLE, outer) is None:
        yield finding("cluster.no_router", at="site.router", fix=fix)
    if connector := _calling_back(members):
        yield finding("cluster.router_protocol", at="site.router", fix=fix, connector=connector)
    elif _recomputes(recipe):
        yield finding("cluster.router_recompute", at="site.router", fix=fix)


def router_spec(
    plan: RouterPlan, folder: RunFolder, python: str, outer: Mapping[str, str]
) -> ProcessSpec:
    """What a session starts; the minimal router reads its settings from the run folder."""
    if plan.kind == "minimal":
        folder.write_json("router.json", router_settings(plan))
        command: tuple[str, ...] = (python, "-m", MODULE, str(folder.path / "router.json"))
    else:
        command = (find_executable(EXECUTABLE, outer) or EXECUTABLE, *router_arguments(plan))
    return ProcessSpec(
        name=ROUTER,
        command=command,
        environment=rendered_environment({}, outer),
        log=folder.path / LOG_FOLDER / f"{ROUTER}.log",
        group=ROUTER,
        port=plan.port,
    )


def choose_router(
    recipe: Recipe, members: Sequence[Member], *, names: Container[str], installed: bool
) -> tuple[RouterKind, str]:
    """The router and the reason.

    Args:
        recipe: With prefill and decode apart.
        members: Its processes.
        names: Variables that the router's environment has.
        installed: Whether `vllm-router` is there.
    """
    if recipe.site.router != "auto":
        return recipe.site.router, "site.router"
    if connector := _calling_back(members):
        return "minimal", f"vllm-router does not answer the callbacks of {connector}"
    if _recomputes(recipe):
        return "minimal", "scheduler.recompute: vllm-router does not repeat requests given up"
    if "VLLM_API_KEY" in names:
        return "minimal", "VLLM_API_KEY is passed on from clients, not written to a command line"
    if not installed:
        return "minimal", "vllm-router is not installed"
    return "vllm_router", "vllm-router is installed"


def calls_back(members: Sequence[Member]) -> bool:
    """Whether decode servers ask the router for their prompts."""
    return _calling_back(members) is not None


def _calling_back(members: Sequence[Member]) -> str | None:
    """Connector of the deployment whose decode side calls back, if there is one."""
    names = (str(item.get("kv_connector", "")) for one in members for item in connectors_of(one))
    return next((name for name in names if _CALLS_BACK in name), None)


def _recomputes(recipe: Recipe) -> bool:
    return role_recipe(recipe, "decode").scheduler.recompute


def _reachable(member: Member, addresses: Sequence[str]) -> str:
    host = bound_host(member.command)
    return addresses[member.command.node] if host in _WILDCARDS else host


def router_settings(plan: RouterPlan) -> dict[str, Json]:
    """What the minimal router reads."""
    return {
        "host": plan.host,
        "port": plan.port,
        "address": plan.address,
        "prefill": [list(server) for server in plan.prefill],
        "decode": [list(server) for server in plan.decode],
        "layerwise": plan.layerwise,
    }


def router_arguments(plan: RouterPlan) -> Iterator[str]:
    """Words after `vllm-router`."""
    yield from ("--host", plan.host, "--port", str(plan.port), "--vllm-pd-disaggregation")
    yield from ("--prometheus-host", "127.0.0.1", "--prometheus-port", str(plan.metrics_port))
    for flag, servers in (("--prefill", plan.prefill), ("--decode", plan.decode)):
        for host, port in servers:
            yield from (flag, ServerClient(host, port).url)
