"""Base class and shared field types of every schema."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

Json = JsonValue
"""Any value that JSON can say."""


class Spec(BaseModel):
    """Frozen, strict and closed data; `schema.documentation` reads what its fields mean."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


def _env_text(value: object) -> object:
    """Render YAML and command-line scalars as the shell would see them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


EnvValue = Annotated[str, BeforeValidator(_env_text, json_schema_input_type=str | bool | float)]
"""Value of an environment variable; YAML scalars are written as the shell would see them."""

Count = Annotated[int, Field(ge=1)]
"""A number of things, at least one."""

Fraction = Annotated[float, Field(gt=0.0, le=1.0)]
"""A share in (0, 1]."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.]*$")]
"""A registry key: lower snake case, equal to the stem of its file."""

ImplementationPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""`module:Name` of our own code; resolved in `apply` only."""
