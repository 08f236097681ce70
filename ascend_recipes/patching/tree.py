"""Finds definitions in a package's sources: through re-exports, branches and base classes."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from ascend_recipes.patching.chunks import Chunk, split_module
from ascend_recipes.patching.fingerprint import (
    body_fingerprint,
    signature_fingerprint,
    signature_text,
)
from ascend_recipes.patching.sources import Sources

SymbolKind: TypeAlias = Literal["function", "class", "value", "external", "module"]

_MAX_HOPS = 12


@dataclass(frozen=True)
class Import:
    """A name that a module takes from another one."""

    module: str
    name: str
    """Name there; empty if the module itself is imported."""


Binding: TypeAlias = ast.stmt | Chunk | Import


@dataclass(frozen=True)
class Module:
    """Names that one source file binds at its top level."""

    name: str
    path: str
    bindings: dict[str, Binding]
    stars: tuple[str, ...] = ()
    """Modules of which it takes every name."""


@dataclass(frozen=True)
class Symbol:
    """A definition that a target leads to."""

    target: str
    """As asked, `module:qualname`."""
    home: str
    """Where the definition stands, `module:qualname`."""
    kind: SymbolKind
    node: ast.AST | None
    line: int = 0
    path: str = ""
    """File below the package's folder; empty for an external name."""

    @cached_property
    def signature(self) -> str:
        """Parameters of a function, methods of a class."""
        return signature_text(self.node) if self.node is not None else ""

    @cached_property
    def signature_fingerprint(self) -> str:
        """Digest of the signature; empty where there is none."""
        return signature_fingerprint(self.node) if self.node is not None else ""

    @cached_property
    def body_fingerprint(self) -> str:
        """Digest of the whole definition; of the home for an external name."""
        return body_fingerprint(self.node if self.node is not None else ast.Constant(self.home))


@dataclass
class SourceTree:
    """Definitions of one package; files are parsed when first needed."""

    sources: Sources
    _modules: dict[str, Module | None] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Version of the package."""
        return self.sources.version

    def find(self, target: str) -> Symbol | None:
        """Definition that `module:qualname` leads to, or none."""
        module_name, _, qualname = target.partition(":")
        head, *rest = qualname.split(".")
        symbol = self._lookup(module_name, head, target, _MAX_HOPS)
        for name in rest:
            symbol = self._member(symbol, name, target) if symbol else None
        return symbol

    def is_module(self, name: str) -> bool:
        """Whether a module of that name exists."""
        return self.module(name) is not None

    def module(self, name: str) -> Module | None:
        """Parsed module, or none if there is no such file."""
        if name not in self._modules:
            self._modules[name] = self._parse(name)
        return self._modules[name]

    def base_classes(self, symbol: Symbol) -> Iterator[Symbol]:
        """Classes that a class derives from, nearest first, as far as the package defines them."""
        if not isinstance(symbol.node, ast.ClassDef):
            return
        home = symbol.home.partition(":")[0]
        for base in symbol.node.bases:
            dotted = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
            found = self._expression(home, dotted, symbol.target)
            if found is not None and found.home != symbol.home:
                yield found
                yield from self.base_classes(found)

    def find_elsewhere(self, target: str) -> tuple[str, ...]:
        """Other places that define something of the same name, to suggest where it went."""
        module_name, _, qualname = target.partition(":")
        head = qualname.partition(".")[0]
        needles = tuple(f"{word} {head}{end}" for word in ("def", "class") for end in "(:")
        found = []
        for path in self.sources.paths():
            text = self.sources.read(path) or ""
            if not any(needle in text for needle in needles):
                continue
            name = _module_name(self.sources.package, path)
            symbol = self.find(f"{name}:{qualname}") if name != module_name else None
            if symbol is not None and symbol.home == f"{name}:{qualname}":
                found.append(symbol.home)
        return tuple(found)

    def names_in(self, target: str) -> tuple[str, ...]:
        """Names beside the target's: of its module, or of its class."""
        module_name, _, qualname = target.partition(":")
        owner = qualname.rpartition(".")[0]
        if owner:
            symbol = self.find(f"{module_name}:{owner}")
            return tuple(_members(symbol.node)) if symbol and symbol.node else ()
        module = self.module(module_name)
        return tuple(module.bindings) if module else ()

    def _parse(self, name: str) -> Module | None:
        inside = name.removeprefix(self.sources.package).removeprefix(".").replace(".", "/")
        if name.partition(".")[0] != self.sources.package:
            return None
        for path in (f"{inside}.py", f"{inside}/__init__.py") if inside else ("__init__.py",):
            text = self.sources.read(path)
            if text is not None:
                return _read_module(name, path, text)
        return None

    def _parsed(self, module: Module, name: str, chunk: Chunk) -> ast.stmt | None:
        try:
            nodes = chunk.nodes
        except SyntaxError:
            nodes = []
        if len(nodes) != 1:
            whole = _module(
                module.name, module.path, [_Whole(self.sources.read(module.path) or "")]
            )
            module.bindings.update(whole.bindings)
            found = module.bindings[name]
            assert isinstance(found, ast.stmt), name
            return found
        module.bindings[name] = nodes[0]
        return nodes[0]

    def _lookup(self, module_name: str, name: str, target: str, hops: int) -> Symbol | None:
        module = self.module(module_name)
        if module is None or hops == 0:
            return None
        binding = module.bindings.get(name)
        if isinstance(binding, Import):
            return self._follow(binding, target, hops)
        if isinstance(binding, Chunk):
            binding = self._parsed(module, name, binding)
        if binding is not None:
            return _symbol(target, module, name, binding)
        for star in module.stars:
            if symbol := self._lookup(star, name, target, hops - 1):
                return symbol
        child = self.module(f"{module_name}.{name}")
        return Symbol(target, child.name, "module", None, 1, child.path) if child else None

    def _follow(self, binding: Import, target: str, hops: int) -> Symbol | None:
        if binding.module.partition(".")[0] != self.sources.package:
            home = f"{binding.module}:{binding.name}" if binding.name else binding.module
            return Symbol(target, home, "external", None)
        if binding.name:
            return self._lookup(binding.module, binding.name, target, hops - 1)
        found = self.module(binding.module)
        return Symbol(target, found.name, "module", None, 1, found.path) if found else None

    def _member(self, owner: Symbol, name: str, target: str) -> Symbol | None:
        module_name = owner.home.partition(":")[0]
        if owner.kind == "external":
            return Symbol(target, f"{owner.home}.{name}", "external", None)
        if owner.kind == "module":
            return self._lookup(owner.home, name, target, _MAX_HOPS)
        if isinstance(owner.node, ast.ClassDef):
            return self._class_member(owner, name, target)
        value = getattr(owner.node, "value", None)
        if isinstance(value, ast.Call):
            made = self._expression(module_name, ast.unparse(value.func), target)
            return self._member(made, name, target) if made else None
        return None

    def _class_member(self, owner: Symbol, name: str, target: str) -> Symbol | None:
        for holder in (owner, *self.base_classes(owner)):
            if isinstance(holder.node, ast.ClassDef):
                node = _members(holder.node).get(name)
                if node is not None:
                    module = self.module(holder.home.partition(":")[0])
                    qualname = holder.home.partition(":")[2]
                    assert module is not None, holder.home
                    return _symbol(target, module, f"{qualname}.{name}", node)
        return None

    def _expression(self, module_name: str, dotted: str, target: str) -> Symbol | None:
        head, *rest = dotted.split(".")
        symbol = self._lookup(module_name, head, target, _MAX_HOPS) if head.isidentifier() else None
        for name in rest:
            symbol = self._member(symbol, name, target) if symbol else None
        return symbol


def _symbol(target: str, module: Module, qualname: str, node: ast.stmt) -> Symbol:
    kinds: dict[type, SymbolKind] = {
        ast.FunctionDef: "function",
        ast.AsyncFunctionDef: "function",
        ast.ClassDef: "class",
    }
    kind = kinds.get(type(node), "value")
    return Symbol(target, f"{module.name}:{qualname}", kind, node, node.lineno, module.path)


def _module_name(package: str, path: str) -> str:
    parts = path.removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join([package, *parts])


def _read_module(name: str, path: str, text: str) -> Module:
    try:
        return _module(name, path, split_module(text))
    except SyntaxError:
        return _module(name, path, [_Whole(text)])


@dataclass
class _Whole:
    """A module that could not be cut."""

    text: str
    defined_name: str = ""

    @cached_property
    def nodes(self) -> list[ast.stmt]:
        return ast.parse(self.text).body


def _module(name: str, path: str, chunks: Iterable[Chunk | _Whole]) -> Module:
    bindings: dict[str, Binding] = {}
    stars: list[str] = []
    package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
    for chunk in chunks:
        if isinstance(chunk, Chunk) and chunk.defined_name:
            bindings[chunk.defined_name] = chunk
            continue
        for node in _statements(chunk.nodes):
            if isinstance(node, ast.ImportFrom):
                source = _absolute(node, package)
                names = {alias.asname or alias.name: alias.name for alias in node.names}
                stars += [source] if "*" in names else []
                for bound, original in names.items():
                    bindings.setdefault(bound, Import(source, original))
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    head = alias.name if alias.asname else alias.name.partition(".")[0]
                    bindings.setdefault(alias.asname or head, Import(head, ""))
            else:
                _bind(bindings, node)
    return Module(name, path, bindings, tuple(stars))


def _bind(bindings: dict[str, Binding], node: ast.stmt) -> None:
    for name in _bound_names(node):
        # A definition is what a fallback assignment or a guarded import stands in for.
        if not isinstance(bindings.get(name), ast.ClassDef | ast.FunctionDef | Chunk):
            bindings[name] = node


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module or class body, those inside branches included."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _statements([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            handlers = [item for handler in node.handlers for item in handler.body]
            yield from _statements([*node.body, *handlers, *node.orelse, *node.finalbody])
        elif isinstance(node, ast.With):
            yield from _statements(node.body)
        else:
            yield node


def _bound_names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (item.id for item in node.targets if isinstance(item, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def _members(node: ast.AST) -> dict[str, ast.stmt]:
    """Names that a class body binds."""
    found: dict[str, ast.stmt] = {}
    for item in _statements(node.body if isinstance(node, ast.ClassDef) else ()):
        for name in _bound_names(item):
            found.setdefault(name, item)
    return found
