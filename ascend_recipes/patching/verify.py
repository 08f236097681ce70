"""Checks patch rows against sources, without importing what they patch."""

import ast
import difflib
from collections.abc import Iterator, Mapping

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from ascend_recipes.errors import Finding, Severity
from ascend_recipes.patching.compatibility import mismatch
from ascend_recipes.patching.sources import installed_sources
from ascend_recipes.patching.tree import SourceTree, Symbol
from ascend_recipes.schema.patch import Fingerprint, PatchAction, PatchRow

_NEEDS_BODY = frozenset({PatchAction.REPLACE, PatchAction.SET_VALUE})


def check_rows(rows: Mapping[str, PatchRow], trees: Mapping[str, SourceTree]) -> list[Finding]:
    """Every problem of the rows with the packages that they patch.

    Args:
        rows: Key -> row.
        trees: Top-level package -> its sources.
    """
    findings = list(_conflicts(rows))
    for key, row in rows.items():
        tree = trees.get(row.package)
        if tree is None:
            findings.append(_finding(key, "patch.no_package", f"{row.package} is not installed"))
        else:
            findings += check_row(key, row, tree)
    return findings


def check_row(key: str, row: PatchRow, tree: SourceTree) -> Iterator[Finding]:
    """Every problem of one row with one version of the package that it patches."""
    yield from _version_findings(key, row, tree)
    symbol = tree.find(row.target)
    if symbol is None:
        yield _missing(key, row, tree)
        return
    yield from _drift(key, row, tree.version, symbol)
    yield from _implementation(key, row, symbol)
    for alias in row.aliases:
        if tree.find(alias) is None:
            message = f"alias {alias} of {row.target} does not exist in {tree.version}"
            yield _finding(key, "patch.target_missing", message)


def fingerprint_of(symbol: Symbol) -> Fingerprint:
    """Fingerprint to write into a row after reviewing the definition."""
    return Fingerprint(signature=symbol.signature_fingerprint, body=symbol.body_fingerprint)


def parsed_version(text: str) -> Version | None:
    """Version, or none for what no release is called."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _finding(
    key: str, id: str, message: str, *, fix: str = "", severity: Severity = Severity.ERROR
) -> Finding:
    return Finding(id=id, message=message, at=f"patches.{key}", fix=fix, severity=severity)


def _conflicts(rows: Mapping[str, PatchRow]) -> Iterator[Finding]:
    keys = sorted(rows)
    for index, first in enumerate(keys):
        for second in keys[index + 1 :]:
            one, other = rows[first].target, rows[second].target
            same_entry = rows[first].entry == rows[second].entry
            if (one == other and same_entry) or _contains(one, other) or _contains(other, one):
                yield _finding(
                    second,
                    "patch.conflict",
                    f"{first} changes {one} and {second} changes {other}: the second to be "
                    "applied would undo or miss the first",
                    fix="merge the rows, or let no plan need both",
                )


def _contains(owner: str, member: str) -> bool:
    return member.startswith(f"{owner}.")


def _version_findings(key: str, row: PatchRow, tree: SourceTree) -> Iterator[Finding]:
    version = parsed_version(tree.version)
    if version is None:
        return
    if not SpecifierSet(row.versions).contains(version, prereleases=True):
        message = f"{row.package} {version} is outside {row.versions}"
        fix = f"verify {row.target} there, then widen versions and add a fingerprint"
        yield _finding(key, "patch.version_out_of_range", message, fix=fix)
    limit, symbol = row.remove_when.version_at_least, row.remove_when.symbol_exists
    if limit is not None and version >= Version(limit):
        message = f"{row.package} {version} needs the patch no longer (from {limit} on)"
        yield _finding(key, "patch.expired", message, fix=f"delete registry/patches/{key}.yaml")
    elif symbol is not None and tree.find(symbol) is not None:
        message = f"{symbol} exists in {row.package} {version}, so the patch is needed no longer"
        yield _finding(key, "patch.expired", message, fix=f"delete registry/patches/{key}.yaml")


def _missing(key: str, row: PatchRow, tree: SourceTree) -> Finding:
    name = row.target.partition(":")[2].rpartition(".")[2]
    elsewhere = tree.find_elsewhere(row.target)
    close = difflib.get_close_matches(name, tree.names_in(row.target), n=1, cutoff=0.5)
    fix = ""
    if elsewhere:
        fix = f"defined in {', '.join(elsewhere)}: move the target there after reading it"
    elif close:
        fix = f"renamed to {close[0]!r}? change the target after reading it"
    message = f"{row.target} does not exist in {row.package} {tree.version}"
    return _finding(key, "patch.target_missing", message, fix=fix)


def _drift(key: str, row: PatchRow, version: str, symbol: Symbol) -> Iterator[Finding]:
    verified = row.fingerprints.get(version)
    seen = fingerprint_of(symbol)
    place = f"{row.target} in {row.package} {version} ({symbol.path}:{symbol.line})"
    wanted = f'"{version}": {{signature: "{seen.signature}", body: "{seen.body}"}}'
    if verified is None:
        message = f"nobody has verified {place}"
        fix = f"read it, run {row.test}, then add fingerprints: {{{wanted}}}"
        yield _finding(key, "patch.unverified_version", message, fix=fix)
    elif seen.signature != verified.signature:
        message = f"signature of {place} is not the verified one; it is now {symbol.signature}"
        fix = f"adapt {row.implementation}, then set {wanted}"
        yield _finding(key, "patch.signature_changed", message, fix=fix)
    elif seen.body != verified.body:
        severity = Severity.ERROR if row.action in _NEEDS_BODY else Severity.INFO
        message = f"body of {place} is {seen.body}, verified was {verified.body}"
        fix = f"compare it with {row.implementation}, then set {wanted}"
        yield _finding(key, "patch.body_changed", message, fix=fix, severity=severity)


def _implementation(key: str, row: PatchRow, symbol: Symbol) -> Iterator[Finding]:
    if row.implementation is None:
        return
    sources = installed_sources(row.implementation.partition(".")[0].partition(":")[0])
    ours = SourceTree(sources).find(row.implementation) if sources else None
    if ours is None:
        message = f"{row.implementation} does not exist"
        yield _finding(key, "patch.implementation_missing", message)
        return
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(ours.node, functions) and isinstance(symbol.node, functions):
        skip = 1 if row.action is PatchAction.WRAP else 0
        if reason := mismatch(ours.node, symbol.node, skip=skip):
            message = f"{row.implementation} cannot stand for {row.target}: {reason}"
            yield _finding(key, "patch.implementation_mismatch", message)
