"""Probes of the software: driver, CANN, packages and what extends vLLM."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascend_recipes.doctor.host import Plugin
from ascend_recipes.doctor.probe import Case
from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.machine import PACKAGES, PLUGIN_GROUPS
from ascend_recipes.operations_table import ProviderState, abi_findings, provider_states
from ascend_recipes.rules.installed import (
    installed_release,
    pair_findings,
    part_findings,
    release_of,
)
from ascend_recipes.versions import same_version

_OURS = "ascend-recipes"
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_TOOLKITS = (
    "/usr/local/Ascend/ascend-toolkit",
    "/usr/local/Ascend/cann",
    "/usr/local/Ascend/ascend-toolkit/latest",
)
"""Folders in which `set_env.sh` of the toolkit usually lies."""
_NNAL = "/usr/local/Ascend/nnal/atb"
_ATB = "ATB_HOME_PATH"
_PLATFORMS = PLUGIN_GROUPS[0]
_STACK = "vllm_ascend"


# --- driver -------------------------------------------------------------------------------------
def read_driver(case: Case) -> str | None:
    """Versions of driver and firmware."""
    # A container often lacks the version file; npu-smi's own version is the driver's.
    driver, firmware = case.installed.hdk, case.installed.firmware
    if driver is None:
        return None
    return driver if firmware is None else f"{driver}, firmware {firmware}"


def judge_driver(_: str, case: Case) -> Iterator[Finding]:
    """What the recipe asks of the driver."""
    yield from (item for item in case.misfits if item.at == "requires.driver")


def absent_driver(case: Case) -> Iterator[Finding]:
    """NPUs want a driver; a container must be shown its version file."""
    if case.wants_npu:
        yield finding("doctor.no_driver")


# --- CANN ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Toolkit:
    """The toolkit that a process started from this shell would use."""

    version: str | None
    home: str | None
    """Folder that the environment names."""
    exists: bool
    script: str | None
    """A `set_env.sh` that is there."""


def read_toolkit(case: Case) -> Toolkit | None:
    """The toolkit of the environment, else what lies in the usual places."""
    host = case.host
    home = next((host.environ[name] for name in _HOMES if host.environ.get(name)), None)
    scripts = (f"{folder}/set_env.sh" for folder in _TOOLKITS)
    script = next((path for path in scripts if host.exists(path)), None)
    exists = home is not None and (Path(home).is_dir() or host.exists(home))
    found = Toolkit(case.installed.cann, home, exists, script)
    return None if (found.version, home, script) == (None, None, None) else found


def show_toolkit(facts: Toolkit) -> str:
    """Version and place."""
    return f"{facts.version or '?'} ({facts.home or 'set_env.sh not sourced'})"


def judge_toolkit(facts: Toolkit, case: Case) -> Iterator[Finding]:
    """The shell must have sourced it, and what it names must be there."""
    if facts.home is not None and not facts.exists:
        yield finding("doctor.cann_gone", home=facts.home)
    elif facts.home is None and case.wants_npu:
        fix = f"source {facts.script}" if facts.script else ""
        yield finding("doctor.cann_not_sourced", fix=fix)
    yield from case.misfits_of("cann")
    yield from (item for item in case.misfits if item.at == "requires.cann")
    yield from _against_stack("cann", case)


def absent_toolkit(case: Case) -> Iterator[Finding]:
    """NPUs want CANN."""
    if case.wants_npu:
        yield finding("doctor.no_cann")


def read_nnal(case: Case) -> str | None:
    """Folder of the acceleration library that torch_npu loads."""
    return case.host.environ.get(_ATB) or (_NNAL if case.host.exists(_NNAL) else None)


def judge_nnal(folder: str, case: Case) -> Iterator[Finding]:
    """It is found through the environment only."""
    host = case.host
    if not host.environ.get(_ATB) and case.wants_npu:
        yield finding("doctor.nnal_not_sourced", fix=f"source {_NNAL}/set_env.sh")
    elif host.environ.get(_ATB) and not (Path(folder).is_dir() or host.exists(folder)):
        yield finding("doctor.nnal_gone", home=folder)


def absent_nnal(case: Case) -> Iterator[Finding]:
    """torch_npu on NPUs wants it."""
    if case.wants_npu and case.installed.torch_npu:
        yield finding("doctor.no_nnal")


# --- packages -----------------------------------------------------------------------------------
def version_of(part: str) -> Callable[[Case], str | None]:
    """Reader of the version of a part, by the field of `InstalledVersions` that holds it."""

    def read(case: Case) -> str | None:
        return case.installed.known.get(part)

    return read


def judgement_of(part: str) -> Callable[[str, Case], Iterator[Finding]]:
    """Judge of a part: beside the recipe, or else beside the installed release of vllm-ascend."""

    def judge(_: str, case: Case) -> Iterator[Finding]:
        yield from case.misfits_of(part)
        if part == "torch_npu":
            yield from (item for item in case.misfits if item.at == "requires.torch_npu")
        yield from _against_stack(part, case)

    return judge


def absence_of(part: str) -> Callable[[Case], Iterator[Finding]]:
    """What a recipe cannot do without."""

    def absent(case: Case) -> Iterator[Finding]:
        if case.planned is not None and part in _needed(case):
            package, version = PACKAGES[part], _wanted(part, case)
            fix = f'pip install "{package}=={version}"' if version else ""
            yield finding("doctor.no_package", fix=fix, package=package)

    return absent


def _wanted(part: str, case: Case) -> str | None:
    """Version of a part in the release that the recipe is for."""
    assert case.planned is not None
    release = installed_release(case.planned.resolved, case.installed)
    if release is None:
        return None
    version: str | None = release.version if part == _STACK else getattr(release, part)
    return version


def _needed(case: Case) -> set[str]:
    assert case.planned is not None
    plan = case.planned.plan
    needed = {"vllm"}
    if plan.device == "npu":
        needed |= {"torch", "torch_npu"}
    return needed | ({plan.runtime.name} & set(PACKAGES))


def _against_stack(part: str, case: Case) -> Iterator[Finding]:
    """Without a recipe the installed release says what belongs to it."""
    installed = case.installed
    if case.planned is not None:
        return
    yield from (item for item in pair_findings(installed) if item.at == f"installed.{part}")
    row = case.registry.stacks[_STACK]
    release = release_of(row, installed.vllm_ascend) if installed.vllm_ascend else None
    if release is None:
        return
    named = f"{row.distribution} {release.version}"
    if part == "vllm" and installed.vllm and not same_version(installed.vllm, release.vllm):
        yield finding(
            "env.matrix",
            at="installed.vllm",
            fix=f'pip install "vllm=={release.vllm}"',
            part="vllm",
            found=installed.vllm,
            wanted=release.vllm,
            release=named,
        )
    for item in part_findings(release, installed, named):
        if item.at == f"installed.{part}":
            yield item


# --- plugins ------------------------------------------------------------------------------------
def read_plugins(case: Case) -> tuple[Plugin, ...] | None:
    """Entry points that vLLM would load; none where there are none."""
    return case.host.plugins() or None


def show_plugins(plugins: Sequence[Plugin]) -> str:
    """Names and packages."""
    return ", ".join(dict.fromkeys(f"{item.name} ({item.distribution})" for item in plugins))


def judge_plugins(plugins: Sequence[Plugin], case: Case) -> Iterator[Finding]:
    """One platform, one owner a name, and a `VLLM_PLUGINS` that names what is there."""
    chosen = case.host.environ.get("VLLM_PLUGINS")
    allowed = None if chosen is None else {item.strip() for item in chosen.split(",")}
    names = {item.name for item in plugins}
    if allowed is not None and (unknown := sorted(allowed - names - {""})):
        yield finding("doctor.plugin_unknown", unknown=unknown, options=sorted(names))
    loaded = [item for item in plugins if allowed is None or item.name in allowed]
    platforms = [item for item in loaded if item.group == _PLATFORMS]
    # Ours stays aside unless a plan is at hand, and then the launcher names the plugins.
    others = sorted({item.distribution for item in platforms} - {_OURS})
    if len(others) > 1:
        first = next(item.name for item in platforms if item.distribution == others[0])
        yield finding("doctor.platforms_clash", fix=f"export VLLM_PLUGINS={first}", packages=others)
    owners: dict[tuple[str, str], set[str]] = {}
    for item in loaded:
        owners.setdefault((item.group, item.name), set()).add(item.distribution)
    for (_, name), packages in owners.items():
        if len(packages) > 1:
            yield finding("doctor.plugin_twice", name=name, packages=sorted(packages))
    yield from case.misfits_of("plugins")


# --- providers ----------------------------------------------------------------------------------
def read_providers(case: Case) -> Mapping[str, ProviderState]:
    """Suppliers of operator kernels beside what is installed."""
    installed = case.installed.known
    rows = case.registry.providers
    packages = {name for key in rows for name in (*rows[key].abi, rows[key].distribution) if name}
    return provider_states(case.registry, {name: installed.get(name) for name in packages})


def show_providers(states: Mapping[str, ProviderState]) -> str:
    """Who loads here."""
    return ", ".join(
        f"{key}: {'yes' if not state.differences else state.differences[0]}"
        for key, state in states.items()
    )


def judge_providers(states: Mapping[str, ProviderState], case: Case) -> Iterator[Finding]:
    """What stops a native plan: kernels that were built for another stack."""
    if case.planned is not None and case.planned.plan.runtime.name == "native":
        yield from abi_findings(case.planned.plan, case.registry, states)
