"""What a probe is, what it looks at, and how its answer becomes a line of the report."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from ascend_recipes.doctor.host import Host
from ascend_recipes.doctor.smi import SmiFault, SmiReport, read_smi
from ascend_recipes.errors import Finding, RecipeError, Severity
from ascend_recipes.findings import Phrase, finding
from ascend_recipes.launch.deployment import Deployment, find_deployment
from ascend_recipes.launch.environment import NATIVE
from ascend_recipes.machine import InstalledVersions
from ascend_recipes.offering import hold_misfits
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.registry.load import Registry
from ascend_recipes.schema.site import SiteSpec

FactsT = TypeVar("FactsT")

_GB = 10**9


class State(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    ABSENT = "not here"


@dataclass(frozen=True)
class Case:
    """A machine, and the recipe that it shall serve if one is named."""

    host: Host
    registry: Registry
    planned: PlannedLaunch | None = None
    nodes: tuple[int, ...] = ()
    """Nodes that the user says this machine is; empty looks at its addresses."""
    named_site: SiteSpec | None = None
    """A site that is named without a recipe."""
    words: tuple[str, ...] = ()
    """The recipe as typed, behind which fixes are tried."""
    config_dirs: tuple[Path, ...] = ()
    """Further folders with recipes and presets."""

    @cached_property
    def smi(self) -> SmiReport | SmiFault | None:
        """What npu-smi says; none where there is none."""
        ran = self.host.run(("npu-smi", "info"))
        return None if ran is None else read_smi(ran.status, ran.output)

    @cached_property
    def installed(self) -> InstalledVersions:
        """Versions, with what npu-smi knows of the chip."""
        machine = self.host.installed(self.host)
        if isinstance(self.smi, SmiReport):
            machine = replace(machine, soc=self.smi.soc, hdk=machine.hdk or self.smi.version)
            machine = replace(machine, devices=len(self.smi.dies) or machine.devices)
        space = self.host.space(self.host.at(self.weights_folder))
        return replace(machine, free_disk_gb=space.free // _GB if space else None)

    @property
    def weights_folder(self) -> str:
        """Where weights lie, or would be downloaded to."""
        return self.planned.plan.model.checkpoint if self.planned else "/"

    @property
    def wants_npu(self) -> bool:
        """Whether NPUs are to be used: the recipe says so, or the machine has some."""
        if self.planned is not None:
            return self.planned.plan.device == "npu"
        return self.smi is not None or bool(self.installed.devices)

    @cached_property
    def misfits(self) -> tuple[Finding, ...]:
        """What the rules say about this machine beside the recipe."""
        if self.planned is None:
            return ()
        return hold_misfits(self.planned, self.installed, self.words, self.config_dirs)

    def misfits_of(self, *parts: str) -> tuple[Finding, ...]:
        """Those about some parts of what is installed."""
        named = {f"installed.{part}" for part in parts}
        return tuple(item for item in self.misfits if item.at in named)

    @property
    def site(self) -> SiteSpec | None:
        """Where the machine stands, as far as it is said."""
        return self.named_site if self.planned is None else self.planned.resolved.recipe.site

    @cached_property
    def part(self) -> Deployment | RecipeError | None:
        """Processes of a rendered recipe, or why this machine has none of them.

        None for other recipes, and where the site lacks something.
        """
        planned = self.planned
        if planned is None or planned.plan.runtime.name == NATIVE or planned.blockers:
            return None
        try:
            return find_deployment(planned, self.nodes)
        except RecipeError as error:
            return error

    @property
    def deployment(self) -> Deployment | None:
        """Processes of a rendered recipe, where this machine has some."""
        return self.part if isinstance(self.part, Deployment) else None


def _nothing(_: Case) -> Iterable[Finding]:
    return ()


@dataclass(frozen=True)
class Probe(Generic[FactsT]):
    """One line of the report: what is read, how it is shown, and what is wrong with it."""

    id: str
    title: Phrase
    read: Callable[[Case], FactsT | None]
    """None where there is nothing of the kind here."""
    show: Callable[[FactsT], str]
    judge: Callable[[FactsT, Case], Iterable[Finding]] = lambda _facts, case: _nothing(case)
    absent: Callable[[Case], Iterable[Finding]] = _nothing
    """What is wrong with having nothing."""


@dataclass(frozen=True)
class Check:
    """A line of the report."""

    id: str
    title: Phrase
    state: State
    value: str = ""
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The object of the document."""
        return {
            "id": self.id,
            "state": self.state.value,
            "value": self.value,
            "findings": [item.to_json() for item in self.findings],
        }


def examine(case: Case, probes: Sequence[Probe]) -> list[Check]:  # type: ignore[type-arg]
    """Run every probe; one that fails says so and leaves the others alone."""
    return [_check(probe, case) for probe in probes]


def _check(probe: Probe[FactsT], case: Case) -> Check:
    try:
        facts = probe.read(case)
        judged = probe.absent(case) if facts is None else probe.judge(facts, case)
        findings = tuple(dict.fromkeys(judged))
        value = "" if facts is None else probe.show(facts)
    except RecipeError as error:
        return Check(probe.id, probe.title, _state(error.findings), findings=error.findings)
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        # What a machine answers can be anything; the other lines are wanted all the more.
        failed = finding("doctor.probe_failed", check=probe.id, reason=repr(error))
        return Check(probe.id, probe.title, State.WARNING, findings=(failed,))
    state = State.ABSENT if facts is None and not findings else _state(findings)
    return Check(probe.id, probe.title, state, value, findings)


def _state(findings: Iterable[Finding]) -> State:
    worst = {item.severity for item in findings}
    if Severity.ERROR in worst:
        return State.ERROR
    return State.WARNING if Severity.WARNING in worst else State.OK
