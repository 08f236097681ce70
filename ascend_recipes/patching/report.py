"""What an upgrade of vLLM would do to us: patches, hooks, overrides and imports together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ascend_recipes.errors import Finding, Severity, Source
from ascend_recipes.findings import Phrase, finding, phrase
from ascend_recipes.patching.compatibility import mismatch
from ascend_recipes.patching.facts import (
    Change,
    Definitions,
    LiveDefinitions,
    compare,
    function_of,
)
from ascend_recipes.patching.surface import Extension, HookUse, Override, Surface, our_surface
from ascend_recipes.patching.tree import SourceTree
from ascend_recipes.patching.verify import check_rows
from ascend_recipes.registry.load import Registry
from ascend_recipes.schema.patch import DefinitionFacts, PatchRow, VersionRow

PINNED = "0.32.0"
"""Version of vLLM that everything here is written and tested against."""


@dataclass(frozen=True)
class Line:
    """One thing of ours with what it relies on."""

    kind: str
    """`patch`, `hook`, `class` or `import`."""
    key: str
    target: str
    change: Change
    """Against the pinned version."""
    overridden: int = 0
    """Methods of vLLM that the class overrides."""
    without_super: int = 0
    """Those that do not call the original."""
    used_by: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Flat object for `--json`."""
        record: dict[str, object] = {
            "kind": self.kind,
            "key": self.key,
            "target": self.target,
            "change": self.change.value,
        }
        if self.kind == "class":
            record |= {"overridden": self.overridden, "without_super": self.without_super}
        return record


@dataclass
class Report:
    """Result of checking one version."""

    version: str
    pinned: str
    lines: list[Line] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unrecorded: tuple[str, ...] = ()
    """Definitions that we rely on and about which the recorded evidence says nothing."""

    def of_kind(self, kind: str) -> list[Line]:
        """Lines of one kind."""
        return [line for line in self.lines if line.kind == kind]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that mean that the version cannot be used as we are."""
        return tuple(item for item in self.findings if item.severity is Severity.ERROR)


def check_version(registry: Registry, definitions: Definitions) -> Report:
    """Check everything that we rely on against one version of vLLM.

    Args:
        registry: For rows and for the recorded pinned version.
        definitions: The version, live or recorded.
    """
    pinned = registry.vllm_versions[PINNED]

    def exists(target: str) -> bool:
        facts = pinned.definitions.get(target)
        if target not in pinned.definitions:
            facts = definitions.facts(target)
        return facts is not None and facts.kind != "external"

    surface = our_surface(registry, exists)
    unknown = tuple(target for target in surface.uses if not definitions.knows(target))
    report = Report(definitions.version, PINNED, unrecorded=unknown)
    check = _Check(registry, surface, pinned, definitions, report)
    check.patches(registry.patches)
    check.hooks()
    check.extensions()
    check.imports()
    return report


@dataclass
class _Check:
    registry: Registry
    surface: Surface
    pinned: VersionRow
    now: Definitions
    report: Report

    def patches(self, rows: Mapping[str, PatchRow]) -> None:
        trees: dict[str, SourceTree] = {}
        if isinstance(self.now, LiveDefinitions):
            trees[self.now.tree.sources.package] = self.now.tree
        mine = {key: row for key, row in rows.items() if row.package in trees}
        self.report.findings += check_rows(mine, trees)
        for key, row in rows.items():
            self._line("patch", key, row.target)

    def hooks(self) -> None:
        for hook in self.surface.hooks:
            change = self._line("hook", hook.key, hook.target)
            self.report.findings += self._hook_findings(hook, change)

    def extensions(self) -> None:
        for item in self.surface.extensions:
            overridden = [m for m in item.methods if self._was_there(m.target)]
            self.report.lines.append(
                Line(
                    kind="class",
                    key=item.ours,
                    target=item.bases[0],
                    change=self._change(item.bases[0]),
                    overridden=len(overridden),
                    without_super=sum(not method.calls_super for method in overridden),
                )
            )
            if self._lost(item.bases[0]):
                self.report.findings.append(
                    finding(
                        "upgrade.base_missing",
                        at=item.ours,
                        ours=item.ours,
                        target=item.bases[0],
                        there=self._there,
                    )
                )
                continue
            for method in overridden:
                self.report.findings += self._override_findings(item, method)

    def imports(self) -> None:
        for item in self.surface.imports:
            self._line("import", item.where, item.target)
            module = item.target.partition(":")[0]
            if self._lost(item.target) and not self._is_module(item.target):
                self.report.findings.append(
                    finding(
                        "upgrade.import_missing",
                        at=item.where,
                        where=item.where,
                        target=item.target,
                        there=self._there,
                        module=module,
                    )
                )

    def _is_module(self, target: str) -> bool:
        tree = self.now.tree if isinstance(self.now, LiveDefinitions) else None
        return tree is not None and tree.is_module(target.replace(":", "."))

    def _hook_findings(self, hook: HookUse, change: Change) -> Iterator[Finding]:
        where = self.registry.hooks.source(hook.key, "target")
        if self._lost(hook.target):
            yield finding(
                "upgrade.hook_missing",
                at=f"hooks.{hook.key}",
                source=where,
                key=hook.key,
                target=hook.target,
                there=self._there,
            )
        elif change is Change.SIGNATURE and hook.row.kind == "kernel":
            yield finding(
                "upgrade.kernel_signature",
                at=f"hooks.{hook.key}",
                source=where,
                target=hook.target,
                there=self._there,
                parameters=self._parameters(hook.target),
                implementation=hook.row.implementation,
            )

    def _override_findings(self, item: Extension, method: Override) -> Iterator[Finding]:
        where = f"{item.ours}.{method.name}"
        source = Source(origin=item.ours.partition(":")[0].replace(".", "/") + ".py")
        told: dict[str, Any] = {"at": where, "source": source, "where": where}
        told |= {"target": method.target, "there": self._there}
        if self._lost(method.target):
            yield finding("upgrade.method_missing", **told)
            return
        theirs = function_of(self._parameters(method.target))
        if theirs is not None and (reason := mismatch(method.node, theirs)):
            parameters, severity = self._parameters(method.target), self._mismatch_severity(method)
            told |= {"severity": severity, "reason": reason, "parameters": parameters}
            yield finding("upgrade.override_mismatch", **told)
        elif self._change(method.target) is Change.MOVED:
            facts = self.now.facts(method.target) or DefinitionFacts(kind="external")
            home: str | Phrase | None = facts.home
            home = home or phrase("upgrade.another_base")
            yield finding("upgrade.method_moved", home=home, **told)
        elif not method.calls_super and self._change(method.target) is Change.BODY:
            yield finding("upgrade.replaced_body", **told)

    def _mismatch_severity(self, method: Override) -> Severity:
        """A mismatch that the pinned version has too was judged when it was written."""
        if self._changed(method.target):
            return Severity.ERROR
        # vLLM builds some classes with arguments that depend on the class.
        return Severity.INFO if method.name == "__init__" else Severity.WARNING

    @property
    def _there(self) -> str:
        return f"vLLM {self.now.version}"

    def _line(self, kind: str, key: str, target: str) -> Change:
        change = self._change(target)
        self.report.lines.append(Line(kind=kind, key=key, target=target, change=change))
        return change

    def _change(self, target: str) -> Change:
        if not self.now.knows(target) or target not in self.pinned.definitions:
            there = not self.now.knows(target) or self.now.facts(target) is not None
            return Change.SAME if there else Change.GONE
        return compare(self.pinned.definitions[target], self.now.facts(target))

    def _changed(self, target: str) -> bool:
        return self._change(target) is Change.SIGNATURE

    def _lost(self, target: str) -> bool:
        return self.now.knows(target) and self.now.facts(target) is None

    def _was_there(self, target: str) -> bool:
        return self.pinned.definitions.get(target, self.now.facts(target)) is not None

    def _parameters(self, target: str) -> str:
        facts = self.now.facts(target)
        return facts.parameters if facts else ""
