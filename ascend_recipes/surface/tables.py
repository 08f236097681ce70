"""Reads the recorded tables; one file when it is first asked for."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from ascend_recipes.errors import RecipeError, Source
from ascend_recipes.findings import finding, recipe_error
from ascend_recipes.paths import data_root, display_path
from ascend_recipes.schema.complaints import complaint
from ascend_recipes.schema.surface import (
    ArchitectureRow,
    FlagRow,
    KeyRow,
    ResetRow,
    SurfaceNotes,
    SurfaceRow,
    VariableRow,
)
from ascend_recipes.yaml_files import load_yaml

RowT = TypeVar("RowT", bound=SurfaceRow)


@dataclass(frozen=True)
class History(Mapping[str, RowT]):
    """Rows of one kind as one release sees them; other releases are asked through `of`."""

    releases: Sequence[str]
    release: str
    rows: Mapping[str, Sequence[RowT]]
    """Every row of a name, oldest first."""

    def of(self, name: str) -> Sequence[RowT]:
        """Every recorded row of a name, whatever release it is for."""
        return self.rows.get(name, ())

    def covers(self, row: RowT) -> bool:
        """Whether the row is for this release."""
        here = self.releases.index(self.release)
        last = row.until or self.releases[-1]
        return self.releases.index(row.since) <= here <= self.releases.index(last)

    def is_past(self, row: RowT) -> bool:
        """Whether the row ended before this release."""
        return row.until is not None and (
            self.releases.index(row.until) < self.releases.index(self.release)
        )

    def __getitem__(self, name: str) -> RowT:
        for row in self.of(name):
            if self.covers(row):
                return row
        raise KeyError(name)

    def __iter__(self) -> Any:
        return (name for name, rows in self.rows.items() if any(map(self.covers, rows)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def releases() -> dict[str, list[str]]:
    """Recorded releases of `vllm` and `vllm_ascend`, oldest first."""
    found: dict[str, list[str]] = TypeAdapter(dict[str, list[str]]).validate_json(_text("releases"))
    return found


@cache
def flag_rows() -> Mapping[str, Sequence[FlagRow]]:
    """Flags of vLLM."""
    return _by_name(_rows("flags", FlagRow))


@cache
def key_rows() -> Mapping[str, Sequence[KeyRow]]:
    """Keys of vllm-ascend's `--additional-config`."""
    return _by_name(_rows("config_keys", KeyRow))


@cache
def variable_rows(reader: str) -> Mapping[str, Sequence[VariableRow]]:
    """Variables that `vllm` or `vllm_ascend` reads."""
    return _by_name(row for row in _rows("variables", VariableRow) if row.reader == reader)


@cache
def architecture_rows(registrar: str) -> Mapping[str, Sequence[ArchitectureRow]]:
    """Architectures that `vllm` or `vllm_ascend` registers."""
    rows = _rows("architectures", ArchitectureRow)
    return _by_name(row for row in rows if row.registrar == registrar)


@cache
def parser_names(kind: str, vllm: str) -> tuple[str, ...]:
    """Parsers that a release of vLLM registers; none of a release that was not recorded.

    Args:
        kind: `tool` or `reasoning`.
        vllm: the release.
    """
    recorded: dict[str, Any] = json.loads(_text("parsers"))
    return tuple(recorded[kind].get(vllm, ()))


@cache
def reset_rows() -> Mapping[str, Sequence[ResetRow]]:
    """Fields of vLLM's configuration that vllm-ascend overwrites."""
    return _by_name(_rows("resets", ResetRow))


@cache
def notes() -> SurfaceNotes:
    """What is written by hand.

    Raises:
        RecipeError: the file does not fit its schema.
    """
    path = data_root() / "registry" / "surface" / "notes.yaml"
    try:
        return SurfaceNotes.model_validate(load_yaml(path), strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        raise _wrong_row(Source(origin=display_path(path)), first) from None


def _text(name: str) -> bytes:
    path = data_root() / "registry" / "surface" / f"{name}.json"
    try:
        return path.read_bytes()
    except OSError as error:
        raise recipe_error("file.unreadable", path=path, reason=error.strerror) from None


@cache
def _rows(name: str, row_type: type[RowT]) -> list[RowT]:
    try:
        rows: list[RowT] = TypeAdapter(list[row_type]).validate_json(_text(name))  # type: ignore[valid-type]
    except ValidationError as error:
        raise _invalid(name, error) from None
    return rows


def _invalid(name: str, error: ValidationError) -> RecipeError:
    first = error.errors()[0]
    line = int(first["loc"][0]) + 2 if first["loc"] else 1
    where = Source(origin=f"registry/surface/{name}.json", line=line)
    return _wrong_row(where, first)


def _wrong_row(where: Source, first: ErrorDetails) -> RecipeError:
    field = ".".join(map(str, first["loc"])) or "-"
    wrong = finding("registry.invalid_row", source=where, field=field, said=complaint(first))
    return RecipeError((wrong,))


def _by_name(rows: Iterable[RowT]) -> Mapping[str, Sequence[RowT]]:
    found: dict[str, list[RowT]] = {}
    for row in rows:
        found.setdefault(row.name, []).append(row)
    return found
