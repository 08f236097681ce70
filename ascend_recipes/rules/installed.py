"""Rules over a recipe and a machine: whether what is installed belongs together and fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ascend_recipes.errors import Finding, Severity
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules import options
from ascend_recipes.rules.holding import holds
from ascend_recipes.schema.stack import ReleaseFacts, StackRow
from ascend_recipes.versions import in_range, parse_version, same_version

if TYPE_CHECKING:
    from ascend_recipes.machine import InstalledVersions

_EXACT = ("torch", "torch_npu", "triton_ascend", "cann", "mooncake")
_RANGES = ("python", "transformers")


@holds("vllm_ascend")
def release_is_the_recipes(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """What is rendered for one release is not for its candidates, nor for other releases."""
    version, wanted = installed.vllm_ascend, resolved.runtime_version
    row = _stack(resolved)
    span = row.installs.get(wanted, f"=={wanted}")
    if version is None or in_range(version, span):
        return
    here, there = parse_version(version), parse_version(wanted)
    suffix = here is not None and there is not None and here.release == there.release
    served = next((name for name, other in row.installs.items() if in_range(version, other)), "")
    yield finding(
        "drift.version_granularity" if suffix else "version.installed",
        at="runtime.version",
        fix=f"runtime.version={served}" if served else "",
        installed=version,
        wanted=wanted,
        package=row.distribution,
    )


def parts_belong_together(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """Every part is the one that the installed release was built and tested with."""
    release = installed_release(resolved, installed)
    if release is None:
        return
    yield from part_findings(release, installed, _named(resolved, release))
    yield from pair_findings(installed)
    yield from _no_triton_without_use(resolved, installed)


def part_findings(
    release: ReleaseFacts, installed: InstalledVersions, named: str
) -> Iterator[Finding]:
    """Parts that are not those of a release.

    Args:
        release: what belongs together.
        installed: what is there.
        named: the release, for people.
    """
    found = installed.known
    for part in _EXACT:
        wanted = getattr(release, part)
        if wanted and part in found and not same_version(found[part], wanted):
            yield _mismatch(part, found[part], wanted, f"=={wanted}", named)
    for part in _RANGES:
        wanted = getattr(release, part)
        if wanted and in_range(found.get(part), wanted) is False:
            yield _mismatch(part, found[part], wanted, wanted, named)


def _mismatch(part: str, found: str, wanted: str, span: str, release: str) -> Finding:
    package = part.replace("_", "-")
    pip = "" if part in ("cann", "python") else f'pip install "{package}{span}"'
    return finding(
        "env.matrix",
        at=f"installed.{part}",
        fix=pip,
        part=package,
        found=found,
        wanted=wanted,
        release=release,
    )


def pair_findings(installed: InstalledVersions) -> Iterator[Finding]:
    """Packages that cannot stand beside each other, whatever runs.

    torch_npu is compiled against one release of torch; two packages bring one module `triton`.
    """
    torch, npu = parse_version(installed.torch), parse_version(installed.torch_npu)
    if torch is not None and npu is not None and torch.release != npu.release:
        yield finding(
            "env.torch_pair",
            at="installed.torch_npu",
            fix=f'pip install "torch-npu=={".".join(map(str, torch.release))}.*"',
            torch=str(installed.torch),
            torch_npu=str(installed.torch_npu),
        )
    if installed.triton and installed.triton_ascend:
        yield finding(
            "env.two_tritons",
            at="installed.triton",
            fix="pip uninstall triton",
            triton=installed.triton,
            triton_ascend=installed.triton_ascend,
        )


def _no_triton_without_use(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """310P has no use for triton-ascend."""
    if installed.triton_ascend and "triton" not in resolved.hardware.capabilities:
        yield finding(
            "env.triton_unsupported",
            at="installed.triton_ascend",
            fix="pip uninstall triton-ascend triton",
            hardware=resolved.recipe.hardware,
        )


def patched_release_is_there(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """Patches and subclasses meet the vLLM that they were written against."""
    release = installed_release(resolved, installed)
    if release is None or installed.vllm is None:
        return
    if not same_version(installed.vllm, release.vllm):
        yield finding(
            "drift.symbol",
            severity=_drift_severity(resolved),
            at="installed.vllm",
            fix=f'pip install "vllm=={release.vllm}"',
            found=installed.vllm,
            wanted=release.vllm,
            release=_named(resolved, release),
            changed=_changed(resolved, release.vllm, installed.vllm),
        )
    elif installed.vllm_commit:
        yield finding(
            "drift.source_text",
            at="installed.vllm_commit",
            fix=f'pip install "vllm=={release.vllm}"',
            commit=installed.vllm_commit[:12],
            wanted=release.vllm,
            release=_named(resolved, release),
        )


@holds("vllm_ascend")
def version_is_understood(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """vllm-ascend compares vLLM's version to choose its code; a development build fits none."""
    version, said = installed.vllm, options.variable(resolved, "VLLM_VERSION")
    if version is None or said is not None:
        return
    parsed = parse_version(version)
    if parsed is None or parsed.is_devrelease or parsed.local:
        release = installed_release(resolved, installed)
        wanted = (
            release.vllm
            if release is not None
            else resolved.runtime.vllm.get(resolved.runtime_version, "")
        )
        yield finding(
            "env.vllm_version",
            severity=Severity.ERROR if parsed is None else Severity.WARNING,
            at="env.VLLM_VERSION",
            fix=f"env.VLLM_VERSION={wanted}" if wanted else "",
            version=version,
        )


@holds("vllm_ascend")
def others_leave_it_alone(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """Whoever else extends vLLM in the same processes is in none of our tables."""
    if installed.plugins and options.variable(resolved, "VLLM_PLUGINS") is None:
        yield finding(
            "drift.silent_patch",
            at="installed.plugins",
            fix=f"env.VLLM_PLUGINS='\"{','.join(_PLUGINS)}\"'",
            plugins=installed.plugins,
        )


_PLUGINS = (
    "ascend",
    "ascend_kv_connector",
    "ascend_model_loader",
    "ascend_service_profiling",
    "ascend_model",
)
"""Plugins of vllm-ascend (setup.py:510-525)."""


def installed_release(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> ReleaseFacts | None:
    """The row of the installed release; of the recipe's where nothing is said about it."""
    row = _stack(resolved)
    if resolved.recipe.runtime.kind != "native" and installed.vllm_ascend is not None:
        return release_of(row, installed.vllm_ascend)
    return row.release(resolved.runtime_version) or _newest(row, resolved.runtime_version)


def release_of(row: StackRow, version: str) -> ReleaseFacts | None:
    """The row of an installed version; of what it is a build of where it has none itself."""
    parsed = parse_version(version)
    exact = row.release(version)
    return exact or (row.release(parsed.base_version) if parsed is not None else None)


def _newest(row: StackRow, runtime_version: str) -> ReleaseFacts | None:
    """The last release inside what a runtime version speaks for."""
    span = row.installs.get(runtime_version)
    fitting = [item for item in row.releases if span and in_range(item.version, span)]
    return fitting[-1] if fitting else None


def _stack(resolved: ResolvedRecipe) -> StackRow:
    return resolved.registry.stacks[resolved.recipe.runtime.kind]


def _named(resolved: ResolvedRecipe, release: ReleaseFacts) -> str:
    return f"{_stack(resolved).distribution} {release.version}"


def _drift_severity(resolved: ResolvedRecipe) -> Severity:
    """Our own patches are checked against one vLLM; for others we have their documents."""
    native = resolved.recipe.runtime.kind == "native"
    return Severity.ERROR if native else Severity.WARNING


def _changed(resolved: ResolvedRecipe, base: str, found: str) -> str:
    """How many patched names another release changed, where both are recorded; else a dash."""
    rows = resolved.registry.vllm_versions
    version = parse_version(found)
    target = version.base_version if version is not None else found
    if base not in rows or target not in rows or target == base:
        return "-"
    from ascend_recipes.patching.facts import Change, compare
    from ascend_recipes.patching.peers import effect, peer_entries

    entries = [item for item in peer_entries(resolved.registry) if item.in_vllm]
    before, after = rows[base].definitions, rows[target].definitions
    changes = [
        effect(item, compare(before.get(item.read), after.get(item.read))) for item in entries
    ]
    moved = sum(change not in (Change.SAME, Change.ABSENT) for change in changes)
    return f"{moved}/{len(changes)}"
