"""`schema`: the JSON Schema of recipe files, presets, registry rows and of `--json` output."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ascend_recipes.commands.documents import output_schema
from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.findings import finding
from ascend_recipes.schema.base import Spec
from ascend_recipes.schema.collectives import CollectivesRow
from ascend_recipes.schema.documentation import DocumentedSchema
from ascend_recipes.schema.hook import HookRow
from ascend_recipes.schema.log_message import LogMessagesRow
from ascend_recipes.schema.operation import OperationContract
from ascend_recipes.schema.operator import OperatorRow
from ascend_recipes.schema.reading import ReadingRow
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.schema.rows import (
    BackendRow,
    DeploymentsRow,
    FindingsRow,
    HardwareRow,
    ModelRow,
    ProviderRow,
    QuantizationRow,
    RuntimeRow,
)
from ascend_recipes.schema.stack import StackRow

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

ROWS: dict[str, type[Spec]] = {
    "backends": BackendRow,
    "collectives": CollectivesRow,
    "deployments": DeploymentsRow,
    "findings": FindingsRow,
    "hardware": HardwareRow,
    "hooks": HookRow,
    "log_messages": LogMessagesRow,
    "models": ModelRow,
    "operations": OperationContract,
    "operators": OperatorRow,
    "providers": ProviderRow,
    "quantization": QuantizationRow,
    "readings": ReadingRow,
    "runtimes": RuntimeRow,
    "stacks": StackRow,
}
SECTIONS = (
    "attention",
    "cache",
    "device",
    "drafter",
    "env",
    "graph",
    "parallel",
    "quant",
    "roles",
    "runtime",
    "scheduler",
    "site",
)
"""Sections that have presets."""

_SET_BY_COMPOSITION = ("name", "changed", "schema_version")


OUTPUT = "output"
"""Name of the schema of what `--json` prints."""


def schema_names() -> tuple[str, ...]:
    """What a schema can be asked for."""
    return ("recipe", *SECTIONS, *ROWS, OUTPUT)


def json_schema(name: str = "recipe") -> Schema:
    """The schema of a recipe file, a preset of a section, a row of a registry table, or output.

    A recipe file states a part and leaves the rest to presets: nothing is required in it, and it
    may hold a defaults list. A preset and a row are whole.

    Raises:
        RecipeError: nothing has that name (exit code 2).
    """
    if name == "recipe":
        return _recipe_file()
    if name == OUTPUT:
        return _headed(output_schema(), "output of ascend-run --json")
    if name in SECTIONS:
        section: Any = Recipe.model_fields[name].annotation
        schema = _partial(TypeAdapter(section).json_schema(schema_generator=DocumentedSchema))
        return _headed(schema, f"{name} preset")
    if name in ROWS:
        return _headed(
            ROWS[name].model_json_schema(schema_generator=DocumentedSchema),
            f"row of registry/{name}",
        )
    unknown = finding(
        "schema.unknown_name", fix="ascend-run schema recipe", name=name, options=schema_names()
    )
    raise RecipeError((unknown,), ExitCode.USAGE)


def schema_files(root: Path) -> Iterator[tuple[Path, Schema]]:
    """Every committed schema file below a checkout, with its content."""
    for name in schema_names():
        if name == OUTPUT:
            yield root / "docs" / "output.schema.json", json_schema(name)
            continue
        folder = root / ("registry" if name in ROWS else "recipes") / "schemas"
        yield folder / f"{name}.json", json_schema(name)


_DEFAULTS: Schema = {
    "type": "array",
    "description": "Presets to choose (`override /section: preset`) and the recipe to build on.",
}


def _recipe_file() -> Schema:
    schema = _partial(Recipe.model_json_schema(schema_generator=DocumentedSchema))
    for key in _SET_BY_COMPOSITION:
        schema["properties"].pop(key)
    schema["properties"]["defaults"] = _DEFAULTS
    return _headed(schema, "recipe")


def _headed(schema: Schema, title: str) -> Schema:
    return {"$schema": DIALECT, **schema, "title": f"ascend_recipes {title}"}


def _partial(tree: Any) -> Any:
    """Drop what only a whole has: required keys, and the choice of exactly one kind."""
    if isinstance(tree, list):
        return [_partial(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kept = {}
    for key, value in tree.items():
        if key in ("required", "discriminator"):
            continue
        kept["anyOf" if key == "oneOf" else key] = _partial(value)
    return kept
