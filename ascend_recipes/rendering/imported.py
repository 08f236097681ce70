"""What importing a command yields."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ascend_recipes.errors import Finding
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.serving import RoleName


@dataclass(frozen=True)
class Unmapped:
    """An argument that no part of a recipe or site can carry."""

    target: str
    value: str
    """As it was given; masked where it is a secret."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class ImportedCommand:
    """A command as choices of a recipe."""

    role: RoleName
    overrides: Mapping[str, Json]
    """Recipe path, as the role sees it -> value."""
    site: Mapping[str, Json] = field(default_factory=dict)
    """Path in the site file -> value: what differs from machine room to machine room."""
    assumed: Mapping[str, str] = field(default_factory=dict)
    """Recipe path -> why it has its value although the command does not say it."""
    unmapped: tuple[Unmapped, ...] = ()
    findings: tuple[Finding, ...] = ()
    peers: Mapping[RoleName, Mapping[str, int]] = field(default_factory=dict)
    """Parallel sizes of both roles, as the connector's configuration states them."""
    follows: bool = False
    """Whether the process joins another one: a further node or rank of the same instance."""
