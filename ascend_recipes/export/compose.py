"""Target `compose`: one Compose file a machine, with the script that its container runs."""

from collections.abc import Iterator
from typing import Any

from ascend_recipes.export.documents import yaml_text
from ascend_recipes.export.layout import ExportFile, Layout, Node
from ascend_recipes.export.places import hint
from ascend_recipes.export.router_sources import FOLDER, router_sources
from ascend_recipes.export.script import (
    HEALTH_COMMAND,
    SIGNATURE,
    heading,
    node_program,
    router_program,
)
from ascend_recipes.export.words import Word, variables_of

INSIDE = "/ascend_recipes"
"""Folder of the container with our scripts."""
CACHE = "/cache"
"""Folder of the container with downloads."""
CACHE_VARIABLES = {"HF_HOME": f"{CACHE}/huggingface", "MODELSCOPE_CACHE": f"{CACHE}/modelscope"}
GRACE_SECONDS = 60
"""Time that a container gets to finish running requests."""

_PERIOD_SECONDS = 10
_TIMEOUT_SECONDS = 15


def compose_files(layout: Layout) -> Iterator[ExportFile]:
    """Files of every machine; `docker compose -f node0-serve.yaml up` starts the first one."""
    for node in layout.nodes:
        inside = node.in_container()
        yield ExportFile(f"{node.name}.yaml", _file(layout, node))
        yield ExportFile(f"{node.name}.sh", node_program(layout, inside), is_program=True)
    if layout.router is not None:
        text = router_program(layout, layout.router)
        yield ExportFile("router.sh", text, is_program=True)
        yield from router_sources(layout.router)


def _file(layout: Layout, node: Node) -> str:
    services: dict[str, Any] = {node.role: _server(layout, node)}
    if layout.router is not None and node.number == 0:
        services["router"] = _router(layout, node)
    tree = {"name": f"{layout.slug}-node{node.number}", "services": services}
    what = f"node {node.number}; {SIGNATURE} --target compose"
    order = f"# order: {' -> '.join([*layout.groups, *(['router'] if layout.router else [])])}"
    head = "\n".join([*heading(layout, what), order, "---"])
    return f"{head}\n{yaml_text(tree)}"


def _server(layout: Layout, node: Node) -> dict[str, Any]:
    mounts = list(layout.container.mounts)
    if len(layout.nodes) > 1:
        mounts += layout.container.network_mounts
    volumes = [_bind(path, path) for path in (*mounts, *layout.weights)]
    if layout.cache_folder:
        volumes.append(_bind(layout.cache_folder, CACHE, is_written=True))
    dies = [f"{layout.device_folder}/davinci{die}" for die in node.dies]
    devices = [*dies, *layout.container.devices]
    service: dict[str, Any] = {
        **_common(layout, node.variables, f"{node.name}.sh", volumes),
        "shm_size": f"{layout.shared_memory_gib}gb",
        "devices": [f"{path}:{path}" for path in devices],
    }
    if layout.cache_folder:
        service["environment"] = {**service.get("environment", {}), **CACHE_VARIABLES}
    if node.listening:
        service["healthcheck"] = _health(layout, [server.health for server in node.listening])
    return service


def _router(layout: Layout, node: Node) -> dict[str, Any]:
    router = layout.router
    assert router is not None
    asked = [item.reached(server) for item in layout.nodes for server in item.listening]
    variables = (*router.variables, *variables_of(asked))
    brought = router.settings is not None
    volumes = [_bind(f"./{FOLDER}", f"{INSIDE}/{FOLDER}")] if brought else []
    return {
        **_common(layout, tuple(dict.fromkeys(variables)), "router.sh", volumes),
        "depends_on": {node.role: {"condition": "service_healthy"}},
        "healthcheck": _health(layout, [router.health]),
    }


def _common(
    layout: Layout, variables: tuple[str, ...], script: str, volumes: list[dict[str, Any]]
) -> dict[str, Any]:
    told = {name: hint(name) for name in variables}
    environment = {name: f"${{{name}:?{text}}}" for name, text in told.items() if text}
    environment |= {name: f"${{{name}:?a secret of the site}}" for name in layout.secrets}
    service: dict[str, Any] = {
        "image": layout.image,
        "network_mode": "host",
        "restart": "unless-stopped",
        "stop_grace_period": f"{GRACE_SECONDS}s",
        "command": ["bash", f"{INSIDE}/{script}"],
        "volumes": [*volumes, _bind(f"./{script}", f"{INSIDE}/{script}")],
    }
    return service | ({"environment": environment} if environment else {})


def _bind(source: str, target: str, *, is_written: bool = False) -> dict[str, Any]:
    """A file or folder of the machine; one that is absent is an error, not an empty folder."""
    bind: dict[str, Any] = {"type": "bind", "source": source, "target": target}
    if is_written:
        return bind
    return bind | {"read_only": True, "bind": {"create_host_path": False}}


def _health(layout: Layout, urls: list[Word]) -> dict[str, Any]:
    words = [*HEALTH_COMMAND, "1"]
    return {
        "test": ["CMD", *(word.replace("$", "$$") for word in words)]
        + [url.in_compose() for url in urls],
        "interval": f"{_PERIOD_SECONDS}s",
        "timeout": f"{_TIMEOUT_SECONDS}s",
        "retries": 3,
        "start_period": f"{layout.ready_seconds}s",
    }
