"""Documented deployments beside our recipes: which recipe, and where the values differ."""

from collections.abc import Iterator
from dataclasses import dataclass

from ascend_recipes.schema.base import Json
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.schema.roles import role_recipe
from ascend_recipes.schema.rows import Deployment, DocumentedRole
from ascend_recipes.schema.serving import RoleName

_PATHS = {
    "dp": "parallel.dp",
    "tp": "parallel.tp",
    "pp": "parallel.pp",
    "dcp": "parallel.dcp",
    "ep": "parallel.ep",
    "nodes": "nodes",
    "seqs": "scheduler.max_num_seqs",
    "len": "scheduler.max_model_len",
    "tokens": "scheduler.max_num_batched_tokens",
    "memory": "cache.memory_fraction",
    "block": "cache.block_size",
    "prefix": "cache.prefix_caching",
    "graph": "graph.kind",
    "sizes": "graph.capture_sizes",
    "cp": "attention.context_parallel",
    "index": "attention.indexer_cache",
    "kv": "cache.kv_dtype",
    "fused": "moe.fused_communication",
    "overlap": "moe.overlap_shared_expert",
    "shared": "moe.shared_expert",
    "recompute": "scheduler.recompute",
    "balance": "scheduler.balance",
    "buffer": "env.HCCL_BUFFSIZE",
}
"""Column of a documented role -> path in the recipe as the role sees it."""


@dataclass(frozen=True)
class Deviation:
    """A documented value that the recipe does not have."""

    key: str
    """`role.column`, as in the row's `differs`."""
    documented: Json
    ours: Json


def deviations(deployment: Deployment, recipe: Recipe) -> Iterator[Deviation]:
    """Every stated value that differs, role by role."""
    if deployment.weights not in (None, recipe.checkpoint.variant):
        yield Deviation("weights", deployment.weights, recipe.checkpoint.variant)
    for name, stated in deployment.roles.items():
        role = _role_name(name)
        if role not in recipe.roles:
            yield Deviation(f"{name}.role", name, ", ".join(sorted(recipe.roles)))
            continue
        view = recipe if role == "serve" else role_recipe(recipe, role)
        for column, documented in _stated(stated):
            ours = _value(view, role, column)
            if ours != documented:
                yield Deviation(f"{name}.{column}", documented, ours)


def column_path(column: str) -> str:
    """Path of a column of a documented role in the recipe; empty where it is no single field."""
    return _PATHS.get(column, "")


def _role_name(name: str) -> RoleName:
    names: dict[str, RoleName] = {"serve": "serve", "prefill": "prefill", "decode": "decode"}
    return names[name]


def _stated(role: DocumentedRole) -> Iterator[tuple[str, Json]]:
    yield from role.model_dump(mode="json", exclude_none=True).items()


def _value(view: Recipe, role: RoleName, column: str) -> Json:
    if column == "draft":
        drafter = view.drafter
        return "none" if drafter.kind == "none" else f"{drafter.kind}{drafter.num_draft_tokens}"
    if column == "instances":
        return view.roles[role].instances
    tree: Json = view.model_dump(mode="json")
    for part in _PATHS[column].split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return int(str(tree)) if column == "buffer" and tree is not None else tree
