"""Writes the generated surface tables from the source folders of releases."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from ascend_recipes.schema.base import Json
from ascend_recipes.schema.surface import ValueKind
from ascend_recipes.surface.merge import Recorded, Row, merged_rows
from ascend_recipes.surface.record_flags import Flag, FlagRecorder
from ascend_recipes.surface.record_keys import Key, KeyRecorder
from ascend_recipes.surface.record_names import (
    Reset,
    Variable,
    record_architectures,
    record_resets,
    record_variables,
)
from ascend_recipes.surface.source_tree import SourceTree

FactT = TypeVar("FactT")


@dataclass(frozen=True)
class ReleaseSources:
    """The package folder of one release."""

    release: str
    folder: Path
    is_exact: bool
    """Whether a runtime row names it; others only date the names."""


def surface_files(
    vllm: Sequence[ReleaseSources], vllm_ascend: Sequence[ReleaseSources]
) -> dict[str, str]:
    """Name and text of each generated file.

    Args:
        vllm: Releases of vLLM, oldest first.
        vllm_ascend: Releases of vllm-ascend, oldest first.
    """
    upper = [(item, SourceTree(item.folder)) for item in vllm]
    lower = [(item, SourceTree(item.folder)) for item in vllm_ascend]
    own = _each(lower, record_variables)
    kinds = {name: fact.kind for item in own for name, fact in item.names.items()}
    tables = {
        "flags": merged_rows(_each(upper, _flags), _flag_row),
        "config_keys": merged_rows(
            _each(lower, lambda tree: KeyRecorder(tree).record()),
            lambda _, key: _key_row(key, kinds.get(key.variable, "any")),
        ),
        "variables": [
            *merged_rows(own, partial(_variable_row, "vllm_ascend")),
            *merged_rows(_each(upper, record_variables), partial(_variable_row, "vllm")),
        ],
        "architectures": [
            *merged_rows(
                _each(lower, record_architectures), partial(_architecture_row, "vllm_ascend")
            ),
            *merged_rows(_each(upper, record_architectures), partial(_architecture_row, "vllm")),
        ],
        "resets": merged_rows(_each(lower, record_resets), _reset_row),
    }
    releases = {
        "vllm": [item.release for item in vllm],
        "vllm_ascend": [item.release for item in vllm_ascend],
    }
    texts = {f"{name}.json": _text(rows) for name, rows in tables.items()}
    return {"releases.json": json.dumps(releases, indent=1) + "\n"} | texts


def _each(
    sources: Sequence[tuple[ReleaseSources, SourceTree]],
    record: Callable[[SourceTree], Mapping[str, FactT]],
) -> list[Recorded[FactT]]:
    return [Recorded(item.release, record(tree), item.is_exact) for item, tree in sources]


def _flags(tree: SourceTree) -> dict[str, Flag]:
    return {flag.names[0]: flag for flag in FlagRecorder(tree).record()}


def _flag_row(name: str, flag: Flag) -> Row:
    aliases = [item for item in flag.names if item != name]
    choices = None if flag.form.choices is None else sorted(flag.form.choices, key=str)
    return _without_defaults(
        kind=flag.form.kind,
        aliases=list(aliases),
        choices=choices,
        nullable=flag.form.nullable,
        field=flag.field,
        deprecated=flag.deprecated,
        source=flag.source,
    )


def _key_row(key: Key, kind_of_variable: ValueKind) -> Row:
    default: Row = {} if key.default is None else {"default": key.default}
    return default | _without_defaults(
        kind=key.kind if key.kind != "any" else kind_of_variable,
        choices=None if key.choices is None else list(key.choices),
        closed=key.closed,
        variable=key.variable,
        effect="" if key.is_read else "refused" if key.is_refused else "ignored",
        source=key.source,
    )


def _variable_row(reader: str, _: str, variable: Variable) -> Row:
    row: Row = {"reader": reader, "kind": variable.kind, "source": variable.source}
    return row | ({"registered": True} if variable.registered else {})


def _architecture_row(registrar: str, _: str, source: str) -> Row:
    return {"registrar": registrar, "source": source}


def _reset_row(_: str, reset: Reset) -> Row:
    return {"value": reset.value, "source": reset.source}


def _without_defaults(**values: Json) -> Row:
    """A row without the fields that say nothing."""
    return {key: value for key, value in values.items() if value not in (None, "", [], False)}


def _text(rows: Sequence[Row]) -> str:
    """One row a line, so that a new release is a readable difference."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f"[\n{lines}\n]\n"
