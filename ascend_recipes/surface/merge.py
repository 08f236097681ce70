"""Joins what was recorded of several releases into rows with `since` and `until`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ascend_recipes.schema.base import Json

FactT = TypeVar("FactT")

Row = dict[str, Json]


@dataclass(frozen=True)
class Recorded(Generic[FactT]):
    """One release: every name of one kind with its facts."""

    release: str
    names: Mapping[str, FactT]
    is_exact: bool
    """Whether recipes run on it. Of older releases only the names count: they date the others."""


def merged_rows(
    releases: Sequence[Recorded[FactT]], to_row: Callable[[str, FactT], Row]
) -> list[Row]:
    """Rows of every name, sorted by name and release.

    A name has one row for each range of releases in which its facts are the same. A gap that lies
    among older releases alone is not told: branches of maintenance releases lag behind.

    Args:
        releases: Oldest first.
        to_row: Fields of a row; `source` may differ within a range, the newest one is kept.
    """
    names = sorted({name for item in releases for name in item.names})
    return [row for name in names for row in _rows(name, releases, to_row)]


def _rows(
    name: str, releases: Sequence[Recorded[FactT]], to_row: Callable[[str, FactT], Row]
) -> Iterator[Row]:
    for present in _ranges(name, releases):
        yield from _same(name, present, releases[-1].release, to_row)


def _ranges(name: str, releases: Sequence[Recorded[FactT]]) -> Iterator[list[Recorded[FactT]]]:
    """Runs of releases with the name; only an exact release without it ends a run."""
    run: list[Recorded[FactT]] = []
    for item in releases:
        if name in item.names:
            run.append(item)
        elif item.is_exact and run:
            yield run
            run = []
    if run:
        yield run


def _same(
    name: str,
    run: list[Recorded[FactT]],
    newest: str,
    to_row: Callable[[str, FactT], Row],
) -> Iterator[Row]:
    """Split a run where the facts change; older releases follow the first exact one."""
    since = run[0].release
    exact = [item for item in run if item.is_exact] or [run[-1]]
    for item, following in zip(exact, [*exact[1:], None], strict=True):
        row = to_row(name, item.names[name])
        if following is not None and _facts(row) == _facts(to_row(name, following.names[name])):
            continue
        last = item if following is not None else run[-1]
        told: Row = {"name": name, "since": since}
        if last.release != newest:
            told["until"] = last.release
        yield told | row | {"source": to_row(name, last.names[name])["source"]}
        since = following.release if following is not None else since


def _facts(row: Row) -> Row:
    return {key: value for key, value in row.items() if key != "source"}
