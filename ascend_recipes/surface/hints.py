"""What vLLM's argument parser makes of a type hint, told from the syntax.

vLLM turns the fields of its configuration classes into command-line flags. The order of the
questions below is that of `_compute_kwargs` in vllm/engine/arg_utils.py:319 of vLLM 0.32.0.
"""

import ast
from dataclasses import dataclass, replace

from ascend_recipes.schema.base import Json
from ascend_recipes.schema.surface import ValueKind
from ascend_recipes.surface.source_tree import UNKNOWN, Module, SourceTree, Unknown, dotted_name

_BUILTINS = {"bool", "int", "float", "str", "None"}
_COLLECTIONS = {"list": "list", "tuple": "list", "set": "list", "List": "list", "Sequence": "list"}
_TRANSPARENT = {"Optional", "Annotated", "SkipValidation", "Final"}


@dataclass(frozen=True, kw_only=True)
class Hint:
    """The members of a type hint that decide the form of a flag."""

    atoms: frozenset[str] = frozenset()
    """`bool`, `int`, `float`, `str`, `None`, `literal`, `list`, `dict`, `class`, `other`."""
    options: tuple[Json, ...] | None = ()
    """Options of the literal members; None where the syntax does not tell them all."""
    config: tuple[Module, ast.ClassDef] | None = None
    """The configuration class that JSON is parsed into."""

    def __or__(self, other: "Hint") -> "Hint":
        known = self.options is not None and other.options is not None
        return Hint(
            atoms=self.atoms | other.atoms,
            options=(*(self.options or ()), *(other.options or ())) if known else None,
            config=self.config or other.config,
        )


@dataclass(frozen=True, kw_only=True)
class Form:
    """What the parser accepts for one flag."""

    kind: ValueKind
    choices: tuple[Json, ...] | None = None
    """Every legal value, where there is a closed list."""
    nullable: bool = False
    config: tuple[Module, ast.ClassDef] | None = None


def form_of(hint: Hint) -> Form:
    """Kind, choices and nullability of the flag for a field."""
    atoms = hint.atoms
    if hint.config is not None:
        form = Form(kind="json", config=hint.config)
    elif atoms == {"bool", "str", "None"}:
        form = Form(kind="optional_text")
    elif "bool" in atoms:
        return Form(kind="switch")
    elif "literal" in atoms:
        form = _literal_form(hint)
    else:
        kind = _plain_kind(atoms)
        form = Form(kind=kind, choices=(hint.options or None) if kind == "list" else None)
    return replace(form, nullable="None" in atoms)


def _literal_form(hint: Hint) -> Form:
    whole = hint.options is not None and all(isinstance(item, int) for item in hint.options)
    kind: ValueKind = "int" if whole and hint.options else "text"
    closed = "str" not in hint.atoms and hint.options is not None
    return Form(kind=kind, choices=hint.options if closed else None)


def _plain_kind(atoms: frozenset[str]) -> ValueKind:
    if "list" in atoms:
        return "list"
    if "int" in atoms:
        return "int"
    if "float" in atoms:
        return "float"
    if "dict" in atoms:
        return "json_or_text" if atoms & {"str", "class", "other"} else "json"
    return "text"


def hint_of(tree: SourceTree, module: Module, node: ast.expr) -> Hint:
    """Read an annotation."""
    if isinstance(node, ast.Constant):
        if node.value is None:
            return Hint(atoms=frozenset({"None"}))
        if isinstance(node.value, str):
            return hint_of(tree, module, ast.parse(node.value, mode="eval").body)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return hint_of(tree, module, node.left) | hint_of(tree, module, node.right)
    if isinstance(node, ast.Subscript):
        return _subscript(tree, module, node)
    if isinstance(node, ast.Name):
        return _name(tree, module, node)
    return Hint(atoms=frozenset({"other"}))


def _name(tree: SourceTree, module: Module, node: ast.Name) -> Hint:
    if node.id in _BUILTINS:
        return Hint(atoms=frozenset({node.id}))
    if node.id in _COLLECTIONS or node.id in ("dict", "Dict"):
        return Hint(atoms=frozenset({_COLLECTIONS.get(node.id, "dict")}))
    found = tree.find(module, node.id)
    if found is None:
        return Hint(atoms=frozenset({"other"}))
    owner, definition = found
    if isinstance(definition, ast.ClassDef):
        if _is_dataclass(definition):
            return Hint(atoms=frozenset({"class"}), config=(owner, definition))
        bases = {dotted_name(base).rpartition(".")[2] for base in definition.bases}
        is_dict = any(base in ("dict", "UserDict") for base in bases) or any(
            isinstance(base, ast.Subscript) and dotted_name(base.value) == "dict"
            for base in definition.bases
        )
        return Hint(atoms=frozenset({"dict" if is_dict else "class"}))
    if isinstance(definition, ast.expr):
        return hint_of(tree, owner, definition)
    return Hint(atoms=frozenset({"other"}))


def _subscript(tree: SourceTree, module: Module, node: ast.Subscript) -> Hint:
    base = dotted_name(node.value).rpartition(".")[2]
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if base == "Literal":
        return Hint(atoms=frozenset({"literal"}), options=_options(tree, module, items))
    if base in _TRANSPARENT:
        inner = hint_of(tree, module, items[0])
        return inner | Hint(atoms=frozenset({"None"})) if base == "Optional" else inner
    if base == "Union":
        whole = Hint()
        for item in items:
            whole = whole | hint_of(tree, module, item)
        return whole
    if base in _COLLECTIONS:
        return Hint(atoms=frozenset({"list"}), options=_element_options(tree, module, items[0]))
    if base in ("dict", "Dict", "Mapping", "defaultdict"):
        return Hint(atoms=frozenset({"dict"}))
    return Hint(atoms=frozenset({"other"}))


def _element_options(tree: SourceTree, module: Module, node: ast.expr) -> tuple[Json, ...] | None:
    inner = hint_of(tree, module, node)
    return inner.options if inner.atoms == {"literal"} else ()


def _options(tree: SourceTree, module: Module, items: list[ast.expr]) -> tuple[Json, ...] | None:
    options: list[Json] = []
    for item in items:
        value: Json | Unknown = tree.value(module, item) if _is_plain(item) else UNKNOWN
        if not isinstance(value, Unknown):
            options.append(value)
            continue
        nested = hint_of(tree, module, item)
        if "literal" not in nested.atoms or nested.options is None:
            return None
        options.extend(nested.options)
    return tuple(options)


def _is_plain(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.UnaryOp)


def _is_dataclass(node: ast.ClassDef) -> bool:
    for decorator in node.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        if dotted_name(call).rpartition(".")[2] in ("config", "dataclass"):
            return True
    return False
