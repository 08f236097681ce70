"""Reads a package's sources by syntax only: names, imports, type hints and literals.

Nothing is imported or run, so the sources of a release can be read where neither it nor its
dependencies are installed. What cannot be told from the syntax alone is `None`, never a guess.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ascend_recipes.schema.base import Json

Definition = ast.ClassDef | ast.FunctionDef | ast.expr


@dataclass(frozen=True)
class Unknown:
    """A value that the syntax does not give away."""


UNKNOWN = Unknown()


@dataclass(eq=False)
class Module:
    """One source file: what it defines at its top level, and what it imports."""

    name: str
    path: Path
    tree: ast.Module
    definitions: dict[str, Definition] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """Local name -> (module, name in it); the name is None where the module itself is bound."""

    def __post_init__(self) -> None:
        for node in _top_level(self.tree.body):
            self.note(node)

    def note(self, node: ast.stmt) -> None:
        """Remember what a statement defines or imports."""
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            self.definitions[node.name] = node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.definitions[target.id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            self.definitions[node.target.id] = node.value
        elif isinstance(node, ast.Import):
            for alias in node.names:
                self.imports[alias.asname or alias.name.partition(".")[0]] = (alias.name, None)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node, self._package)
            for alias in node.names:
                self.imports.setdefault(alias.asname or alias.name, (module, alias.name))

    @property
    def _package(self) -> str:
        is_package = self.path.name == "__init__.py"
        return self.name if is_package else self.name.rpartition(".")[0]


@dataclass(eq=False)
class SourceTree:
    """A package below `folder`, for example `vllm/` of an unpacked source distribution."""

    folder: Path
    _modules: dict[str, Module | None] = field(default_factory=dict)

    @property
    def package(self) -> str:
        """Name of the package."""
        return self.folder.name

    def module(self, name: str) -> Module | None:
        """The module of a dotted name, or None where the package has no such file."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def mentioning(self, *words: str) -> list[Module]:
        """Modules whose text holds one of the words, by name; the others are not even parsed."""
        texts = {path: path.read_text(encoding="utf-8-sig") for path in self.folder.rglob("*.py")}
        named = sorted(
            _dotted(path, self.folder)
            for path, text in texts.items()
            if any(word in text for word in words)
        )
        return [module for name in named if (module := self.module(name)) is not None]

    def cite(self, module: Module, node: ast.AST) -> str:
        """`package/file.py:line` of a node."""
        path = module.path.relative_to(self.folder.parent).as_posix()
        return f"{path}:{getattr(node, 'lineno', 1)}"

    def find(self, module: Module, name: str) -> tuple[Module, Definition] | None:
        """Definition of a name as the module sees it, following imports inside the package."""
        seen = set()
        while (module.name, name) not in seen:
            seen.add((module.name, name))
            if name in module.definitions:
                return module, module.definitions[name]
            target = module.imports.get(name)
            if target is None or target[1] is None:
                return None
            if (found := self.module(target[0])) is None:
                return None
            module, name = found, target[1]
        return None

    def find_class(self, module: Module, node: ast.expr) -> tuple[Module, ast.ClassDef] | None:
        """The class that an expression names."""
        if isinstance(node, ast.Name):
            found = self.find(module, node.id)
            if found and isinstance(found[1], ast.ClassDef):
                return found[0], found[1]
        return None

    def value(self, module: Module, node: ast.expr | None) -> Json | Unknown:
        """The JSON value of a literal, a name of one, or `-1`; `UNKNOWN` for anything else."""
        if isinstance(node, ast.Name) and (found := self.find(module, node.id)):
            inner = found[1]
            return self.value(found[0], inner) if isinstance(inner, ast.expr) else UNKNOWN
        if node is None or not _is_literal(node):
            return UNKNOWN
        value = ast.literal_eval(node)
        return _as_json(value)

    def methods(
        self, module: Module, cls: ast.ClassDef, name: str
    ) -> Iterator[tuple[Module, ast.ClassDef, ast.FunctionDef]]:
        """Definitions of a method, the most derived first."""
        for owner, node in self.ancestry(module, cls):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == name:
                    yield owner, node, item

    def ancestry(self, module: Module, cls: ast.ClassDef) -> Iterator[tuple[Module, ast.ClassDef]]:
        """The class and its bases inside the package, the most derived first."""
        yield module, cls
        for base in cls.bases:
            if (found := self.find_class(module, base)) is not None:
                yield from self.ancestry(*found)

    def fields(self, module: Module, cls: ast.ClassDef) -> dict[str, tuple[Module, ast.AnnAssign]]:
        """Annotated fields of a dataclass in order, those of its bases first."""
        found: dict[str, tuple[Module, ast.AnnAssign]] = {}
        for owner, node in reversed(list(self.ancestry(module, cls))):
            for item in node.body:
                if (
                    isinstance(item, ast.AnnAssign)
                    and isinstance(item.target, ast.Name)
                    and not _is_pseudo_field(item.annotation)
                ):
                    found[item.target.id] = (owner, item)
        return found

    def _read(self, name: str) -> Module | None:
        head, _, rest = name.partition(".")
        if head != self.package:
            return None
        base = self.folder.joinpath(*rest.split(".")) if rest else self.folder
        for path in (base / "__init__.py", base.with_suffix(".py")):
            if path.is_file():
                return Module(name, path, ast.parse(path.read_text(encoding="utf-8-sig")))
        return None


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` of a chain of names; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted_name(node.value)):
        return f"{base}.{node.attr}"
    return ""


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import, those of `if` and `try` included."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _top_level(node.body + node.orelse)
        elif isinstance(node, ast.Try):
            yield from _top_level(node.body)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base


def _dotted(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError):
        return False
    return True


def _as_json(value: object) -> Json | Unknown:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set):
        items = [_as_json(item) for item in value]
        kept: list[Json] = [item for item in items if not isinstance(item, Unknown)]
        return kept if len(kept) == len(items) else UNKNOWN
    if isinstance(value, dict):
        pairs = {str(key): _as_json(item) for key, item in value.items()}
        whole: dict[str, Json] = {
            key: item for key, item in pairs.items() if not isinstance(item, Unknown)
        }
        return whole if len(whole) == len(pairs) else UNKNOWN
    return UNKNOWN


def _is_pseudo_field(annotation: ast.expr) -> bool:
    text = ast.unparse(annotation)
    return text.startswith(("ClassVar", "InitVar", "typing.ClassVar"))
