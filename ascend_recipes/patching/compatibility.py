"""Whether a function of ours accepts every call that the one it stands for accepts."""

import ast
from collections.abc import Iterator
from typing import TypeAlias

from ascend_recipes.findings import Phrase, phrase

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def mismatch(ours: Function, theirs: Function, *, skip: int = 0) -> Phrase | None:
    """Say why calls of `theirs` can fail in `ours`; nothing if they cannot.

    Args:
        ours: Replacement, override or wrapper.
        theirs: Function that callers believe to call.
        skip: Leading parameters of ours that callers do not fill: the original of a wrapper.
    """
    return next(_mismatches(ours, theirs, skip), None)


def _mismatches(ours: Function, theirs: Function, skip: int) -> Iterator[Phrase]:
    if isinstance(ours, ast.AsyncFunctionDef) != isinstance(theirs, ast.AsyncFunctionDef):
        yield phrase("patch.one_is_async")
    positional = _positional(ours)[skip:]
    wanted = _positional(theirs)
    keywords = {item.arg for item in ours.args.kwonlyargs}
    for index, name in enumerate(wanted):
        if index < len(positional):
            if positional[index] != name and index > 0:
                here = positional[index]
                yield phrase("patch.other_name", index=index + 1, here=here, there=name)
        elif not ours.args.vararg:
            by_name = name in keywords or ours.args.kwarg
            yield phrase("patch.only_by_name" if by_name else "patch.lacks", name=repr(name))
    yield from _missing_keywords(ours, theirs, {*positional, *keywords})
    yield from _extra_requirements(ours, theirs, skip)
    if theirs.args.vararg and not ours.args.vararg:
        yield phrase("patch.lacks", name=f"*{theirs.args.vararg.arg}")
    if theirs.args.kwarg and not ours.args.kwarg:
        yield phrase("patch.lacks", name=f"**{theirs.args.kwarg.arg}")


def _missing_keywords(ours: Function, theirs: Function, known: set[str]) -> Iterator[Phrase]:
    if not ours.args.kwarg:
        names = (item.arg for item in theirs.args.kwonlyargs)
        yield from (phrase("patch.lacks", name=repr(name)) for name in names if name not in known)


def _extra_requirements(ours: Function, theirs: Function, skip: int) -> Iterator[Phrase]:
    known = {*_positional(theirs), *(item.arg for item in theirs.args.kwonlyargs)}
    required = _positional(ours)[: len(_positional(ours)) - len(ours.args.defaults)]
    extra = required[max(skip, len(_positional(theirs)) + skip) :]
    pairs = zip(ours.args.kwonlyargs, ours.args.kw_defaults, strict=True)
    extra += [item.arg for item, default in pairs if default is None]
    yield from (phrase("patch.not_given", name=name) for name in extra if name not in known)
    optional = set(_optional(theirs))
    now_required = [name for name in required[skip:] if name in optional]
    yield from (phrase("patch.optional_there", name=name) for name in now_required)


def _positional(node: Function) -> list[str]:
    return [item.arg for item in (*node.args.posonlyargs, *node.args.args)]


def _optional(node: Function) -> Iterator[str]:
    names = _positional(node)
    yield from names[len(names) - len(node.args.defaults) :]
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    yield from (item.arg for item, default in pairs if default is not None)
