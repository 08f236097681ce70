"""The same radar over what vllm-ascend patches: what each vLLM release does to its users."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ascend_recipes.patching.facts import Change, Definitions, compare, history
from ascend_recipes.registry.load import Registry
from ascend_recipes.schema.patch import PeerTarget, VersionRow

PEER_BASE = "0.27.1"
"""Newest vLLM release that vllm-ascend at 182b75ea is verified with."""

PEER_COUNT = 138
"""Direct assignments to foreign names in the 51 patch modules of vllm-ascend at 182b75ea."""


@dataclass(frozen=True)
class PeerEntry:
    """One name that vllm-ascend assigns to, with the module that does it."""

    file: str
    condition: str
    target: PeerTarget

    @property
    def read(self) -> str:
        """Definition to look at."""
        return self.target.reads_as or self.target.target

    @property
    def in_vllm(self) -> bool:
        """Whether vLLM is what is patched; torch and torchair have other versions."""
        return self.read.startswith("vllm.")


def peer_entries(registry: Registry) -> Iterator[PeerEntry]:
    """Every name, in the order of the files."""
    for row in registry.peer_patches.values():
        for target in row.targets:
            yield PeerEntry(row.file, row.condition, target)


def direct_count(registry: Registry) -> int:
    """Number of distinct names that are assigned to directly."""
    return len({item.target.target for item in peer_entries(registry) if not item.target.indirect})


def recorded_versions(registry: Registry) -> dict[str, VersionRow]:
    """Version -> evidence, oldest first."""
    from packaging.version import Version

    keys = sorted(registry.vllm_versions, key=Version)
    return {key: registry.vllm_versions[key] for key in keys}


def effect(entry: PeerEntry, change: Change) -> Change:
    """What a change means for the patch: a name that it adds must not appear."""
    if entry.target.adds:
        return {Change.ABSENT: Change.SAME, Change.NEW: Change.SIGNATURE}.get(change, change)
    return change


def peer_table(registry: Registry) -> dict[str, dict[str, Change]]:
    """Target -> version -> what that version did, for the names in vLLM."""
    versions = recorded_versions(registry)
    return {
        entry.target.target: {
            version: effect(entry, change) for version, change in history(entry.read, versions)
        }
        for entry in peer_entries(registry)
        if entry.in_vllm
    }


def release_counts(table: Mapping[str, Mapping[str, Change]]) -> dict[str, Counter[Change]]:
    """Version -> how many names it left alone, changed, moved, removed."""
    counts: dict[str, Counter[Change]] = {}
    for changes in table.values():
        for version, change in changes.items():
            counts.setdefault(version, Counter())[change] += 1
    return counts


def peer_changes(registry: Registry, base: VersionRow, now: Definitions) -> dict[str, Change]:
    """Target -> what became of it between a recorded version and another one."""
    found = {}
    for entry in peer_entries(registry):
        if entry.in_vllm and now.knows(entry.read):
            change = compare(base.definitions.get(entry.read), now.facts(entry.read))
            found[entry.target.target] = effect(entry, change)
    return found
