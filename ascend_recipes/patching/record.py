"""Records what a version of vLLM looks like where we or vllm-ascend touch it: facts, no code."""

import json
from collections.abc import Iterable
from pathlib import Path

from ascend_recipes.patching.facts import LiveDefinitions
from ascend_recipes.patching.peers import peer_entries
from ascend_recipes.patching.surface import our_surface
from ascend_recipes.patching.tree import SourceTree
from ascend_recipes.registry.load import Registry
from ascend_recipes.schema.patch import VersionRow


def recorded_targets(registry: Registry, pinned: SourceTree) -> dict[str, tuple[str, ...]]:
    """Everything to record -> what of ours uses it; nothing for names that only others patch.

    Args:
        registry: For patch rows, hooks and what vllm-ascend patches.
        pinned: The version that our code is written against.
    """
    live = LiveDefinitions(pinned)

    def exists(target: str) -> bool:
        facts = live.facts(target)
        return facts is not None and facts.kind != "external"

    uses = dict(our_surface(registry, exists).uses)
    for key, row in registry.patches.items():
        for target in (row.target, *row.aliases):
            uses[target] = (*uses.get(target, ()), f"patch {key}")
    for entry in peer_entries(registry):
        if entry.in_vllm:
            uses.setdefault(entry.read, ())
    return dict(sorted(uses.items()))


def record_version(
    tree: SourceTree, targets: Iterable[str], uses: dict[str, tuple[str, ...]] | None = None
) -> VersionRow:
    """Facts of one version.

    Args:
        tree: Sources of the version.
        targets: What to look up.
        uses: What of ours uses which target; for the pinned version only.
    """
    live = LiveDefinitions(tree)
    return VersionRow(
        version=tree.version,
        definitions={target: live.facts(target) for target in targets},
        uses={target: items for target, items in (uses or {}).items() if items},
    )


def version_text(row: VersionRow) -> str:
    """YAML of a row, one definition a line."""
    lines = [
        "# Written by `ascend-run patches record`; facts about vLLM, none of its code.",
        f'version: "{row.version}"',
        "definitions:",
    ]
    for target, facts in row.definitions.items():
        values = facts.model_dump(exclude_defaults=True) if facts else None
        lines.append(f'  "{target}": {_flow(values)}')
    if row.uses:
        lines.append("uses:")
        lines += [f'  "{target}": {_flow(list(uses))}' for target, uses in row.uses.items()]
    return "\n".join(lines) + "\n"


def write_version(folder: Path, row: VersionRow) -> Path:
    """Write a row into `registry/vllm_versions`."""
    path = folder / f"{row.version}.yaml"
    path.write_text(version_text(row), encoding="utf-8")
    return path


def _flow(value: object) -> str:
    # JSON is YAML, and its quoting needs no thought.
    return json.dumps(value, ensure_ascii=False)
