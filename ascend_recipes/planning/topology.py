"""Layers, parallel groups and roles of the plan."""

from ascend_recipes.planning.ledger import Ledger
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.parallel import ParallelSpec
from ascend_recipes.schema.plan import GroupPlan, LayerPlan, RolePlan
from ascend_recipes.schema.roles import role_recipe
from ascend_recipes.schema.rows import LayerFacts
from ascend_recipes.schema.serving import RoleSpec


def plan_layers(resolved: ResolvedRecipe, ledger: Ledger) -> tuple[LayerPlan, ...]:
    """Layer kinds with their counts, backends and cache layouts."""
    layers = []
    for index, layer in enumerate(resolved.model.layers):
        backend = resolved.backends[layer.kind]
        layers.append(
            LayerPlan(
                pattern=resolved.model.layer_pattern,
                kind=layer.kind,
                count=_effective_count(resolved, layer),
                backend=backend,
                cache=resolved.registry.backends[backend].cache,
            )
        )
        because = f"serves {layer.kind} layers with attention {resolved.recipe.attention.kind}"
        ledger.from_row(f"layers.{index}", "models", resolved.recipe.model, at="layers")
        at = "layer_pattern"
        ledger.from_row(f"layers.{index}.pattern", "models", resolved.recipe.model, at=at)
        ledger.from_row(f"layers.{index}.backend", "backends", backend, because)
        ledger.from_row(f"layers.{index}.cache", "backends", backend, because, at="cache")
    return tuple(layers)


def plan_groups(resolved: ResolvedRecipe, ledger: Ledger) -> tuple[GroupPlan, ...]:
    """Process groups of the common part; a role that changes the axes states its own.

    The order is vLLM's (vllm/distributed/parallel_state.py, initialize_model_parallel).
    """
    groups = parallel_groups(resolved.recipe.parallel)
    for group in groups:
        ledger.from_recipe(f"groups.{group.axis}", f"parallel.{group.axis}")
        because = "order of ranks in vLLM: tensor, then pipeline, then data parallel"
        ledger.decided(f"groups.{group.axis}.ranks", parallel_groups, because)
    return groups


def parallel_groups(parallel: ParallelSpec) -> tuple[GroupPlan, ...]:
    """Groups as rules; ranks count tensor-parallel members first, then stages, then data."""
    world = parallel.world_size
    stage = parallel.tp * parallel.pp
    rules = [
        ("tp", parallel.tp, "consecutive"),
        ("pp", parallel.pp, f"stride {parallel.tp}"),
        ("dp", parallel.dp, f"stride {stage}"),
    ]
    if parallel.ep:
        size = parallel.tp * parallel.dp
        rule = "all" if parallel.pp == 1 else f"tp blocks with stride {stage}"
        rules.append(("ep", size, rule))
    return tuple(
        GroupPlan(axis=axis, size=size, count=world // size, ranks=rule)
        for axis, size, rule in rules
        if size > 1 or axis == "tp"
    )


def group_ranks(group: GroupPlan, *, tp: int, pp: int, dp: int) -> tuple[tuple[int, ...], ...]:
    """Every group of an axis as ranks."""
    rank = [[[(d * pp + p) * tp + t for t in range(tp)] for p in range(pp)] for d in range(dp)]
    if group.axis == "tp":
        return tuple(tuple(rank[d][p]) for d in range(dp) for p in range(pp))
    if group.axis == "pp":
        return tuple(tuple(rank[d][p][t] for p in range(pp)) for d in range(dp) for t in range(tp))
    if group.axis == "dp":
        return tuple(tuple(rank[d][p][t] for d in range(dp)) for p in range(pp) for t in range(tp))
    return tuple(tuple(rank[d][p][t] for d in range(dp) for t in range(tp)) for p in range(pp))


def plan_roles(resolved: ResolvedRecipe, ledger: Ledger) -> tuple[RolePlan, ...]:
    """Roles with their nodes and what they change."""
    recipe = resolved.recipe
    roles = []
    for name, spec in sorted(recipe.roles.items()):
        view = recipe if name == "serve" else role_recipe(recipe, name)
        nodes = recipe.nodes if name == "serve" else spec.nodes
        changes: dict[str, Json] = {key: value for key, value in spec.sections.items() if value}
        dies = _dies_per_node(view.parallel.world_size, nodes)
        groups = parallel_groups(view.parallel) if spec.parallel else ()
        role = RolePlan(
            name=name,
            nodes=nodes,
            instances=spec.instances,
            dies_per_node=dies,
            changes=changes,
            env=spec.env,
            groups=groups,
            transfer=_transfer(spec),
        )
        roles.append(role)
        _explain_role(ledger, role)
    return tuple(roles)


def _transfer(spec: RoleSpec) -> dict[str, Json] | None:
    if spec.transfer is None:
        return None
    tree: dict[str, Json] = spec.transfer.model_dump(mode="json", exclude_none=True)
    return {key: value for key, value in tree.items() if value != {}}


def _explain_role(ledger: Ledger, role: RolePlan) -> None:
    at = f"roles.{role.name}"
    ledger.from_recipe(at, at)
    for section, changes in role.changes.items():
        for key in changes if isinstance(changes, dict) else ():
            ledger.from_recipe(f"{at}.changes.{section}.{key}", f"{at}.{section}.{key}")
    for key in role.env:
        ledger.from_recipe(f"{at}.env.{key}", f"{at}.env.{key}")
    for key in role.transfer or ():
        ledger.from_recipe(f"{at}.transfer.{key}", f"{at}.transfer.{key}")
    ledger.from_recipe(f"{at}.nodes", "nodes" if role.name == "serve" else f"{at}.nodes")
    ledger.from_recipe(f"{at}.instances", f"{at}.instances")
    ledger.decided(f"{at}.dies_per_node", _dies_per_node, "the role's world over its nodes")
    for group in role.groups:
        ledger.decided(f"{at}.groups.{group.axis}", parallel_groups, "the role's parallel axes")


def _dies_per_node(world: int, nodes: int) -> int:
    """Dies that the role takes of each of its nodes; rules have seen that they are there."""
    return -(-world // nodes)


def _effective_count(resolved: ResolvedRecipe, layer: LayerFacts) -> int:
    """Layers of a kind in the model that runs: tiny keeps the proportions."""
    full, actual = resolved.model.config["num_hidden_layers"], resolved.config["num_hidden_layers"]
    assert isinstance(full, int)
    assert isinstance(actual, int)
    ratios = resolved.config.get("compress_ratios")
    if isinstance(ratios, list):
        kinds = [f"compressed_{ratio}" if ratio else "sliding_attention" for ratio in ratios]
        return kinds[:actual].count(layer.kind)
    return max(1, layer.count * actual // full)
