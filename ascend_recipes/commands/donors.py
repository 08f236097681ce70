"""Shipped recipes of the same model for another generation: what others run there."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascend_recipes.commands.changes import value_at
from ascend_recipes.compose import compose_recipe, recipe_names
from ascend_recipes.memory.views import role_views
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.base import Json
from ascend_recipes.validate import validate_recipe


@dataclass(frozen=True)
class Donor:
    """A shipped recipe of the same model for the generation asked for."""

    name: str
    tree: dict[str, Json]

    @property
    def roles(self) -> frozenset[str]:
        """Names of its roles."""
        return roles_of(self.tree)


def find_donors(
    source: ResolvedRecipe, target: str, config_dirs: Sequence[Path]
) -> tuple[Donor, ...]:
    """Recipes of the same model for a generation, the most similar first."""
    donors = [
        Donor(entry.name, _stated(entry.name, config_dirs))
        for entry in recipe_names(config_dirs)
        if entry.model == source.recipe.model and entry.hardware == target
    ]
    return tuple(sorted(donors, key=lambda donor: (*_unlike(donor.tree, source), donor.name)))


def _stated(name: str, config_dirs: Sequence[Path]) -> dict[str, Json]:
    """Everything that a recipe says, and what the schema says where it is silent."""
    recipe = validate_recipe(compose_recipe([f"recipe={name}"], config_dirs))
    tree: dict[str, Json] = recipe.model_dump(mode="json")
    return tree


def _unlike(tree: dict[str, Json], source: ResolvedRecipe) -> tuple[int, ...]:
    """How a recipe differs, the weightiest difference first."""
    recipe = source.recipe
    variant = value_at(tree, "checkpoint.variant")
    facts = source.model.checkpoints.get(str(variant))
    longest = value_at(tree, "scheduler.max_model_len")
    assert isinstance(longest, int)
    sizes = {view.role: view.recipe.parallel.world_size for view in role_views(source)}
    return (
        roles_of(tree) != frozenset(recipe.roles),
        facts is None or facts.format != source.checkpoint.format,
        value_at(tree, "drafter.kind") != recipe.drafter.kind,
        sum(abs(world_size(tree, role) - size) for role, size in sizes.items()),
        variant != recipe.checkpoint.variant,
        abs(longest - recipe.scheduler.max_model_len),
    )


def roles_of(tree: dict[str, Json]) -> frozenset[str]:
    """Names of the roles of a merged configuration."""
    roles = tree.get("roles")
    return frozenset(roles) if isinstance(roles, dict) and roles else frozenset({"serve"})


def is_smaller(donor: dict[str, Json], tree: dict[str, Json]) -> bool:
    """Whether the donor occupies no more dies than a configuration, role by role."""
    roles = sorted(roles_of(tree) & roles_of(donor))
    return all(world_size(donor, role) <= world_size(tree, role) for role in roles)


def world_size(tree: dict[str, Json], role: str) -> int:
    """Dies that one instance of a role occupies."""
    size = 1
    for axis in ("tp", "dp", "pp"):
        own = value_at(tree, f"roles.{role}.parallel.{axis}")
        value = own if own is not None else value_at(tree, f"parallel.{axis}")
        size *= value if isinstance(value, int) else 1
    return size


def same_value(donor: Donor, path: str, value: Json) -> bool:
    """Whether the donor says the same at a path."""
    return json.dumps(value_at(donor.tree, path)) == json.dumps(value)


def documented_by(donors: Iterable[Donor], path: str, value: Json) -> str:
    """Name of the first donor that says the same at a path; empty if none does."""
    return next((donor.name for donor in donors if same_value(donor, path, value)), "")
