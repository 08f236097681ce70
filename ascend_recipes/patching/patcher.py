"""The one door through which other packages are changed: check everything, then apply, or nothing.

Nothing here knows what is patched; rows say it. Every problem of every row is reported in one
error, and a process in which one row fails is left as it was.
"""

import functools
import importlib
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from ascend_recipes.errors import ExitCode, Finding, RecipeError, Severity
from ascend_recipes.findings import finding
from ascend_recipes.patching.compatibility import Function
from ascend_recipes.patching.sources import installed_sources
from ascend_recipes.patching.tree import SourceTree, Symbol
from ascend_recipes.patching.verify import check_rows, fingerprint_of
from ascend_recipes.schema.patch import PatchAction, PatchReceipt, PatchRow, Phase

_active: dict[str, str] = {}
"""Target, or target and entry -> key of the row that changed it in this process."""

_PLAIN = (int, float, str, bytes, bool, tuple, type(None))
"""Values that Python shares between unrelated names, so that identity says nothing."""


@dataclass
class Applied:
    """Rows that were applied in this process, and how to take them back."""

    receipts: tuple[PatchReceipt, ...] = ()
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def undo(self) -> None:
        """Put the originals back, last change first; a second call changes nothing."""
        while self._undo:
            self._undo.pop()()


@dataclass(frozen=True)
class _Change:
    """One row with the objects that it concerns."""

    key: str
    row: PatchRow
    owner: Any
    """Module or class that holds the name."""
    name: str
    raw: Any
    """What the name is bound to, descriptors included."""

    @property
    def mark(self) -> str:
        return self.row.target + (f"[{self.row.entry}]" if self.row.entry is not None else "")


def apply_rows(
    rows: Mapping[str, PatchRow], phase: Phase, *, hosted: tuple[Phase, ...] = ()
) -> Applied:
    """Apply the rows of a phase.

    Args:
        rows: Key -> row, of every phase.
        phase: Role of this process, for the receipt.
        hosted: Further roles that live in this process.

    Raises:
        RecipeError: every finding of every row (exit code 5); nothing was changed.
    """
    roles = {phase, *hosted}
    chosen = {key: row for key, row in sorted(rows.items()) if not roles.isdisjoint(row.phases)}
    trees = _installed_trees(chosen)
    findings = [item for item in check_rows(chosen, trees) if item.severity is Severity.ERROR]
    broken = {
        item.at for item in findings if item.id in ("patch.target_missing", "patch.alias_missing")
    }
    changes = []
    for key, row in chosen.items():
        if f"patches.{key}" not in broken and row.package in trees:
            found, change = _collect(key, row, trees[row.package])
            findings += found
            changes += [change] if change else []
    if findings:
        raise RecipeError(tuple(findings), exit_code=ExitCode.LAUNCH)
    return _apply(changes, trees, phase)


@contextmanager
def applied(rows: Mapping[str, PatchRow], phase: Phase) -> Iterator[Applied]:
    """Apply the rows of a phase for the duration of a block.

    Raises:
        RecipeError: as `apply_rows`.
    """
    done = apply_rows(rows, phase)
    try:
        yield done
    finally:
        done.undo()


def _installed_trees(rows: Mapping[str, PatchRow]) -> dict[str, SourceTree]:
    found = {row.package: installed_sources(row.package) for row in rows.values()}
    return {name: SourceTree(sources) for name, sources in found.items() if sources is not None}


def _collect(key: str, row: PatchRow, tree: SourceTree) -> tuple[list[Finding], _Change | None]:
    early = [name for name in row.before if name in sys.modules]
    if early:
        at = f"patches.{key}"
        return [finding("patch.imported_early", at=at, modules=early, target=row.target)], None
    module_name, _, qualname = row.target.partition(":")
    *path, name = qualname.split(".")
    try:
        owner: Any = importlib.import_module(module_name)
        for part in path:
            owner = vars(owner)[part]
        raw = inspect.getattr_static(owner, name)
    except (ImportError, KeyError, AttributeError) as error:
        at, said = f"patches.{key}", repr(error)
        return [finding("patch.target_absent", at=at, target=row.target, said=said)], None
    change = _Change(key, row, owner, name, raw)
    return list(_process_findings(change, tree)), change


def _process_findings(change: _Change, tree: SourceTree) -> Iterator[Finding]:
    row, raw, at = change.row, _plain(change.raw), f"patches.{change.key}"
    if change.mark in _active:
        yield finding("patch.applied_twice", at=at, target=row.target, by=_active[change.mark])
        return
    symbol = tree.find(row.target)
    assert symbol is not None, row.target
    if symbol.kind in ("function", "class") and not _is_original(raw, symbol):
        yield finding(
            "patch.changed_by_others",
            at=at,
            target=row.target,
            found=_described(raw),
            package=row.package,
        )
        return
    if row.action is PatchAction.ADD_ENTRY:
        if row.entry is not None and row.entry in raw:
            yield finding("patch.entry_exists", at=at, target=row.target, entry=row.entry)
        return
    if symbol.home == row.target and not isinstance(raw, _PLAIN):
        yield from _stale_aliases(change, raw)


def _stale_aliases(change: _Change, raw: object) -> Iterator[Finding]:
    """Names that would keep the original: earlier imports, class attributes, subclasses."""
    known = {change.row.target, *change.row.aliases}
    stale = [name for name in _names_bound_to(raw) if name not in known]
    if isinstance(raw, type):
        children: list[type] = type.__subclasses__(raw)
        stale += [f"{_qualified(child)} (subclass)" for child in children]
    if stale:
        names = sorted(set(stale))
        at = f"patches.{change.key}"
        yield finding("patch.stale_alias", at=at, target=change.row.target, names=names)


def _names_bound_to(wanted: object) -> Iterator[str]:
    # Lazy modules and the like put objects of other types there.
    modules = [item for item in sys.modules.values() if isinstance(item, types.ModuleType)]
    for module in modules:
        for name, value in list(vars(module).items()):
            if value is wanted:
                yield f"{module.__name__}:{name}"
            # `isinstance` would ask the object for its class, which deprecated ones answer loudly.
            elif issubclass(type(value), type) and value.__module__ == module.__name__:
                for attribute, raw in list(vars(value).items()):
                    if _plain(raw) is wanted:
                        yield f"{module.__name__}:{name}.{attribute}"


def _apply(changes: list[_Change], trees: Mapping[str, SourceTree], phase: Phase) -> Applied:
    done = Applied()
    receipts = []
    try:
        for change in changes:
            new = _new_value(change)
            if change.row.action is PatchAction.ADD_ENTRY:
                done._undo.append(_add_entry(change, new))
            else:
                for owner, name in (change.owner, change.name), *_alias_places(change.row):
                    done._undo.append(_bind(owner, name, new))
            done._undo.append(_mark(change))
            symbol = trees[change.row.package].find(change.row.target)
            assert symbol is not None, change.row.target
            receipts.append(
                PatchReceipt(
                    key=change.key,
                    target=change.mark,
                    action=change.row.action,
                    phase=phase,
                    before=_qualified(_plain(change.raw)),
                    after=change.row.implementation or repr(change.row.value),
                    fingerprint=fingerprint_of(symbol),
                )
            )
    except BaseException:
        done.undo()
        raise
    done.receipts = tuple(receipts)
    return done


def _new_value(change: _Change) -> Any:
    row = change.row
    if row.implementation is None:
        return row.value
    module, _, name = row.implementation.partition(":")
    ours = vars(importlib.import_module(module))[name]
    if row.action is PatchAction.WRAP:
        ours = _wrapper(ours, _plain(change.raw))
    if row.action in (PatchAction.WRAP, PatchAction.REPLACE) and isinstance(change.owner, type):
        for kind in (staticmethod, classmethod, property):
            if isinstance(change.raw, kind):
                return kind(ours)
    return ours


def _wrapper(ours: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return ours(original, *args, **kwargs)

    return wrapped


def _alias_places(row: PatchRow) -> Iterator[tuple[Any, str]]:
    for alias in row.aliases:
        module, _, qualname = alias.partition(":")
        *path, name = qualname.split(".")
        owner: Any = importlib.import_module(module)
        for part in path:
            owner = vars(owner)[part]
        yield owner, name


def _bind(owner: Any, name: str, new: Any) -> Callable[[], None]:
    held = vars(owner).get(name)
    inherited = name not in vars(owner)
    setattr(owner, name, new)
    return lambda: delattr(owner, name) if inherited else setattr(owner, name, held)


def _add_entry(change: _Change, new: Any) -> Callable[[], None]:
    container, entry = change.raw, change.row.entry
    if entry is not None:
        assert isinstance(container, MutableMapping), f"{change.row.target} is no mapping"
        container[entry] = new
        return lambda: container.pop(entry, None)
    if isinstance(container, MutableSet):
        container.add(new)
        return lambda: container.discard(new)
    assert isinstance(container, MutableSequence), f"{change.row.target} is no list or set"
    container.append(new)
    return lambda: container.remove(new)


def _mark(change: _Change) -> Callable[[], None]:
    _active[change.mark] = f"{change.key} (pid {os.getpid()})"
    return functools.partial(_unmark, change.mark)


def _unmark(mark: str) -> None:
    _active.pop(mark, None)


def _plain(raw: Any) -> Any:
    """Function inside a class attribute's descriptor."""
    if isinstance(raw, staticmethod | classmethod):
        return raw.__func__
    return raw.fget if isinstance(raw, property) and raw.fget is not None else raw


def _is_original(raw: Any, symbol: Symbol) -> bool:
    """Whether an object is what the source defines; a foreign wrapper may carry the name."""
    if _qualified(raw) != symbol.home:
        return False
    decorated = isinstance(symbol.node, Function) and symbol.node.decorator_list
    if decorated or not isinstance(raw, types.FunctionType):
        return True
    return PurePath(raw.__code__.co_filename).as_posix().endswith(symbol.path)


def _described(value: Any) -> str:
    if isinstance(value, types.FunctionType):
        return f"{_qualified(value)} ({value.__code__.co_filename})"
    return _qualified(value)


def _qualified(value: Any) -> str:
    """Name as `module:qualname`; decorated functions of any type carry both."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return f"{module}:{name}" if module and name else repr(value)[:80]
