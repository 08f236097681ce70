"""Records the flags of `vllm serve` from vLLM's sources.

Follows `ServeSubcommand.subparser_init` through every `add_cli_args` and notes each
`add_argument`, whose keywords are either written out or come from `get_kwargs(ConfigClass)`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ascend_recipes.schema.surface import ValueKind
from ascend_recipes.surface.hints import Form, form_of, hint_of
from ascend_recipes.surface.source_tree import Module, SourceTree, dotted_name

_ENTRY = "vllm.entrypoints.cli.serve"
_MAX_DEPTH = 3
_TYPES: dict[str, ValueKind] = {"int": "int", "float": "float", "json.loads": "json"}


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag as the sources declare it."""

    names: tuple[str, ...]
    form: Form
    source: str
    field: str = ""
    deprecated: bool = False


@dataclass(kw_only=True)
class _Keywords:
    """What `get_kwargs` makes of one field; the sources change it before they use it."""

    form: Form
    field: str = ""


_Bound = dict[str, _Keywords] | _Keywords


@dataclass
class _Scope:
    """One function: the class it belongs to, and its names that hold keywords."""

    module: Module
    owner: tuple[Module, ast.ClassDef] | None = None
    bound: dict[str, _Bound] = field(default_factory=dict)


class FlagRecorder:
    """Walks the functions that build the parser of one source tree."""

    def __init__(self, tree: SourceTree) -> None:
        self._tree = tree
        self._flags: dict[str, Flag] = {}
        self._entered: set[int] = set()

    def record(self) -> list[Flag]:
        """Every flag of `vllm serve`, then the fields of those that take JSON.

        Positional arguments are left out.
        """
        module = self._tree.module(_ENTRY)
        assert module is not None, f"no {_ENTRY} below {self._tree.folder}"
        self._method((module, _class(module, "ServeSubcommand")), "subparser_init", _Scope(module))
        flags = list(self._flags.values())
        return [*flags, *(child for flag in flags for child in self._fields(flag, depth=1))]

    def _fields(self, parent: Flag, depth: int) -> Iterator[Flag]:
        """vLLM accepts `--flag.field VALUE` beside the whole object."""
        if parent.form.config is None or depth > _MAX_DEPTH:
            return
        module, cls = parent.form.config
        for name, (owner, node) in self._tree.fields(module, cls).items():
            child = Flag(
                names=(f"{parent.names[0]}.{name}",),
                form=form_of(hint_of(self._tree, owner, node.annotation)),
                source=self._tree.cite(owner, node),
                field=f"{cls.name}.{name}",
            )
            yield child
            yield from self._fields(child, depth + 1)

    def _method(
        self, owner: tuple[Module, ast.ClassDef], name: str, scope: _Scope, *, whole: bool = False
    ) -> None:
        """Walk a method; with `whole`, what it overrides too, which `super()` reaches."""
        found = list(self._tree.methods(*owner, name))
        for module, _, function in reversed(found if whole else found[:1]):
            self._function(_Scope(module, owner, dict(scope.bound)), function, scope)

    def _function(self, scope: _Scope, function: ast.FunctionDef, caller: _Scope) -> None:
        if id(function) in self._entered:
            return
        self._entered.add(id(function))
        parameters = [item.arg for item in function.args.args]
        for bound in caller.bound.values():
            # At most one argument of these calls holds keywords: the last parameter.
            scope.bound[parameters[-1]] = bound
        for node in function.body:
            self._statement(scope, node)

    def _statement(self, scope: _Scope, node: ast.stmt) -> None:
        if isinstance(node, ast.ImportFrom | ast.Import):
            scope.module.note(node)
        elif isinstance(node, ast.If):
            for inner in (*node.body, *node.orelse):
                self._statement(scope, inner)
        elif isinstance(node, ast.For):
            self._loop(scope, node)
        elif isinstance(node, ast.Assign):
            self._assign(scope, node.targets[0], node.value)
        elif isinstance(node, ast.AugAssign):
            self._change(scope, node.target, None)
        elif isinstance(node, ast.Expr | ast.Return) and isinstance(node.value, ast.Call):
            self._call(scope, node.value)

    def _loop(self, scope: _Scope, node: ast.For) -> None:
        """`for key, value in kwargs.items(): group.add_argument(f"--{key}", **value)`."""
        source = node.iter.func if isinstance(node.iter, ast.Call) else None
        bound = self._bound(scope, source.value) if isinstance(source, ast.Attribute) else None
        if isinstance(bound, dict):
            for name, keywords in bound.items():
                self._add(scope, node, (f"--{name.replace('_', '-')}",), keywords, deprecated=False)

    def _assign(self, scope: _Scope, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Subscript):
            self._change(scope, target, value)
        elif isinstance(target, ast.Name):
            bound = self._bound(scope, value)
            if bound is not None:
                scope.bound[target.id] = bound
            elif isinstance(value, ast.Call):
                self._call(scope, value)

    def _call(self, scope: _Scope, call: ast.Call) -> None:
        base, _, method = dotted_name(call.func).rpartition(".")
        if isinstance(call.func, ast.Attribute):
            method = call.func.attr
        if method == "add_argument":
            self._argument(scope, call)
        elif method == "remove" and isinstance(call.func, ast.Attribute):
            self._remove(scope, call)
        elif base == "cls" and scope.owner is not None:
            bound = {str(n): b for n, arg in enumerate(call.args) if (b := self._bound(scope, arg))}
            self._method(scope.owner, method, _Scope(scope.module, bound=bound), whole=True)
        elif method == "add_cli_args" and isinstance(call.func, ast.Attribute):
            if (owner := self._tree.find_class(scope.module, call.func.value)) is not None:
                self._method(owner, method, _Scope(owner[0]))
        elif not base:
            self._helper(scope, method)

    def _helper(self, scope: _Scope, name: str) -> None:
        """A function that takes the parser, such as `make_arg_parser`."""
        found = self._tree.find(scope.module, name)
        if found is not None and isinstance(found[1], ast.FunctionDef):
            self._function(_Scope(found[0]), found[1], _Scope(found[0]))

    def _bound(self, scope: _Scope, node: ast.expr) -> _Bound | None:
        """The keywords that an expression stands for."""
        if isinstance(node, ast.Name):
            return scope.bound.get(node.id)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            base = self._bound(scope, node.value)
            return base.get(str(node.slice.value)) if isinstance(base, dict) else None
        if isinstance(node, ast.Call) and dotted_name(node.func) == "get_kwargs":
            argument = node.args[0]
            if dotted_name(argument) == "cls" and scope.owner is not None:
                return self._keywords(*scope.owner)
            found = self._tree.find_class(scope.module, argument)
            return self._keywords(*found) if found else None
        if isinstance(node, ast.Dict):
            spread = [item for key, item in zip(node.keys, node.values, strict=True) if key is None]
            return self._bound(scope, spread[0]) if spread else None
        return None

    def _keywords(self, module: Module, cls: ast.ClassDef) -> dict[str, _Keywords]:
        return {
            name: _Keywords(
                form=form_of(hint_of(self._tree, owner, node.annotation)),
                field=f"{cls.name}.{name}",
            )
            for name, (owner, node) in self._tree.fields(module, cls).items()
        }

    def _change(self, scope: _Scope, target: ast.expr, value: ast.expr | None) -> None:
        """`kwargs["field"]["type"] = …`; without a value, the list of choices is extended."""
        if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Constant):
            return
        keywords = self._bound(scope, target.value)
        if not isinstance(keywords, _Keywords):
            return
        key = target.slice.value
        if key == "choices" and value is None:
            keywords.form = replace(keywords.form, choices=None)
        elif key == "type" and value is not None:
            keywords.form = replace(keywords.form, kind=_kind_of_type(value, keywords.form.kind))
        elif key == "action":
            keywords.form = replace(keywords.form, kind="list")

    def _remove(self, scope: _Scope, call: ast.Call) -> None:
        """`kwargs["field"]["choices"].remove(OPTION)`."""
        assert isinstance(call.func, ast.Attribute)
        target = call.func.value
        keywords = self._bound(scope, target.value) if isinstance(target, ast.Subscript) else None
        if isinstance(keywords, _Keywords) and keywords.form.choices is not None:
            gone = self._tree.value(scope.module, call.args[0])
            kept = tuple(item for item in keywords.form.choices if item != gone)
            keywords.form = replace(keywords.form, choices=kept)

    def _argument(self, scope: _Scope, call: ast.Call) -> None:
        names = tuple(
            item.value
            for item in call.args
            if isinstance(item, ast.Constant) and isinstance(item.value, str)
        )
        if not any(name.startswith("-") for name in names):
            return
        keywords = _Keywords(form=Form(kind="text"))
        for item in call.keywords:
            bound = self._bound(scope, item.value) if item.arg is None else None
            if isinstance(bound, _Keywords):
                keywords = _Keywords(form=bound.form, field=bound.field)
        stated = {item.arg: item.value for item in call.keywords if item.arg is not None}
        keywords.form = self._stated(scope, keywords.form, stated)
        self._add(scope, call, names, keywords, deprecated=self._is_deprecated(scope, stated))

    def _stated(self, scope: _Scope, form: Form, stated: dict[str, ast.expr]) -> Form:
        """The form with the keywords that a call writes out."""
        action = stated.get("action")
        if action is not None:
            kind = _kind_of_action(action, form.kind)
            form = replace(form, kind=kind)
        if (node := stated.get("type")) is not None:
            form = replace(form, kind=_kind_of_type(node, "text"))
        if (node := stated.get("choices")) is not None:
            value = self._tree.value(scope.module, node)
            form = replace(form, choices=tuple(value) if isinstance(value, list) else None)
        return form

    def _is_deprecated(self, scope: _Scope, stated: dict[str, ast.expr]) -> bool:
        flag = stated.get("deprecated")
        text = self._tree.value(scope.module, stated.get("help"))
        said = isinstance(text, str) and "deprecated" in text.lower()
        return said or (isinstance(flag, ast.Constant) and flag.value is True)

    def _add(
        self,
        scope: _Scope,
        node: ast.AST,
        names: tuple[str, ...],
        keywords: _Keywords,
        *,
        deprecated: bool,
    ) -> None:
        ordered = tuple(sorted(names, key=lambda name: not name.startswith("--")))
        source = self._tree.cite(scope.module, node)
        flag = Flag(
            names=ordered,
            form=keywords.form,
            source=source,
            field=keywords.field,
            deprecated=deprecated,
        )
        self._flags.setdefault(ordered[0], flag)


def _class(module: Module, name: str) -> ast.ClassDef:
    found = module.definitions[name]
    assert isinstance(found, ast.ClassDef), name
    return found


def _kind_of_type(node: ast.expr, otherwise: ValueKind) -> ValueKind:
    """Kind that a `type=` function makes; `optional_type(json.loads)` counts as its argument."""
    if isinstance(node, ast.Call) and node.args:
        return _kind_of_type(node.args[0], otherwise)
    name = dotted_name(node)
    if isinstance(node, ast.Lambda) or name == "str":
        return "text"
    if name.startswith("human_readable_int"):
        return "int"
    return _TYPES.get(name, otherwise)


def _kind_of_action(node: ast.expr, otherwise: ValueKind) -> ValueKind:
    if isinstance(node, ast.Constant):
        kinds: dict[object, ValueKind] = {"store_true": "store_true", "append": "list"}
        return kinds.get(node.value, otherwise)
    is_switch = dotted_name(node).endswith("BooleanOptionalAction")
    return "switch" if is_switch else otherwise
