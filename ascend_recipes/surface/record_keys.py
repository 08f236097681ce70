"""Records the keys of `--additional-config` that vllm-ascend's sources read.

The configuration is a dictionary that is passed around and read by `get`, so the recorder follows
it: names, attributes, arguments and results that hold the dictionary or a block of it are tracked
as *paths*, and each literal key that is asked of a path is a legal key. Helpers such as
`_get_config_value(config, "key", "VARIABLE", …)` are followed with their literal arguments.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ascend_recipes.schema.base import Json
from ascend_recipes.schema.surface import ValueKind
from ascend_recipes.surface.source_tree import (
    UNKNOWN,
    Module,
    SourceTree,
    Unknown,
    dotted_name,
)

ROOT = "additional_config"
"""Name under which vLLM hands the dictionary to platforms."""

Path = tuple[str, ...]
_Paths = frozenset[Path]
_Value = _Paths | ast.Constant | None
"""What an expression holds: blocks of the configuration, a literal, or nothing of interest."""

_KINDS: dict[str, ValueKind] = {"bool": "bool", "int": "int", "float": "float", "str": "text"}
_REFUSAL = re.compile(r"[Uu]nknown|no attribute|[Uu]nexpected")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
_MAX_DEPTH = 8


@dataclass(kw_only=True)
class Key:
    """One key, with what the places that read it tell about its value."""

    source: str
    kind: ValueKind = "any"
    default: Json = None
    choices: tuple[Json, ...] | None = None
    closed: bool = False
    variable: str = ""
    is_read: bool = False
    """Whether the value is used; a key that is only looked for is one that was removed."""
    is_refused: bool = False
    """Whether its presence stops the server."""

    def learn_default(self, value: Json | Unknown) -> None:
        """The value where the key is absent; its type is the type of the key."""
        if isinstance(value, Unknown) or value is None:
            return
        if self.default is None:
            self.default = value
        if self.kind == "any":
            self.kind = _kind_of(value)


@dataclass
class _Scope:
    """One function that is followed, with what its names hold."""

    module: Module
    owner: ast.ClassDef | None
    names: dict[str, _Value] = field(default_factory=dict)
    attributes: dict[str, _Paths] = field(default_factory=dict)
    """`self.NAME` -> the key it was read from."""
    returned: list[_Value] = field(default_factory=list)
    depth: int = 0
    site: tuple[Module, ast.AST] | None = None
    """Where a helper was called: the place to cite for what it reads."""


class KeyRecorder:
    """Follows `additional_config` through one source tree."""

    def __init__(self, tree: SourceTree) -> None:
        self._tree = tree
        self.keys: dict[Path, Key] = {}
        self._shared: dict[str, _Paths] = {}
        """Attributes that carry a whole block under its own name, whatever object they are on."""
        self._active: set[tuple[int, tuple[str, ...]]] = set()

    def record(self) -> dict[str, Key]:
        """Every key in dotted form, sorted."""
        for module in self._mentioning(ROOT):
            self._module(module)
        for name in sorted(self._shared):
            for module in self._mentioning(f".{name}"):
                self._module(module)
        for path, key in self.keys.items():
            if any(other[: len(path)] == path != other for other in self.keys):
                key.kind = "json"
        return {".".join(path): self.keys[path] for path in sorted(self.keys)}

    def _mentioning(self, word: str) -> list[Module]:
        """Modules that hold a word; the one that defines the configuration object first."""
        found = self._tree.mentioning(word)
        return sorted(found, key=lambda item: "AscendConfig" not in item.definitions)

    def _module(self, module: Module) -> None:
        for owner, function in _functions(module.tree):
            scope = _Scope(module, owner)
            if any(item.arg == ROOT for item in function.args.args):
                scope.names[ROOT] = frozenset({()})
            if owner is not None:
                scope.attributes = self._attributes_of(module, owner)
            self._body(scope, function.body)

    def _attributes_of(self, module: Module, owner: ast.ClassDef) -> dict[str, _Paths]:
        """Attributes that the constructor fills from the configuration."""
        scope = _Scope(module, owner)
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                self._body(scope, node.body)
        return scope.attributes

    # Statements

    def _body(self, scope: _Scope, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self._statement(scope, node)

    def _statement(self, scope: _Scope, node: ast.stmt) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            scope.module.note(node)
        elif isinstance(node, ast.Assign):
            self._assign(scope, node.targets[0], self._value(scope, node.value))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            value = self._value(scope, node.value)
            self._hint(value, _KINDS.get(dotted_name(node.annotation)))
            self._assign(scope, node.target, value)
        elif isinstance(node, ast.Return) and node.value is not None:
            scope.returned.append(self._value(scope, node.value))
        elif isinstance(node, ast.FunctionDef):
            self._body(scope, node.body)
        else:
            self._check(scope, node)
            self._children(scope, node)

    def _check(self, scope: _Scope, node: ast.stmt) -> None:
        """`assert` and `if …: raise` tell legal values and refused keys."""
        if isinstance(node, ast.Assert):
            self._choices(scope, node.test, ast.In)
        elif isinstance(node, ast.If) and any(isinstance(item, ast.Raise) for item in node.body):
            self._choices(scope, node.test, ast.NotIn)
            self._refusals(scope, node.test)

    def _children(self, scope: _Scope, node: ast.stmt) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._statement(scope, child)
            elif isinstance(child, ast.ExceptHandler):
                self._body(scope, child.body)
            elif isinstance(child, ast.expr):
                self._value(scope, child)

    def _assign(self, scope: _Scope, target: ast.expr, value: _Value) -> None:
        if isinstance(target, ast.Name):
            if value is not None or not isinstance(scope.names.get(target.id), frozenset):
                scope.names[target.id] = value
        elif (
            isinstance(target, ast.Attribute)
            and isinstance(value, frozenset)
            and dotted_name(target.value) == "self"
        ):
            scope.attributes[target.attr] = value
            whole = {path for path in value if path and path[-1] == target.attr}
            if any(self.keys[path].kind == "json" for path in whole if path in self.keys):
                self._shared[target.attr] = frozenset(whole)

    # Expressions

    def _value(self, scope: _Scope, node: ast.expr) -> _Value:
        """What an expression holds; reads inside it are recorded on the way."""
        if isinstance(node, ast.Constant):
            return node
        if isinstance(node, ast.Name):
            return scope.names.get(node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(scope, node)
        if isinstance(node, ast.Call):
            return self._call(scope, node)
        if isinstance(node, ast.Subscript):
            base, key = self._value(scope, node.value), self._value(scope, node.slice)
            return self._read(scope, base, key, node) if isinstance(node.ctx, ast.Load) else None
        if isinstance(node, ast.Compare):
            self._comparison(scope, node)
            return None
        return self._composite(scope, node)

    def _composite(self, scope: _Scope, node: ast.expr) -> _Value:
        """Expressions that choose among others."""
        if isinstance(node, ast.BoolOp):
            return _union([self._value(scope, item) for item in node.values])
        if isinstance(node, ast.IfExp):
            self._value(scope, node.test)
            return _union([self._value(scope, node.body), self._value(scope, node.orelse)])
        if isinstance(node, ast.NamedExpr):
            value = self._value(scope, node.value)
            self._assign(scope, node.target, value)
            return value
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._value(scope, child)
        return None

    def _attribute(self, scope: _Scope, node: ast.Attribute) -> _Value:
        if node.attr == ROOT:
            return frozenset({()})
        if dotted_name(node.value) == "self" and node.attr in scope.attributes:
            return scope.attributes[node.attr]
        if node.attr in self._shared:
            return self._shared[node.attr]
        self._value(scope, node.value)
        return None

    def _comparison(self, scope: _Scope, node: ast.Compare) -> None:
        left = self._value(scope, node.left)
        for operator, item in zip(node.ops, node.comparators, strict=True):
            right = self._value(scope, item)
            if isinstance(operator, ast.In | ast.NotIn):
                self._paths(scope, right, left, node)

    def _read(
        self,
        scope: _Scope,
        base: _Value,
        key: _Value,
        node: ast.AST,
        default: ast.expr | None = None,
    ) -> _Value:
        """Take the value of a literal key out of a block."""
        paths = self._paths(scope, base, key, node)
        for path in paths or ():
            self.keys[path].is_read = True
            self.keys[path].learn_default(self._literal(scope, default))
        return paths

    def _paths(self, scope: _Scope, base: _Value, key: _Value, node: ast.AST) -> _Paths | None:
        """Paths of a literal key in a block, noted as keys."""
        if not isinstance(base, frozenset) or not isinstance(key, ast.Constant):
            return None
        if not isinstance(key.value, str):
            return None
        paths = frozenset((*path, key.value) for path in base)
        for path in paths:
            self._note(scope, path, node)
        return paths

    def _note(self, scope: _Scope, path: Path, node: ast.AST) -> Key:
        module, place = scope.site or (scope.module, node)
        return self.keys.setdefault(path, Key(source=self._tree.cite(module, place)))

    def _literal(self, scope: _Scope, node: ast.expr | None) -> Json | Unknown:
        bound = self._value(scope, node) if node is not None else None
        return self._tree.value(scope.module, bound if isinstance(bound, ast.Constant) else node)

    def _hint(self, value: _Value, kind: ValueKind | None) -> None:
        if isinstance(value, frozenset) and kind is not None:
            for path in value:
                if path in self.keys and self.keys[path].kind == "any":
                    self.keys[path].kind = kind

    def _call(self, scope: _Scope, call: ast.Call) -> _Value:
        arguments = [self._value(scope, item) for item in call.args]
        keywords = {item.arg: self._value(scope, item.value) for item in call.keywords}
        name = dotted_name(call.func)
        if name == "getattr" and len(call.args) > 1:
            attribute = arguments[1]
            is_root = isinstance(attribute, ast.Constant) and attribute.value == ROOT
            return frozenset({()}) if is_root else None
        if name in ("bool", "int", "float", "dict") and arguments:
            # `bool(x)` asks whether there is a value, of whatever type.
            self._hint(arguments[0], _KINDS.get(name) if name != "bool" else None)
            return arguments[0] if isinstance(arguments[0], frozenset) else None
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("get", "pop") and arguments:
            base = self._value(scope, call.func.value)
            if isinstance(base, frozenset):
                default = call.args[1] if len(call.args) > 1 else None
                return self._read(scope, base, arguments[0], call, default)
        if any(isinstance(item, frozenset) for item in (*arguments, *keywords.values())):
            return self._enter(scope, call, arguments, keywords)
        if isinstance(call.func, ast.Attribute):
            self._value(scope, call.func.value)
        return None

    # Calls that pass the configuration on

    def _enter(
        self,
        scope: _Scope,
        call: ast.Call,
        arguments: list[_Value],
        keywords: dict[str | None, _Value],
    ) -> _Value:
        found = self._callee(scope, call.func)
        if found is None or scope.depth >= _MAX_DEPTH:
            return None
        module, owner, function, is_constructor = found
        site = None if is_constructor else scope.site or (scope.module, call)
        inner = _Scope(module, owner, depth=scope.depth + 1, site=site)
        parameters = [item.arg for item in function.args.args]
        if parameters and parameters[0] in ("self", "cls"):
            parameters = parameters[1:]
        inner.names.update(zip(parameters, arguments, strict=False))
        inner.names.update({key: value for key, value in keywords.items() if key})
        if is_constructor and owner is not None:
            blocks = _union(inner.names.values())
            self._class_block(inner, owner, blocks)
        if isinstance(spread := keywords.get(None), frozenset):
            self._signature(inner, function, spread)
        mark = (id(function), tuple(repr(_plain(value)) for value in inner.names.values()))
        if mark in self._active:
            return None
        self._active.add(mark)
        self._body(inner, function.body)
        if is_constructor and owner is not None:
            self._checks(inner, owner)
            return None
        return self._result(inner, arguments)

    def _callee(
        self, scope: _Scope, node: ast.expr
    ) -> tuple[Module, ast.ClassDef | None, ast.FunctionDef, bool] | None:
        name = dotted_name(node)
        if name.startswith(("self.", "cls.")) and scope.owner is not None:
            for module, _, function in self._tree.methods(
                scope.module, scope.owner, name.partition(".")[2]
            ):
                return module, scope.owner, function, False
        found = self._tree.find(scope.module, name) if name and "." not in name else None
        if found is None:
            return None
        module, definition = found
        if isinstance(definition, ast.FunctionDef):
            return module, None, definition, False
        if isinstance(definition, ast.ClassDef):
            for owner_module, _, function in self._tree.methods(module, definition, "__init__"):
                return owner_module, definition, function, True
        return None

    def _signature(self, scope: _Scope, function: ast.FunctionDef, spread: _Paths) -> None:
        """`Block(**config)`: the parameters are the keys; without `**kwargs`, no others pass."""
        names = [item for item in function.args.args if item.arg != "self"]
        defaults = function.args.defaults
        padded = [None] * (len(names) - len(defaults)) + list(defaults)
        for path in spread:
            for item, default in zip(names, padded, strict=True):
                key = self._note(scope, (*path, item.arg), item)
                key.is_read = True
                key.learn_default(self._tree.value(scope.module, default))
                scope.names[item.arg] = frozenset({(*path, item.arg)})
            if function.args.kwarg is not None:
                scope.names[function.args.kwarg.arg] = spread
            elif path in self.keys:
                self.keys[path].closed = True

    def _class_block(self, scope: _Scope, owner: ast.ClassDef, blocks: _Value) -> None:
        """A class attribute `_defaults = {…}` lists the keys of its block."""
        if not isinstance(blocks, frozenset):
            return
        inside = {path for path in blocks if path}
        for node in owner.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Name) and target.id.strip("_").lower() == "defaults":
                assert isinstance(node, ast.Assign)
                defaults = self._tree.value(scope.module, node.value)
                for path in inside:
                    for name, value in defaults.items() if isinstance(defaults, dict) else ():
                        key = self._note(scope, (*path, name), node)
                        key.is_read = True
                        key.learn_default(value)
                        scope.attributes[name] = frozenset({(*path, name)})
        for path in inside & self.keys.keys():
            if self.keys[path].kind in ("json", "any") and _refuses_unknown(owner):
                self.keys[path].closed = True

    def _checks(self, scope: _Scope, owner: ast.ClassDef) -> None:
        """Other methods of a block's class check what the constructor read."""
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and node.name != "__init__":
                inner = _Scope(scope.module, owner, attributes=scope.attributes, depth=scope.depth)
                self._body(inner, node.body)

    def _result(self, scope: _Scope, arguments: list[_Value]) -> _Value:
        """What a helper returns; a literal that it may return is the default.

        An argument in upper case is the variable that it falls back to.
        """
        result = _union(scope.returned)
        if not isinstance(result, frozenset):
            return result
        literals = [item for item in scope.returned if isinstance(item, ast.Constant)]
        for path in result & self.keys.keys():
            for literal in literals:
                self.keys[path].learn_default(_as_json(literal))
            for item in arguments:
                if isinstance(item, ast.Constant) and _VARIABLE.fullmatch(str(item.value)):
                    self.keys[path].variable = str(item.value)
        return result

    def _choices(self, scope: _Scope, test: ast.expr, operator: type[ast.cmpop]) -> None:
        """`if value not in (…): raise` and `assert value in (…)` give the legal values."""
        for node in ast.walk(test):
            if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], operator):
                continue
            left = self._value(scope, node.left)
            options = self._options(scope, node.comparators[0])
            if isinstance(left, frozenset) and isinstance(options, list):
                for path in left & self.keys.keys():
                    self.keys[path].choices = tuple(sorted(options, key=str))

    def _refusals(self, scope: _Scope, test: ast.expr) -> None:
        """`if "key" in config: raise` is how a removed key is refused."""
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In):
            key, base = self._value(scope, test.left), self._value(scope, test.comparators[0])
            for path in self._paths(scope, base, key, test) or ():
                self.keys[path].is_refused = True

    def _options(self, scope: _Scope, node: ast.expr) -> Json | Unknown:
        if isinstance(node, ast.Attribute) and dotted_name(node.value) in ("self", "cls"):
            for item in scope.owner.body if scope.owner else ():
                if isinstance(item, ast.Assign) and dotted_name(item.targets[0]) == node.attr:
                    return self._tree.value(scope.module, item.value)
            return UNKNOWN
        return self._tree.value(scope.module, node)


def _functions(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield None, node
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    yield node, item


def _union(values: Iterable[_Value]) -> _Value:
    paths = frozenset(path for value in values if isinstance(value, frozenset) for path in value)
    return paths or None


def _plain(value: _Value) -> object:
    return value.value if isinstance(value, ast.Constant) else value


def _as_json(node: ast.Constant) -> Json | Unknown:
    value = node.value
    return value if value is None or isinstance(value, bool | int | float | str) else UNKNOWN


def _kind_of(value: Json) -> ValueKind:
    if isinstance(value, bool):
        return "bool"
    kinds: dict[type, ValueKind] = {int: "int", float: "float", str: "text", list: "list"}
    return kinds.get(type(value), "json")


def _refuses_unknown(owner: ast.ClassDef) -> bool:
    raises = (node for node in ast.walk(owner) if isinstance(node, ast.Raise))
    constructors = [item for item in owner.body if getattr(item, "name", "") == "__init__"]
    inside = {id(node) for item in constructors for node in ast.walk(item)}
    return any(_REFUSAL.search(ast.unparse(node)) for node in raises if id(node) in inside)
