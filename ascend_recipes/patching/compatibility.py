"""Whether a function of ours accepts every call that the one it stands for accepts."""

import ast
from collections.abc import Iterator
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def mismatch(ours: Function, theirs: Function, *, skip: int = 0) -> str:
    """Say why calls of `theirs` can fail in `ours`; empty if they cannot.

    Args:
        ours: Replacement, override or wrapper.
        theirs: Function that callers believe to call.
        skip: Leading parameters of ours that callers do not fill: the original of a wrapper.
    """
    return next(_mismatches(ours, theirs, skip), "")


def _mismatches(ours: Function, theirs: Function, skip: int) -> Iterator[str]:
    if isinstance(ours, ast.AsyncFunctionDef) != isinstance(theirs, ast.AsyncFunctionDef):
        yield "one of the two is async"
    positional = _positional(ours)[skip:]
    wanted = _positional(theirs)
    keywords = {item.arg for item in ours.args.kwonlyargs}
    for index, name in enumerate(wanted):
        if index < len(positional):
            if positional[index] != name and index > 0:
                yield f"parameter {index + 1} is {positional[index]!r} here, {name!r} there"
        elif not ours.args.vararg:
            by_name = name in keywords or ours.args.kwarg
            yield f"it takes {name!r} only by name" if by_name else f"it lacks {name!r}"
    yield from _missing_keywords(ours, theirs, {*positional, *keywords})
    yield from _extra_requirements(ours, theirs, skip)
    if theirs.args.vararg and not ours.args.vararg:
        yield f"it lacks *{theirs.args.vararg.arg}"
    if theirs.args.kwarg and not ours.args.kwarg:
        yield f"it lacks **{theirs.args.kwarg.arg}"


def _missing_keywords(ours: Function, theirs: Function, known: set[str]) -> Iterator[str]:
    if not ours.args.kwarg:
        names = (item.arg for item in theirs.args.kwonlyargs)
        yield from (f"it lacks {name!r}" for name in names if name not in known)


def _extra_requirements(ours: Function, theirs: Function, skip: int) -> Iterator[str]:
    known = {*_positional(theirs), *(item.arg for item in theirs.args.kwonlyargs)}
    required = _positional(ours)[: len(_positional(ours)) - len(ours.args.defaults)]
    extra = required[max(skip, len(_positional(theirs)) + skip) :]
    pairs = zip(ours.args.kwonlyargs, ours.args.kw_defaults, strict=True)
    extra += [item.arg for item, default in pairs if default is None]
    yield from (
        f"it requires {name!r}, which callers do not give" for name in extra if name not in known
    )
    optional = set(_optional(theirs))
    now_required = [name for name in required[skip:] if name in optional]
    yield from (f"it requires {name!r}, which is optional there" for name in now_required)


def _positional(node: Function) -> list[str]:
    return [item.arg for item in (*node.args.posonlyargs, *node.args.args)]


def _optional(node: Function) -> Iterator[str]:
    names = _positional(node)
    yield from names[len(names) - len(node.args.defaults) :]
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    yield from (item.arg for item, default in pairs if default is not None)
