"""Every document that `ascend-run … --json` prints, as types: one JSON object on stdout.

The commands build plain dictionaries, so that a cold start pays nothing for this package; tests
hold what every command prints to it. `ascend-run schema output` and `docs/output.schema.json` are
made from it.
"""

from functools import reduce
from operator import or_
from typing import Any

from pydantic import TypeAdapter

from ascend_recipes.commands.documents import operations, recipes, runs, tools
from ascend_recipes.commands.documents.base import Document, StoppedDocument
from ascend_recipes.schema.documentation import DocumentedSchema

_MODULES = (recipes, tools, operations, runs)


def document_types() -> tuple[type[Document], ...]:
    """The documents of all commands, in the order of their modules, and that of a stop."""
    found = [
        item
        for module in _MODULES
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Document) and item is not Document
    ]
    return (*found, StoppedDocument)


def output_adapter() -> TypeAdapter[Any]:
    """Validates any document that a command prints."""
    return TypeAdapter(reduce(or_, document_types()))


def output_schema() -> dict[str, Any]:
    """JSON Schema of any document; `$defs` has one entry a command."""
    return output_adapter().json_schema(schema_generator=DocumentedSchema)
