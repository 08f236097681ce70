"""Probes of the dies: how many, which chip, how healthy, and whether somebody uses them."""

from collections import Counter
from collections.abc import Iterator, Sequence

from ascend_recipes.doctor.probe import Case
from ascend_recipes.doctor.smi import Die, SmiFault, SmiReport
from ascend_recipes.errors import Finding, Severity
from ascend_recipes.findings import finding
from ascend_recipes.launch.audit import world_size
from ascend_recipes.launch.environment import NATIVE
from ascend_recipes.launch.readiness import dies_needed
from ascend_recipes.rules.machines import generation_of_chip

_HEALTHY = "OK"
_TOLERABLE = "Warning"
"""What npu-smi says of a minor alarm; Alarm, Critical and UNKNOWN are worse.

Source: npu-smi reference, health of a chip.
"""
_IDLE_SHARE = 0.10
"""Share of the memory that an idle die may hold; 3 to 6 % in public reports."""
_USUAL_SHARE = 0.9
"""Share that vLLM takes unless told otherwise."""


def read_devices(case: Case) -> SmiReport | SmiFault | None:
    """What npu-smi says."""
    return case.smi


def show_devices(facts: SmiReport | SmiFault) -> str:
    """Number and names of the dies."""
    if isinstance(facts, SmiFault):
        return f"npu-smi: {facts.said}"
    names = Counter(die.name for die in facts.dies)
    dies = ", ".join(f"{count} x {name}" for name, count in names.items()) or "0"
    return f"{dies} (npu-smi {facts.version})"


def judge_devices(facts: SmiReport | SmiFault, case: Case) -> Iterator[Finding]:
    """The tool works, the chip is known and the recipe's, and there are enough dies."""
    if isinstance(facts, SmiFault):
        severity = Severity.ERROR if case.wants_npu else Severity.WARNING
        yield finding(
            "doctor.npu_smi_failed", severity=severity, status=facts.status, said=facts.said
        )
        return
    if facts.dies and not generation_of_chip(case.registry.hardware, facts.soc):
        yield finding("doctor.chip_unknown", name=facts.dies[0].name)
    yield from (item for item in case.misfits if item.id.startswith(("image.", "hardware.")))
    yield from _enough(case, len(facts.dies))


def absent_devices(case: Case) -> Iterator[Finding]:
    """No npu-smi: a recipe for NPUs cannot run here, and device files without it are odd."""
    files = _device_files(case)
    if files:
        yield finding("doctor.no_npu_smi", files=files)
    if case.planned is not None and case.wants_npu:
        yield from _enough(case, files)


def _enough(case: Case, present: int) -> Iterator[Finding]:
    if case.planned is None or not case.wants_npu:
        return
    needed, visible = _needed(case), _visible(case, present)
    if visible < needed:
        yield finding(
            "doctor.too_few_dies",
            at="parallel",
            needed=needed,
            visible=visible,
            present=present,
        )


def _needed(case: Case) -> int:
    assert case.planned is not None
    if case.planned.plan.runtime.name == NATIVE or case.deployment is None:
        return world_size(case.planned.plan)
    return dies_needed(case.deployment)


def _visible(case: Case, present: int) -> int:
    """Dies that the shell's own variable leaves."""
    chosen = case.host.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if chosen is None:
        return present
    return min(present, len([item for item in chosen.split(",") if item.strip()]))


def _device_files(case: Case) -> int:
    return sum(name[7:].isdigit() for name in case.host.names("/dev") if name.startswith("davinci"))


# --- health -------------------------------------------------------------------------------------
def read_dies(case: Case) -> tuple[Die, ...] | None:
    """The dies, where the table has any."""
    return case.smi.dies if isinstance(case.smi, SmiReport) and case.smi.dies else None


def show_health(dies: Sequence[Die]) -> str:
    """How many dies are in which state."""
    states = Counter(die.health for die in dies)
    return ", ".join(f"{count} {state}" for state, count in states.items())


def judge_health(dies: Sequence[Die], case: Case) -> Iterator[Finding]:
    """Dies with an alarm."""
    states = sorted({die.health for die in dies if die.health != _HEALTHY})
    for state in states:
        named = [die.number for die in dies if die.health == state]
        severity = Severity.WARNING if state == _TOLERABLE else Severity.ERROR
        spare = [die.number for die in dies if die.health == _HEALTHY]
        fix = f"site.device_ids=[{','.join(map(str, spare))}]" if case.planned and spare else ""
        yield finding(
            "doctor.unhealthy",
            severity=severity,
            at="site.device_ids",
            fix=fix,
            dies=named,
            state=state,
            cards=sorted({die.card for die in dies if die.health == state}),
        )


# --- memory -------------------------------------------------------------------------------------
def show_memory(dies: Sequence[Die]) -> str:
    """Size of a die, and the largest use of one."""
    most = max(dies, key=lambda die: die.used_mb)
    return f"{most.total_mb} MB a die, at most {most.used_mb} MB in use (die {most.number})"


def judge_memory(dies: Sequence[Die], case: Case) -> Iterator[Finding]:
    """Dies that somebody uses; an error where the recipe's share is no longer free."""
    smi = case.smi
    holders = smi.holders if isinstance(smi, SmiReport) else ()
    used = [die for die in dies if die.used_mb > _IDLE_SHARE * die.total_mb]
    if not used:
        return
    cards = {die.card for die in used}
    processes = [f"{name} ({pid})" for card, pid, name in holders if card in cards]
    share = _share(case)
    short = [die for die in used if die.total_mb - die.used_mb < share * die.total_mb]
    stops = case.planned is not None and case.wants_npu and bool(short)
    yield finding(
        "doctor.memory_taken",
        severity=Severity.ERROR if stops else Severity.WARNING,
        at="cache.memory_fraction",
        dies=[die.number for die in used],
        free=min(die.total_mb - die.used_mb for die in used),
        total=used[0].total_mb,
        share=share,
        processes=list(dict.fromkeys(processes)) or "?",
    )


def _share(case: Case) -> float:
    """Share of the memory that vLLM will ask for."""
    if case.planned is None:
        return _USUAL_SHARE
    return float(case.planned.resolved.recipe.cache.memory_fraction)
