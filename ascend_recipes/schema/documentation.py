"""What the fields of a schema mean: the text below them in the source, read when it is asked for.

Pydantic reads attribute docstrings while it builds a class, which costs every start of the command
line about 0.1 s. Only the JSON schemas, the reference page and `explain` want them.
"""

import ast
import inspect
import textwrap
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema


def field_text(model: type[BaseModel], name: str) -> str:
    """Meaning of a field, as its class or the class it comes from documents it; empty if nowhere.

    Raises:
        KeyError: the model has no such field.
    """
    _ = model.model_fields[name]
    owners = (_own_texts(owner) for owner in model.__mro__ if issubclass(owner, BaseModel))
    return next((texts[name] for texts in owners if name in texts), "")


class DocumentedSchema(GenerateJsonSchema):
    """JSON schema generator that describes each property by the field's text."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """The schema of a model with descriptions on its properties."""
        built = super().model_schema(schema)
        properties: dict[str, Any] = built.get("properties", {})
        for name, field in schema["cls"].model_fields.items():
            value = properties.get(field.alias or name)
            if value is not None and (text := field_text(schema["cls"], name)):
                value["description"] = text
        return built


@cache
def _own_texts(model: type[BaseModel]) -> dict[str, str]:
    """Field -> the string that follows its annotation in the class body."""
    if model is BaseModel:
        return {}
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    owner = next(node for node in body if isinstance(node, ast.ClassDef))
    pairs = zip(owner.body, owner.body[1:], strict=False)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
