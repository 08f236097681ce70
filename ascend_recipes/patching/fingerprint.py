"""Fingerprints of Python definitions: blind to comments, docstrings and layout, not to logic.

The dump is our own instead of `ast.dump`, whose text differs between Python versions.
"""

import ast
import hashlib
from functools import cache
from typing import Any, TypeAlias

Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_params"})
_DIGITS = 12


def body_fingerprint(node: ast.AST) -> str:
    """Twelve hex digits over everything that the definition says."""
    parts: list[str] = []
    _dump(node, parts)
    return _digest(" ".join(parts))


def signature_text(node: ast.AST) -> str:
    """What a caller or subclass relies on.

    A function gives its parameter names, with `=` behind those that have a default; a class gives
    its bases and, for each of its methods, the same; anything else gives nothing.
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return _function_signature(node)
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        members = [
            f"{item.name}{_function_signature(item)}"
            for item in node.body
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        return f"({bases}) {' '.join(sorted(members))}".strip()
    return ""


def signature_fingerprint(node: ast.AST) -> str:
    """Twelve hex digits over the signature; empty where there is none."""
    text = signature_text(node)
    return _digest(text) if text else ""


def _function_signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default = len(positional) - len(arguments.defaults)
    words = [
        f"{item.arg}=" if index >= without_default else item.arg
        for index, item in enumerate(positional)
    ]
    if arguments.posonlyargs:
        words.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg:
        words.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        words.append("*")
    for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        words.append(item.arg if default is None else f"{item.arg}=")
    if arguments.kwarg:
        words.append(f"**{arguments.kwarg.arg}")
    return f"({', '.join(words)})"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _dump(value: object, out: list[str]) -> None:
    """Append the text of a value; a list, because nested generators take most of the time."""
    if isinstance(value, ast.AST):
        kind: Any = type(value)
        out.append(kind.__name__)
        for name in _fields(kind):
            child = getattr(value, name, None)
            if child is not None and child != []:
                out.append(name)
                _dump(child, out)
        out.append(")")
    elif isinstance(value, list):
        for item in value:
            if not _is_text_statement(item):
                _dump(item, out)
        out.append("]")
    else:
        out.append(repr(value))


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in kind._fields if name not in _IGNORED_FIELDS)


def _is_text_statement(node: object) -> bool:
    """Whether a statement is a docstring or a string left lying in the body."""
    constant = node.value if isinstance(node, ast.Expr) else None
    return isinstance(constant, ast.Constant) and isinstance(constant.value, str)
