"""What this machine must offer before its part of a rendered deployment is started."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ascend_recipes.errors import ExitCode, Finding, RecipeError, Severity
from ascend_recipes.findings import Phrase, finding, phrase
from ascend_recipes.launch.deployment import Deployment, is_own_address
from ascend_recipes.launch.members import bound_host, find_executable
from ascend_recipes.launch.ports import (
    deployment_ranges,
    local_ranks,
    port_findings,
    width_of,
)
from ascend_recipes.launch.preflight import checkpoint_findings, is_free, num_npus
from ascend_recipes.launch.routing import router_findings
from ascend_recipes.machine import PACKAGES, this_machine
from ascend_recipes.planning.engine import checkpoint_source
from ascend_recipes.planning.ports import PortRange, meeting_port
from ascend_recipes.rules import check_installed

VLLM = "vllm"
_ASK_SECONDS = 20
_VERSIONS = (
    "import json; from importlib.metadata import version, PackageNotFoundError as E\n"
    "def v(n):\n try: return version(n)\n except E: return None\n"
    f"print(json.dumps({{key: v(name) for key, name in {PACKAGES!r}.items()}}))"
)


def check_deployment(deployment: Deployment) -> list[Finding]:
    """Refuse a start that cannot work, with everything that is missing at once.

    Returns:
        Warnings.

    Raises:
        RecipeError: findings about ports, packages, devices, weights, secrets. Exit code 4, or 3
            where the deployment itself is at fault.
    """
    wrong = [*port_findings(bound_ranges(deployment)), *_router(deployment)]
    missing = [
        *_addresses(deployment),
        *_packages(deployment),
        *_devices(deployment),
        *_weights(deployment),
        *_secrets(deployment),
        *_ports(deployment),
    ]
    errors = [item for item in (*wrong, *missing) if item.severity is Severity.ERROR]
    if errors:
        code = ExitCode.ENVIRONMENT if errors[0] in missing else ExitCode.FINDINGS
        raise RecipeError(tuple(errors), code)
    return [*wrong, *missing]


def bound_ranges(deployment: Deployment) -> list[PortRange]:
    """Every port that the deployment binds, on all its machines."""
    site, router = deployment.recipe.site, deployment.router
    ranges = list(deployment_ranges(deployment.members, site.node_addresses))
    if deployment.nodes > 1:
        lead = site.node_addresses[0]
        port = meeting_port(site.port_base)
        ranges.append(PortRange(lead, port, 1, phrase("cluster.meeting"), "site.port_base"))
    if router is not None:
        owner = phrase("cluster.router")
        ranges.append(PortRange(router.address, router.port, 1, owner, "serving.port"))
    return ranges


def _router(deployment: Deployment) -> Iterator[Finding]:
    yield from router_findings(deployment.recipe, deployment.members, deployment.outer)


def _addresses(deployment: Deployment) -> Iterator[Finding]:
    if deployment.nodes == 1:
        return
    for node in deployment.mine:
        address = deployment.recipe.site.node_addresses[node]
        if not is_own_address(address):
            at = "site.node_addresses"
            yield finding("cluster.foreign_address", at=at, node=node, address=address)


def _packages(deployment: Deployment) -> Iterator[Finding]:
    executable = find_executable(VLLM, deployment.outer)
    if executable is None:
        yield finding("cluster.no_executable", at="runtime.kind", name=VLLM)
        return
    found = installed_versions(executable)
    if found is None:
        return
    yield from _misfits(deployment, found)
    wanted = deployment.planned.plan.runtime.vllm
    vllm = found.get("vllm") or "none"
    if vllm.partition("+")[0] != wanted:
        at = "runtime.version"
        yield finding(
            "cluster.vllm_version", at=at, wanted=wanted, executable=executable, found=vllm
        )
    for package in ("vllm_ascend", "torch_npu"):
        if found.get(package) is None:
            at = "runtime.kind"
            yield finding("cluster.no_plugin", at=at, executable=executable, package=package)


def _misfits(deployment: Deployment, found: Mapping[str, str | None]) -> Iterator[Finding]:
    """What the rules say about this machine with the packages that the executable sees."""
    # What only the interpreter itself could tell of its environment is not known here.
    unknown: dict[str, Any] = {"plugins": (), "vllm_commit": None, "built_for": None}
    packages: dict[str, Any] = dict(found)
    machine = replace(this_machine(environ=deployment.outer), **packages, **unknown)
    yield from check_installed(deployment.planned.resolved, machine)


@cache
def installed_versions(executable: str) -> Mapping[str, str | None] | None:
    """Versions of the packages beside an executable, by the names of `InstalledVersions`.

    Asks the interpreter of its first line, which takes a twentieth of a second; `vllm --version`
    takes many. None where the executable names no Python, as a wrapper in another language.
    """
    with Path(executable).open("rb") as stream:
        first = stream.readline(4096)
    words = first.removeprefix(b"#!").decode(errors="replace").split()
    if not first.startswith(b"#!") or "python" not in words[-1]:
        return None
    try:
        asked = subprocess.run(
            [*words, "-c", _VERSIONS],
            capture_output=True,
            timeout=_ASK_SECONDS,
            check=True,
            cwd="/",
        )
        tree = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return tree if isinstance(tree, dict) else None


def dies_needed(deployment: Deployment) -> int:
    """Dies that the processes of this machine take together."""
    needed = sum(local_ranks(item)[1] * width_of(item) for item in deployment.local)
    # A process of an engine over several nodes without data parallelism holds its share only.
    shared = [item for item in deployment.local if "--nnodes" in item.command.argv]
    return needed // max(1, deployment.recipe.nodes) if shared else needed


def _devices(deployment: Deployment) -> Iterator[Finding]:
    needed = dies_needed(deployment)
    folder = Path(deployment.recipe.site.device_folder)
    found = num_npus(folder)
    if found < needed:
        yield finding(
            "cluster.too_few_dies",
            at="site.device_folder",
            nodes=", ".join(map(str, deployment.mine)),
            needed=needed,
            found=found,
            folder=folder,
        )


def _weights(deployment: Deployment) -> Iterator[Finding]:
    source = checkpoint_source(deployment.planned.resolved)
    if source is None or source.identifier is None:
        yield from checkpoint_findings(deployment.planned.plan)


def _secrets(deployment: Deployment) -> Iterator[Finding]:
    for name in deployment.recipe.site.secrets:
        if not os.environ.get(name):
            yield finding("site.secret_missing", at=f"site.secrets.{name}", name=name)


def _ports(deployment: Deployment) -> Iterator[Finding]:
    wanted: list[tuple[str, int, Phrase | str]] = [
        (bound_host(item.command), item.command.port, item.name)
        for item in deployment.local
        if item.command.port is not None
    ]
    if deployment.router is not None and deployment.leads:
        wanted.append((deployment.router.host, deployment.router.port, phrase("cluster.router")))
    for host, port, owner in wanted:
        if is_own_address(host) and not is_free(host, port):
            yield finding(
                "cluster.port_in_use",
                at="serving.port",
                fix=f"serving.port={deployment.recipe.serving.port + 100}",
                host=host,
                port=port,
                owner=owner,
            )
