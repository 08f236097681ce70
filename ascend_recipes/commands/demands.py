"""What a transposed deployment must hold besides the rules, and where it cannot be held at all."""

from collections.abc import Iterator, Sequence

from ascend_recipes.commands.donors import Donor, world_size
from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.memory.views import RoleView, role_views
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.resolve import ResolvedRecipe


def is_served(resolved: ResolvedRecipe, target: str) -> bool:
    """Whether backends for every layer of the model exist on a generation, for any attention."""
    rows = resolved.registry.backends.values()
    return any(
        all(
            any(
                kind in row.attention_kinds
                and layer.kind in row.layer_kinds
                and target in row.hardware
                for row in rows
            )
            for layer in resolved.model.layers
        )
        for kind in resolved.model.attention_kinds
    )


def demands(
    source: ResolvedRecipe, donors: Sequence[Donor], planned: PlannedLaunch
) -> Iterator[Finding]:
    """What a transposed deployment must hold besides the rules: machines and dies in use."""
    before = {view.role: view.recipe.parallel.world_size for view in role_views(source)}
    for view in role_views(planned.resolved):
        yield from _in_use(view, before.get(view.role, 0), donors)


def _in_use(view: RoleView, before: int, donors: Sequence[Donor]) -> Iterator[Finding]:
    recipe, dies = view.recipe, view.hardware.dies_per_node
    at = "" if view.role == "serve" else f"roles.{view.role}."
    parallel, world = recipe.parallel, recipe.parallel.world_size
    needed = -(-world // dies)
    if needed < recipe.nodes:
        yield finding(
            "transpose.idle_nodes",
            at=f"{at}nodes",
            fix=f"{at}nodes={needed}",
            role=view.role,
            world=world,
            nodes=recipe.nodes,
            needed=needed,
            hardware=recipe.hardware,
        )
    possible = min(before, recipe.nodes * dies)
    documented = any(
        view.role in donor.roles and world_size(donor.tree, view.role) == world for donor in donors
    )
    stage = parallel.tp * parallel.pp
    if world < possible and not documented and possible // stage > parallel.dp:
        yield finding(
            "transpose.idle_dies",
            at=f"{at}parallel.dp",
            fix=f"{at}parallel.dp={possible // stage}",
            role=view.role,
            world=world,
            possible=possible,
            before=before,
        )
