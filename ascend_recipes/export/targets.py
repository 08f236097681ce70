"""The targets, and what stands in the way of writing a deployment down for one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ascend_recipes.errors import ExitCode, Finding, RecipeError, Severity
from ascend_recipes.export.argv import argv_files
from ascend_recipes.export.compose import compose_files
from ascend_recipes.export.describe import describe
from ascend_recipes.export.image import image_findings
from ascend_recipes.export.kubernetes import kubernetes_files, workload_name
from ascend_recipes.export.layout import ExportFile, Layout, slug_of
from ascend_recipes.export.places import JobPlaces, Places, PodPlaces, SitePlaces, hint
from ascend_recipes.export.shell import shell_files
from ascend_recipes.export.slurm import slurm_files
from ascend_recipes.findings import finding
from ascend_recipes.launch.environment import NATIVE
from ascend_recipes.launch.members import flag_value, name_members
from ascend_recipes.launch.ports import deployment_ranges, port_findings
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.planning.nodes import deployment_nodes
from ascend_recipes.planning.ports import PortRange

_EXECUTOR = "--distributed-executor-backend"
_ADDRESSES, _INTERFACE = "site.too_few_addresses", "site.no_interface"


@dataclass(frozen=True)
class Target:
    """A form in which deployments are written down."""

    files: Callable[[Layout], Iterator[ExportFile]]
    places: Callable[[PlannedLaunch], Places]
    has_image: bool = False
    """Whether the files name the container image."""
    brings_router: bool = True
    """Whether the minimal router comes along."""


@dataclass(frozen=True)
class Export:
    """A deployment written down."""

    layout: Layout
    files: tuple[ExportFile, ...]
    findings: tuple[Finding, ...]
    """Warnings and remarks."""


def export_deployment(
    planned: PlannedLaunch, target: str, *, command: str, placeholders: bool = False
) -> Export:
    """Write a deployment down for one of `TARGETS`.

    Args:
        planned: A plan, also one with blockers.
        target: Name of the target.
        command: What to type to write the files again.
        placeholders: Leave what the site does not name to variables, instead of refusing.

    Raises:
        RecipeError: a runtime that cannot be exported, or blockers of the plan (exit code 3).
    """
    chosen = TARGETS[target]
    if planned.plan.runtime.name == NATIVE:
        item = finding("export.native", at="runtime.kind", fix="runtime=vllm_ascend")
        raise RecipeError((item,), ExitCode.FINDINGS)
    places = chosen.places(planned)
    findings = [*_blockers(planned, places, placeholders=placeholders)]
    findings += port_findings(_ranges(planned))
    if chosen.has_image:
        findings += image_findings(planned.resolved)
    if errors := tuple(item for item in findings if item.severity is Severity.ERROR):
        raise RecipeError(errors, ExitCode.FINDINGS)
    layout = describe(planned, places, command)
    findings += _remarks(layout, brings_router=chosen.brings_router)
    return Export(layout, tuple(chosen.files(layout)), (*planned.findings, *findings))


def _blockers(planned: PlannedLaunch, places: Places, *, placeholders: bool) -> Iterator[Finding]:
    """What a launch would be refused for, as far as the target cannot do without."""
    spared = {_ADDRESSES} if places.deals_out or placeholders else set()
    spared |= {_INTERFACE} if placeholders else set()
    return (item for item in planned.blockers if item.id not in spared)


def _ranges(planned: PlannedLaunch) -> tuple[PortRange, ...]:
    members = name_members(planned.commands)
    return deployment_ranges(members, planned.resolved.recipe.site.node_addresses)


def _remarks(layout: Layout, *, brings_router: bool) -> Iterator[Finding]:
    """What is left to people."""
    named = dict.fromkeys(name for node in layout.nodes for name in node.variables if hint(name))
    if named:
        yield finding("export.placeholders", at="site", names=tuple(named))
    commands = [server.argv for node in layout.nodes for server in node.servers]
    if any(flag_value([word.text for word in argv], _EXECUTOR) == "ray" for argv in commands):
        at = "extra_args.distributed_executor_backend"
        yield finding("export.ray", at=at, fix=f"~{at}")
    router = layout.router
    if router is not None and not (brings_router and router.kind == "minimal"):
        package = "ascend-recipes" if router.kind == "minimal" else "vllm-router"
        yield finding(
            "export.router_package", at="site.router", package=package, because=router.because
        )


def _by_site(planned: PlannedLaunch) -> Places:
    return SitePlaces(planned.resolved.recipe.site.node_addresses)


def _by_pod(planned: PlannedLaunch) -> Places:
    places = deployment_nodes(planned.resolved.recipe)
    slug = slug_of(planned.plan.recipe)
    keys = [(place.role, place.instance) for place in places]
    return PodPlaces(
        places=places,
        sizes={key: keys.count(key) for key in keys},
        names={key: workload_name(slug, *key) for key in keys},
        service=slug,
    )


def _by_job(planned: PlannedLaunch) -> Places:
    del planned
    return JobPlaces()


TARGETS = {
    "shell": Target(shell_files, _by_site),
    "compose": Target(compose_files, _by_site, has_image=True),
    "k8s": Target(kubernetes_files, _by_pod, has_image=True),
    "slurm": Target(slurm_files, _by_job),
    "argv": Target(argv_files, _by_site, brings_router=False),
}
