"""A rendered deployment as one launcher sees it: every process, and those of this machine."""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.findings import finding
from ascend_recipes.launch.agreement import Agreement, agreement
from ascend_recipes.launch.members import Member, name_members
from ascend_recipes.launch.routing import RouterPlan, plan_router
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.planning.nodes import ROLE_ORDER, deployment_nodes
from ascend_recipes.rendering.render import render_commands
from ascend_recipes.schema.recipe import Recipe

LEAD = 0
"""The node that conducts: launchers meet there, and the router runs there."""


@dataclass(frozen=True)
class Deployment:
    """Every process of a plan, and which of them this launcher starts."""

    planned: PlannedLaunch
    members: tuple[Member, ...]
    nodes: int
    mine: tuple[int, ...]
    """Nodes that this launcher holds."""
    router: RouterPlan | None
    outer: Mapping[str, str]
    """Environment of the launching shell."""

    @property
    def recipe(self) -> Recipe:
        """The recipe behind the plan."""
        return self.planned.resolved.recipe

    @property
    def local(self) -> tuple[Member, ...]:
        """Processes of this machine."""
        return tuple(item for item in self.members if item.command.node in self.mine)

    @property
    def groups(self) -> tuple[str, ...]:
        """Roles in the order of their start."""
        return tuple(role for role in ROLE_ORDER if role in self.recipe.roles)

    @property
    def leads(self) -> bool:
        """Whether this launcher conducts."""
        return LEAD in self.mine

    @property
    def is_alone(self) -> bool:
        """Whether the whole deployment is one process."""
        return len(self.members) == 1

    def agreement(self) -> Agreement:
        """What every launcher of the deployment must have in common."""
        return agreement(self.planned.resolved, Path(self.planned.plan.model.checkpoint))


def find_deployment(planned: PlannedLaunch, nodes: Sequence[int]) -> Deployment:
    """Render a plan and find out which part of it is this machine's.

    Args:
        planned: A plan without blockers, so that the site names what it needs.
        nodes: Nodes that the user says this machine is; empty looks at its addresses.

    Raises:
        RecipeError: a node that does not exist (exit code 2), or a machine that is none (4).
    """
    recipe = planned.resolved.recipe
    members = name_members(render_commands(planned.resolved))
    count = len(deployment_nodes(recipe))
    return Deployment(
        planned=planned,
        members=members,
        nodes=count,
        mine=_own_nodes(recipe.site.node_addresses, count, nodes),
        router=plan_router(recipe, members, os.environ),
        outer=dict(os.environ),
    )


def _own_nodes(addresses: Sequence[str], count: int, named: Sequence[int]) -> tuple[int, ...]:
    for node in named:
        if node >= count:
            item = finding("cluster.unknown_node", fix="--node 0", node=node, last=count - 1)
            raise RecipeError((item,), ExitCode.USAGE)
    if named:
        return tuple(sorted(set(named)))
    if count == 1:
        return (LEAD,)
    own = tuple(node for node in range(count) if is_own_address(addresses[node]))
    if not own:
        listed = ", ".join(addresses[:count])
        item = finding("cluster.not_a_node", at="site.node_addresses", addresses=listed)
        raise RecipeError((item,), ExitCode.ENVIRONMENT)
    return own


def is_own_address(address: str) -> bool:
    """Whether an address, or what a name stands for, belongs to this machine."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _name, place in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(place)
            except OSError:
                continue
            return True
    return False
