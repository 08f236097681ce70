"""`ascend-run patches`: what we rely on in vLLM, and what another version of it would break."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ascend_recipes.cli.arguments import Invocation
from ascend_recipes.cli.output import Output
from ascend_recipes.cli.patches_render import (
    render_changes,
    render_facts,
    render_peers,
    render_report,
    render_rows,
)
from ascend_recipes.errors import ExitCode
from ascend_recipes.findings import recipe_error
from ascend_recipes.patching.facts import (
    Change,
    Definitions,
    LiveDefinitions,
    RecordedDefinitions,
    compare,
    history,
)
from ascend_recipes.patching.peers import PEER_BASE, peer_changes, peer_entries, recorded_versions
from ascend_recipes.patching.report import PINNED, check_version
from ascend_recipes.patching.sources import installed_sources, sources_at
from ascend_recipes.patching.tree import SourceTree
from ascend_recipes.registry.load import Registry, load_registry
from ascend_recipes.suggest import did_you_mean

PACKAGE = "vllm"


def run_patches(invocation: Invocation, output: Output) -> ExitCode:
    """Dispatch on the word after `patches`; `check` if there is none."""
    word, *rest = invocation.arguments or ("check",)
    if word not in _ACTIONS:
        fix = did_you_mean(word, _ACTIONS, template="ascend-run patches {}")
        exit_code = ExitCode.USAGE
        raise recipe_error("patches.unknown_action", exit_code=exit_code, fix=fix, word=word)
    action, wanted = _ACTIONS[word]
    if len(rest) != len(wanted):
        raise recipe_error(
            "patches.arguments",
            exit_code=ExitCode.USAGE,
            fix=" ".join(["ascend-run patches", word, *wanted]),
            action=word,
            wanted=len(wanted),
            given=len(rest),
        )
    return action(invocation, output, *rest)


def _check(invocation: Invocation, output: Output) -> ExitCode:
    registry = load_registry()
    definitions = _definitions(invocation.vllm, registry)
    if invocation.targets == "vllm-ascend":
        return _check_peers(invocation, output, registry, definitions)
    report = check_version(registry, definitions)
    code = ExitCode.FINDINGS if report.errors else ExitCode.OK
    if output.json:
        output.document(
            "patches check",
            code,
            {
                "vllm": report.version,
                "pinned": report.pinned,
                "lines": [line.to_json() for line in report.lines],
                "findings": [item.to_json() for item in report.findings],
                "unrecorded": list(report.unrecorded),
            },
        )
        return code
    output.show(*render_report(report))
    output.findings(report.findings, stderr=False)
    return code


def _check_peers(
    _: Invocation, output: Output, registry: Registry, definitions: Definitions
) -> ExitCode:
    base = registry.vllm_versions[PEER_BASE]
    changes = peer_changes(registry, base, definitions)
    return _show_peers(output, "patches check", PEER_BASE, definitions.version, changes)


def _show_peers(
    output: Output, command: str, old: str, new: str, changes: dict[str, Change]
) -> ExitCode:
    code = ExitCode.FINDINGS if any(item.breaks for item in changes.values()) else ExitCode.OK
    if output.json:
        targets = {target: change.value for target, change in changes.items()}
        output.document(command, code, {"old": old, "new": new, "targets": targets})
        return code
    registry = load_registry()
    files = {entry.target.target: entry.file for entry in peer_entries(registry)}
    output.show(*render_peers(old, new, changes, files))
    return code


def _list(invocation: Invocation, output: Output) -> ExitCode:
    registry = load_registry()
    rows = _planned_rows(invocation) if invocation.words else _all_rows(registry)
    if output.json:
        output.document("patches list", ExitCode.OK, {"rows": rows})
        return ExitCode.OK
    output.show(*render_rows(rows))
    return ExitCode.OK


def _all_rows(registry: Registry) -> list[dict[str, str]]:
    patches = [
        {
            "kind": "patch",
            "key": key,
            "target": row.target,
            "how": row.action.value,
            "because": row.because,
        }
        for key, row in registry.patches.items()
    ]
    hooks = [
        {
            "kind": "hook",
            "key": key,
            "target": row.target,
            "how": row.kind.value,
            "because": row.because,
        }
        for key, row in registry.hooks.items()
    ]
    return patches + hooks


def _planned_rows(invocation: Invocation) -> list[dict[str, str]]:
    from ascend_recipes.cli.pipeline import planned_launch

    planned = planned_launch(invocation.words, invocation.config_dirs)
    wanted = {("patch", key) for key in planned.plan.patches}
    wanted |= {("hook", key) for key in (planned.plan.platform, *planned.plan.hooks)}
    rows = [row for row in _all_rows(load_registry()) if (row["kind"], row["key"]) in wanted]
    for row in rows:
        table = "patches" if row["kind"] == "patch" else "hooks"
        reason = planned.reasons.get(f"{table}.{row['key']}")
        row["because"] = reason.because if reason else row["because"]
    return rows


def _show(_: Invocation, output: Output, key: str) -> ExitCode:
    registry = load_registry()
    facts = _row_facts(registry, key)
    uses = registry.vllm_versions[PINNED].uses
    hooked = (target for target, names in uses.items() if f"hook {key}" in names)
    target = str(facts.get("reads_as") or next(hooked, facts["target"]))
    versions = recorded_versions(registry)
    events = {version: change.value for version, change in history(target, versions)}
    if output.json:
        output.document("patches show", ExitCode.OK, {"row": facts, "versions": events})
        return ExitCode.OK
    output.show(*render_facts(key, facts, events))
    return ExitCode.OK


def _row_facts(registry: Registry, key: str) -> dict[str, object]:
    for table in (registry.patches, registry.hooks):
        if key in table:
            return dict(table[key].model_dump(mode="json"))
    peers = {entry.target.target: entry for entry in peer_entries(registry)}
    if key in peers:
        entry = peers[key]
        facts = entry.target.model_dump(mode="json", exclude_defaults=True)
        return {"file": entry.file, "condition": entry.condition, **facts}
    options = [*registry.patches, *registry.hooks, *peers]
    fix = did_you_mean(key, options) if len(options) < 40 else "ascend-run patches list"
    raise recipe_error("patches.unknown_row", exit_code=ExitCode.USAGE, fix=fix, key=key)


def _diff(invocation: Invocation, output: Output, old: str, new: str) -> ExitCode:
    registry = load_registry()
    before, after = _definitions(old, registry), _definitions(new, registry)
    if invocation.targets == "vllm-ascend":
        wanted = {entry.target.target: entry.read for entry in peer_entries(registry)}
        wanted = {name: read for name, read in wanted.items() if read.startswith("vllm")}
    else:
        wanted = {target: target for target in registry.vllm_versions[PINNED].uses}
    changes = {
        name: compare(before.facts(read), after.facts(read))
        for name, read in wanted.items()
        if before.knows(read) and after.knows(read)
    }
    changes = {
        name: item for name, item in changes.items() if item not in (Change.SAME, Change.ABSENT)
    }
    if output.json:
        listed = {name: item.value for name, item in changes.items()}
        body = {"old": before.version, "new": after.version, "changes": listed}
        output.document("patches diff", ExitCode.OK, body)
        return ExitCode.OK
    uses = registry.vllm_versions[PINNED].uses
    output.show(*render_changes(before.version, after.version, len(wanted), changes, uses))
    return ExitCode.OK


def _record(invocation: Invocation, output: Output) -> ExitCode:
    """Write the evidence of one version into the checkout's registry."""
    from ascend_recipes.patching.record import record_version, recorded_targets, write_version
    from ascend_recipes.paths import display_path

    checkout = _checkout("record")
    registry = load_registry()
    pinned = _live(PACKAGE, "")
    if pinned.version != PINNED:
        raise recipe_error(
            "patches.not_pinned",
            exit_code=ExitCode.ENVIRONMENT,
            fix=f"pip install vllm=={PINNED}",
            pinned=PINNED,
            version=pinned.version,
        )
    uses = recorded_targets(registry, pinned)
    tree = _live(PACKAGE, invocation.vllm)
    row = record_version(tree, uses, uses if tree.version == PINNED else None)
    path = write_version(checkout / "registry" / "vllm_versions", row)
    output.text(f"{display_path(path)}: {len(row.definitions)} definitions")
    return ExitCode.OK


def _docs(_: Invocation, output: Output) -> ExitCode:
    from ascend_recipes.patching.documents import documents
    from ascend_recipes.patching.readme import READMES, status_block, with_status_block
    from ascend_recipes.paths import display_path

    checkout = _checkout("docs")
    registry = load_registry()
    for name, text in documents(registry).items():
        path = checkout / "docs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        output.text(display_path(path))
    for name, language in READMES.items():
        path = checkout / name
        if path.is_file():
            block = status_block(registry, language)
            path.write_text(with_status_block(path.read_text("utf-8"), block), encoding="utf-8")
            output.text(display_path(path))
    return ExitCode.OK


def _checkout(action: str) -> Path:
    """Folder of the checkout; an installed package has no files to write."""
    from ascend_recipes.paths import data_root

    if not (data_root() / "pyproject.toml").is_file():
        exit_code = ExitCode.ENVIRONMENT
        raise recipe_error("patches.no_checkout", exit_code=exit_code, action=action)
    return data_root()


_ACTIONS: dict[str, tuple[Callable[..., ExitCode], tuple[str, ...]]] = {
    "check": (_check, ()),
    "list": (_list, ()),
    "show": (_show, ("KEY",)),
    "diff": (_diff, ("OLD", "NEW")),
    "record": (_record, ()),
    "docs": (_docs, ()),
}


def _definitions(place: str, registry: Registry) -> Definitions:
    """Definitions at a path, of a version, or of the installed package."""
    installed = installed_sources(PACKAGE)
    if not place and installed is None:
        return RecordedDefinitions(registry.vllm_versions[PINNED])
    if place in registry.vllm_versions and not Path(place).exists():
        if installed is not None and installed.version == place:
            return LiveDefinitions(SourceTree(installed))
        return RecordedDefinitions(registry.vllm_versions[place])
    return LiveDefinitions(_live(PACKAGE, place))


def _live(package: str, place: str) -> SourceTree:
    sources = sources_at(place, package) if place else installed_sources(package)
    if sources is None:
        exit_code = ExitCode.ENVIRONMENT
        raise recipe_error("patches.not_installed", exit_code=exit_code, package=package)
    return SourceTree(sources)
