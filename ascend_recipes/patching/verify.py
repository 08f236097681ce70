"""Checks patch rows against sources, without importing what they patch."""

import ast
import difflib
from collections.abc import Iterator, Mapping

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from ascend_recipes.errors import Finding, Severity
from ascend_recipes.findings import finding, phrase
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
            findings.append(finding("patch.no_package", at=_at(key), package=row.package))
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
            yield finding(
                "patch.alias_missing",
                at=_at(key),
                alias=alias,
                target=row.target,
                version=tree.version,
            )


def fingerprint_of(symbol: Symbol) -> Fingerprint:
    """Fingerprint to write into a row after reviewing the definition."""
    return Fingerprint(signature=symbol.signature_fingerprint, body=symbol.body_fingerprint)


def parsed_version(text: str) -> Version | None:
    """Version, or none for what no release is called."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _at(key: str) -> str:
    return f"patches.{key}"


def _conflicts(rows: Mapping[str, PatchRow]) -> Iterator[Finding]:
    keys = sorted(rows)
    for index, first in enumerate(keys):
        for second in keys[index + 1 :]:
            one, other = rows[first].target, rows[second].target
            same_entry = rows[first].entry == rows[second].entry
            if (one == other and same_entry) or _contains(one, other) or _contains(other, one):
                yield finding(
                    "patch.conflict",
                    at=_at(second),
                    first=first,
                    one=one,
                    second=second,
                    other=other,
                )


def _contains(owner: str, member: str) -> bool:
    return member.startswith(f"{owner}.")


def _version_findings(key: str, row: PatchRow, tree: SourceTree) -> Iterator[Finding]:
    version = parsed_version(tree.version)
    if version is None:
        return
    if not SpecifierSet(row.versions).contains(version, prereleases=True):
        yield finding(
            "patch.version_out_of_range",
            at=_at(key),
            package=row.package,
            version=version,
            versions=row.versions,
            target=row.target,
        )
    limit, symbol = row.remove_when.version_at_least, row.remove_when.symbol_exists
    reason = None
    if limit is not None and version >= Version(limit):
        reason = phrase("patch.from_version", limit=limit)
    elif symbol is not None and tree.find(symbol) is not None:
        reason = phrase("patch.symbol_exists", symbol=symbol)
    if reason is not None:
        yield finding(
            "patch.expired",
            at=_at(key),
            key=key,
            package=row.package,
            version=version,
            reason=reason,
        )


def _missing(key: str, row: PatchRow, tree: SourceTree) -> Finding:
    name = row.target.partition(":")[2].rpartition(".")[2]
    elsewhere = tree.find_elsewhere(row.target)
    close = difflib.get_close_matches(name, tree.names_in(row.target), n=1, cutoff=0.5)
    where = phrase("patch.nowhere")
    if elsewhere:
        where = phrase("patch.defined_in", places=elsewhere)
    elif close:
        where = phrase("patch.renamed_to", name=close[0])
    return finding(
        "patch.target_missing",
        at=_at(key),
        target=row.target,
        package=row.package,
        version=tree.version,
        where=where,
    )


def _drift(key: str, row: PatchRow, version: str, symbol: Symbol) -> Iterator[Finding]:
    verified = row.fingerprints.get(version)
    seen = fingerprint_of(symbol)
    place = f"{row.target} ({row.package} {version}, {symbol.path}:{symbol.line})"
    wanted = f'"{version}": {{signature: "{seen.signature}", body: "{seen.body}"}}'
    if verified is None:
        test = row.test
        yield finding(
            "patch.unverified_version", at=_at(key), place=place, test=test, wanted=wanted
        )
    elif seen.signature != verified.signature:
        yield finding(
            "patch.signature_changed",
            at=_at(key),
            place=place,
            signature=symbol.signature,
            implementation=row.implementation or "-",
            wanted=wanted,
        )
    elif seen.body != verified.body:
        severity = Severity.ERROR if row.action in _NEEDS_BODY else Severity.INFO
        yield finding(
            "patch.body_changed",
            at=_at(key),
            severity=severity,
            place=place,
            seen=seen.body,
            verified=verified.body,
            implementation=row.implementation or "-",
            wanted=wanted,
        )


def _implementation(key: str, row: PatchRow, symbol: Symbol) -> Iterator[Finding]:
    if row.implementation is None:
        return
    sources = installed_sources(row.implementation.partition(".")[0].partition(":")[0])
    ours = SourceTree(sources).find(row.implementation) if sources else None
    if ours is None:
        implementation = row.implementation
        yield finding("patch.implementation_missing", at=_at(key), implementation=implementation)
        return
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(ours.node, functions) and isinstance(symbol.node, functions):
        skip = 1 if row.action is PatchAction.WRAP else 0
        if reason := mismatch(ours.node, symbol.node, skip=skip):
            yield finding(
                "patch.implementation_mismatch",
                at=_at(key),
                implementation=row.implementation,
                target=row.target,
                reason=reason,
            )
