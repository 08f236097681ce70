"""Reads `registry/documented/`."""

from functools import cache

from pydantic import TypeAdapter

from ascend_recipes.paths import data_root
from ascend_recipes.schema.documented import DocumentedCommand, DocumentedNotes
from ascend_recipes.yaml_files import load_yaml

_COMMANDS = TypeAdapter(tuple[DocumentedCommand, ...])
_FOLDER = "registry/documented"


@cache
def documented_commands(row: str) -> tuple[DocumentedCommand, ...]:
    """Commands of the deployments in one row of `registry/deployments`; none are recorded of some.

    Raises:
        ValidationError: the file does not fit its schema.
    """
    path = data_root() / _FOLDER / f"{row}.json"
    return _COMMANDS.validate_json(path.read_bytes()) if path.is_file() else ()


@cache
def documented_notes() -> DocumentedNotes:
    """What is known about all of them.

    Raises:
        ValidationError: the file does not fit its schema.
    """
    path = data_root() / _FOLDER / "notes.yaml"
    return DocumentedNotes.model_validate(load_yaml(path), strict=False)
