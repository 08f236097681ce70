"""Which machine of a deployment is which: one numbering for rendering, launching and exports."""

from collections.abc import Mapping
from dataclasses import dataclass

from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.schema.serving import RoleName

ROLE_ORDER: tuple[RoleName, ...] = ("serve", "prefill", "decode")
"""Order of starting, and of numbering machines; a decode role needs somebody who prefills."""


@dataclass(frozen=True)
class NodePlace:
    """What one machine is in the deployment."""

    node: int
    """Number in the whole deployment; node 0 leads."""
    role: RoleName
    instance: int
    """Copy of the role that it belongs to."""
    node_rank: int
    """Number inside the instance; 0 is the instance's own leader."""


def deployment_nodes(recipe: Recipe) -> tuple[NodePlace, ...]:
    """Every machine: prefill instances first, then decode, each with consecutive numbers."""
    shape = {
        name: (recipe.nodes if name == "serve" else spec.nodes, spec.instances)
        for name, spec in recipe.roles.items()
    }
    return number_nodes(shape)


def number_nodes(shape: Mapping[RoleName, tuple[int, int]]) -> tuple[NodePlace, ...]:
    """As `deployment_nodes`, from (nodes of one instance, instances) by role."""
    places: list[NodePlace] = []
    for role in ROLE_ORDER:
        nodes, instances = shape.get(role, (0, 0))
        for instance in range(instances):
            for node_rank in range(nodes):
                places.append(NodePlace(len(places), role, instance, node_rank))
    return tuple(places)


def lead_of(place: NodePlace) -> int:
    """Number of the machine that leads the instance of a place."""
    return place.node - place.node_rank
