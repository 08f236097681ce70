"""Definitions of one vLLM version, read from its sources or from recorded evidence, compared."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ascend_recipes.patching.compatibility import Function
from ascend_recipes.patching.fingerprint import signature_text
from ascend_recipes.patching.tree import SourceTree, Symbol
from ascend_recipes.schema.patch import DefinitionFacts, VersionRow


class Change(StrEnum):
    """What became of a definition between two versions."""

    SAME = "same"
    BODY = "body"
    """Changed inside; callers and subclasses see the same signature."""
    SIGNATURE = "signature"
    """Changed for callers or subclasses."""
    MOVED = "moved"
    """The name leads to a definition in another place."""
    GONE = "gone"
    NEW = "new"
    ABSENT = "absent"
    """In neither version."""

    @property
    def breaks(self) -> bool:
        """Whether code written against the old version can fail or lose its effect."""
        return self in (Change.SIGNATURE, Change.MOVED, Change.GONE)


class Definitions(Protocol):
    """Definitions of one version."""

    @property
    def version(self) -> str:
        """Version of vLLM."""

    def facts(self, target: str) -> DefinitionFacts | None:
        """Facts of a definition, or none if the version lacks it."""

    def knows(self, target: str) -> bool:
        """Whether the answer of `facts` means anything; evidence may predate a target."""


@dataclass(frozen=True)
class LiveDefinitions:
    """Read from sources."""

    tree: SourceTree

    @property
    def version(self) -> str:
        """Version of the sources."""
        return self.tree.version

    def facts(self, target: str) -> DefinitionFacts | None:
        """Facts of a definition, or none."""
        symbol = self.tree.find(target)
        return facts_of(symbol) if symbol else None

    def knows(self, target: str) -> bool:
        """Sources know everything."""
        return bool(target)


@dataclass(frozen=True)
class RecordedDefinitions:
    """Read from a row of `registry/vllm_versions`."""

    row: VersionRow

    @property
    def version(self) -> str:
        """Version that was recorded."""
        return self.row.version

    def facts(self, target: str) -> DefinitionFacts | None:
        """Recorded facts, or none."""
        return self.row.definitions.get(target)

    def knows(self, target: str) -> bool:
        """Whether the target was recorded."""
        return target in self.row.definitions


def facts_of(symbol: Symbol) -> DefinitionFacts:
    """Facts of a definition that was found."""
    parameters = ""
    if isinstance(symbol.node, Function):
        parameters = symbol.signature
    elif isinstance(symbol.node, ast.ClassDef):
        made = (item for item in symbol.node.body if isinstance(item, Function))
        parameters = next((signature_text(m) for m in made if m.name == "__init__"), "")
    return DefinitionFacts(
        kind=symbol.kind,
        home="" if symbol.home == symbol.target else symbol.home,
        signature=symbol.signature_fingerprint,
        body="" if symbol.kind in ("external", "module") else symbol.body_fingerprint,
        parameters=parameters,
    )


def compare(before: DefinitionFacts | None, after: DefinitionFacts | None) -> Change:
    """What became of a definition."""
    if before is None or after is None:
        if before is None:
            return Change.ABSENT if after is None else Change.NEW
        return Change.GONE
    if before.home != after.home or before.kind != after.kind:
        return Change.MOVED
    if before.signature != after.signature:
        return Change.SIGNATURE
    return Change.SAME if before.body == after.body else Change.BODY


def history(target: str, versions: Mapping[str, VersionRow]) -> Iterator[tuple[str, Change]]:
    """What each version did to a definition, compared with the version before it.

    The first version answers only whether the definition is there: same or absent.
    """
    previous: DefinitionFacts | None = None
    for index, (version, row) in enumerate(versions.items()):
        facts = row.definitions.get(target)
        if index:
            yield version, compare(previous, facts)
        else:
            yield version, Change.SAME if facts else Change.ABSENT
        previous = facts


def function_of(parameters: str) -> ast.FunctionDef | None:
    """Syntax tree of a function with these recorded parameters, or none if there are none."""
    if not parameters:
        return None
    text = parameters.replace("=", "=None")
    (node,) = ast.parse(f"def f{text}: ...").body
    assert isinstance(node, ast.FunctionDef)
    return node
