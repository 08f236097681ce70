"""Documents that are generated from the registry, so that they can neither lag nor miscount."""

from collections import Counter
from collections.abc import Mapping

from ascend_recipes.patching.facts import Change, RecordedDefinitions, compare, history
from ascend_recipes.patching.markdown import WRITTEN_BY, code, page, short, table
from ascend_recipes.patching.peers import (
    PEER_BASE,
    peer_changes,
    peer_entries,
    peer_table,
    recorded_versions,
    release_counts,
)
from ascend_recipes.patching.readme import status_block
from ascend_recipes.patching.report import PINNED
from ascend_recipes.patching.texts import HOW_IT_WORKS, NEEDED_HEAD, UPGRADE_HEAD
from ascend_recipes.registry.load import Registry
from ascend_recipes.schema.patch import Action, UpgradeNotesRow, Upstream, VersionRow

_BREAKING = (Change.SIGNATURE, Change.MOVED, Change.GONE)


def documents(registry: Registry) -> dict[str, str]:
    """File name below `docs/` -> text."""
    found = {
        "patches.md": patches_document(registry),
        "patches_needed.md": needed_document(registry),
    }
    for key, notes in registry.upgrade_notes.items():
        name = f"vllm_{'_'.join(key.split('.')[:2])}.md"
        found[name] = upgrade_document(registry, notes)
    return found


def patches_document(registry: Registry) -> str:
    """`docs/patches.md`."""
    versions = recorded_versions(registry)
    return page(
        WRITTEN_BY,
        "# Patches and hooks",
        HOW_IT_WORKS,
        "## How many",
        status_block(registry),
        "## Patch rows",
        _patch_rows(registry),
        "## Hook rows",
        "Their targets, and what each version of vLLM did to them since the one before "
        f"({next(iter(versions))}: whether it was there). Rows that name an extension point "
        "instead of a class show that point.",
        _hook_history(registry, versions),
        "## What each vLLM release did to the names that vllm-ascend patches",
        _release_table(registry),
        "`body`: changed inside; a copy of the old body is stale, silently. `signature`: changed "
        "for callers or subclasses. `moved`, `gone`: the assignment fails or has no effect. "
        "`absent`: gone earlier, or never there. The rest of the 138 names is torch and torchair.",
        "### Every name and version",
        _peer_history(registry),
    )


def _patch_rows(registry: Registry) -> str:
    if not registry.patches:
        return "None: no plan needs one."
    rows = [
        (code(key), code(row.target), row.action.value, row.because, row.upstream)
        for key, row in registry.patches.items()
    ]
    return table(("row", "target", "action", "because", "upstream"), rows)


def _hook_history(registry: Registry, versions: Mapping[str, VersionRow]) -> str:
    rows = [
        (code(use.removeprefix("hook ")), target)
        for target, uses in registry.vllm_versions[PINNED].uses.items()
        for use in uses
        if use.startswith("hook ")
    ]
    cells = [
        (key, code(short(target)), *(change.value for _, change in history(target, versions)))
        for key, target in sorted(rows)
    ]
    return table(("hook", "target", *versions), cells)


def _release_table(registry: Registry) -> str:
    counts = release_counts(peer_table(registry))
    columns = (Change.SAME, Change.BODY, *_BREAKING, Change.NEW, Change.ABSENT)
    rows = [
        (version, *(str(seen[change]) for change in columns)) for version, seen in counts.items()
    ]
    return table(("vLLM", *(change.value for change in columns)), rows)


def _peer_history(registry: Registry) -> str:
    found = peer_table(registry)
    versions = list(recorded_versions(registry))
    rows = [
        (code(short(target)), *(events[version].value for version in versions))
        for target, events in found.items()
    ]
    return table(("name (m.e. = model_executor)", *versions), rows)


def needed_document(registry: Registry) -> str:
    """`docs/patches_needed.md`."""
    entries = list(peer_entries(registry))
    direct = [entry for entry in entries if not entry.target.indirect]
    by_upstream = Counter(entry.target.upstream for entry in direct)
    by_action = Counter(entry.target.ours for entry in direct)
    sections = []
    for row in registry.peer_patches.values():
        lines = [
            (
                code(short(item.target)) + (" (indirect)" if item.indirect else ""),
                item.purpose,
                item.upstream.value,
                code(item.seen.partition(" ")[0]),
                item.ours.value,
                item.how,
                item.recipes,
            )
            for item in row.targets
        ]
        head = ("name", "purpose", PINNED, "seen at", "ours", "how", "recipes")
        sections += [f"### `{row.file}`\n\nCondition: {row.condition}.", table(head, lines)]
    return page(
        WRITTEN_BY,
        "# Which of vllm-ascend's patches are needed",
        NEEDED_HEAD.format(direct=len(direct), indirect=len(entries) - len(direct), pinned=PINNED),
        table(
            (f"vLLM {PINNED}", "names"), [(item.value, str(by_upstream[item])) for item in Upstream]
        ),
        table(("what we do", "names"), [(item.value, str(by_action[item])) for item in Action]),
        *sections,
    )


def upgrade_document(registry: Registry, notes: UpgradeNotesRow) -> str:
    """`docs/vllm_<version>.md`: what an upgrade would ask of us."""
    old, new = registry.vllm_versions[notes.against], registry.vllm_versions[notes.version]
    changes = {
        target: compare(old.definitions[target], new.definitions.get(target))
        for target in old.uses
        if target in new.definitions
    }
    breaking = {t: c for t, c in changes.items() if c in (Change.GONE, Change.MOVED)}
    called = {t: c for t, c in changes.items() if c is Change.SIGNATURE}
    bodies = {t: c for t, c in changes.items() if c is Change.BODY}
    replaced = {t: c for t, c in bodies.items() if _is_replaced(old, t)}
    other = {t: c for t, c in bodies.items() if t not in replaced}
    peers = peer_changes(registry, registry.vllm_versions[notes.against], RecordedDefinitions(new))
    return page(
        WRITTEN_BY,
        f"# Upgrading from vLLM {notes.against} to {notes.version}",
        UPGRADE_HEAD.format(version=notes.version, count=len(changes)),
        "## Needs beside it",
        "\n".join(f"- {item}" for item in notes.requires),
        "## Gone or moved: change before anything runs",
        _change_table(old, breaking, notes),
        "## Changed for callers or subclasses: read the note",
        _change_table(old, called, notes),
        "## Body changed where ours stands in its place: compare",
        _change_table(old, replaced, notes),
        "## Body changed, ours calls or inherits it: nothing known to do",
        _change_table(old, other, notes),
        "## For users of vllm-ascend",
        _peer_summary(notes, peers),
    )


def _is_replaced(row: VersionRow, target: str) -> bool:
    return any(use.startswith("override") and "without super" in use for use in row.uses[target])


def _change_table(row: VersionRow, changes: Mapping[str, Change], notes: UpgradeNotesRow) -> str:
    if not changes:
        return "Nothing."
    rows = [
        (
            code(short(target)),
            change.value,
            "; ".join(row.uses[target]),
            notes.notes.get(target, ""),
        )
        for target, change in changes.items()
    ]
    return table(("definition", "change", "used by", "note"), rows)


def _peer_summary(notes: UpgradeNotesRow, peers: Mapping[str, Change]) -> str:
    seen = Counter(peers.values())
    breaking = [target for target, change in peers.items() if change in _BREAKING]
    counts = ", ".join(f"{seen[change]} {change.value}" for change in Change if seen[change])
    listed = "\n".join(f"- {code(target)}: {peers[target].value}" for target in breaking)
    return (
        f"Of the {len(peers)} names of vLLM that vllm-ascend at 182b75ea (verified with "
        f"{PEER_BASE}) assigns to, from {notes.against} to {notes.version}: {counts}. Changed for "
        f"callers, moved or gone:\n\n{listed}"
    )
