"""Which machine of a deployment is which: one numbering for rendering, launching and exports."""

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
    places: list[NodePlace] = []
    for role in (name for name in ROLE_ORDER if name in recipe.roles):
        spec = recipe.roles[role]
        nodes = recipe.nodes if role == "serve" else spec.nodes
        for instance in range(spec.instances):
            for node_rank in range(nodes):
                places.append(NodePlace(len(places), role, instance, node_rank))
    return tuple(places)
