"""Arithmetic over named sizes, as contracts write shapes and costs: `2*I`, `R+1`, `4*T*N*D*L`."""

import ast
import operator
from collections.abc import Callable, Mapping

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max}


def evaluate(text: str | int, sizes: Mapping[str, float]) -> float:
    """Value of an expression of numbers, names, `+ - * / //`, `min()`, `max()` and brackets.

    Raises:
        ValueError: the text is anything else, divides by zero, or names a size that is not given.
    """
    try:
        return _value(ast.parse(str(text), mode="eval").body, sizes)
    except (SyntaxError, KeyError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(f"{text!r}: {type(error).__name__} {error}") from None


def names_in(text: str | int) -> frozenset[str]:
    """Sizes that an expression needs.

    Raises:
        ValueError: the text is no expression.
    """
    try:
        nodes = list(ast.walk(ast.parse(str(text), mode="eval")))
    except SyntaxError as error:
        raise ValueError(f"{text!r}: {error}") from None
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    return frozenset(
        node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called
    )


def _value(node: ast.expr, sizes: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int(number) | float(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, sizes), _value(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*[_value(item, sizes) for item in args])
    raise ValueError(f"{ast.unparse(node)!r} is neither a number, a size, nor arithmetic on them")
