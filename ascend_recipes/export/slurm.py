"""Target `slurm`: one batch script that starts every process and stays until one ends."""

from collections.abc import Iterator

from ascend_recipes.export.layout import ExportFile, Layout, Node, Server
from ascend_recipes.export.router_sources import router_sources
from ascend_recipes.export.script import (
    STRICT,
    UNTIL_ONE_ENDS,
    demands,
    environment,
    guard,
    heading,
    in_background,
    patience,
    readiness,
    router_lines,
    waiting,
)
from ascend_recipes.export.words import Word

_ROUTER_SECONDS = 120

_HOSTS = """\
mapfile -t hosts < <(scontrol show hostnames "${SLURM_JOB_NODELIST}")
read -r -a srun_options <<<"${SRUN_OPTIONS:-}"
step=("${srun_options[@]}" --nodes=1 --ntasks=1 --overlap --kill-on-bad-exit=1)"""

_ADDRESSES = """\
addresses=()
for host in "${hosts[@]}"; do
  found="$(srun --nodes=1 --ntasks=1 --overlap --nodelist="${host}" \\
    ip -4 -oneline address show dev %s | awk '{ split($4, part, "/"); print part[1]; exit }')"
  addresses+=("${found:?%s has no address on ${host}}")
done"""


def slurm_files(layout: Layout) -> Iterator[ExportFile]:
    """The batch script: `sbatch job.sbatch` in the folder of the files."""
    yield ExportFile("job.sbatch", _job(layout), is_program=True)
    yield from router_sources(layout.router)


def _job(layout: Layout) -> str:
    blocks = [
        _head(layout),
        demands(layout, [name for node in layout.nodes for name in node.variables]),
        environment(layout),
        _HOSTS,
        _addresses(layout),
        guard(),
        patience(),
        readiness(),
    ]
    for role in layout.groups:
        nodes = [node for node in layout.nodes if node.role == role]
        blocks += ["\n".join(_step(node, server)) for node in nodes for server in node.servers]
        blocks.append(_ready(layout, nodes))
    if layout.router is not None:
        lines = router_lines(layout.router, "${SLURM_SUBMIT_DIR}")
        blocks.append("\n".join(["# router", "(", *(f"  {line}" for line in lines), ") &"]))
        blocks[-1] += '\nprocesses+=("$!")'
        blocks.append(waiting(_ROUTER_SECONDS, [layout.router.health], function="ready"))
    blocks += [f'echo "ready on ${{hosts[0]}}, port {layout.port}"', UNTIL_ONE_ENDS]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _head(layout: Layout) -> str:
    order = " -> ".join([*layout.groups, *(["router"] if layout.router else [])])
    dies = max(len(node.dies) for node in layout.nodes)
    options = [
        f"--job-name={layout.slug}",
        f"--nodes={len(layout.nodes)}",
        "--ntasks-per-node=1",
        "--exclusive",
        "--output=%x-%j.log",
    ]
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *(f"#SBATCH {option}" for option in options),
            *heading(layout, f"all {len(layout.nodes)} node(s), in order: {order}"),
            f"# Where the cluster counts dies: sbatch --gres=npu:{dies} job.sbatch",
            "# SRUN_OPTIONS is added to every step, such as the container of your plugin.",
            STRICT,
        ]
    )


def _addresses(layout: Layout) -> str:
    """The addresses of the interface for collectives; a single machine needs none."""
    if len(layout.nodes) == 1:
        return ""
    interface = layout.nodes[0].servers[0].env["HCCL_SOCKET_IFNAME"]
    return _ADDRESSES % (interface.in_shell(), interface.text)


def _step(node: Node, server: Server) -> Iterator[str]:
    yield f"# {server.name}, on node {node.number}"
    yield from in_background(
        server.env,
        server.argv,
        f'srun "${{step[@]}}" --nodelist="${{hosts[{node.number}]}}"',
        f"--job-name={server.name} --output={server.name}-%j.log",
    )


def _ready(layout: Layout, nodes: list[Node]) -> str:
    """Wait for a role, from the first machine, where batch scripts run."""
    urls = [_url(node, server) for node in nodes for server in node.listening]
    return waiting(layout.ready_seconds, urls, function="ready") if urls else ""


def _url(node: Node, server: Server) -> Word:
    return server.health if node.number == 0 else node.reached(server)
