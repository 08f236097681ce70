"""What a deployment gives up on another generation, from the two plans."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.memory.planner import plan_memory
from ascend_recipes.memory.views import RoleView, role_views
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.planning.features import plan_features
from ascend_recipes.planning.ledger import Ledger
from ascend_recipes.planning.nodes import deployment_nodes
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.roles import role_recipe
from ascend_recipes.schema.serving import RoleName

_COUNTED = (
    ("lost_context", "scheduler.max_model_len"),
    ("lost_step", "scheduler.max_num_batched_tokens"),
)
_SLOW_PROVIDERS = ("triton", "torch")
"""Providers that stand in where the vendor's operators do not serve, the slower one last."""
_WHOLE = {"off", "none", "model", "tp"}
"""Values of a choice that mean that nothing special is done."""


def find_losses(before: PlannedLaunch, after: PlannedLaunch) -> tuple[Finding, ...]:
    """Everything that the second deployment does less of, as remarks with both values."""
    return (
        *_weights(before.resolved, after.resolved),
        *_roles(before, after),
        *_machines(before.resolved, after.resolved),
        *_operators(before, after),
    )


def _weights(before: ResolvedRecipe, after: ResolvedRecipe) -> Iterator[Finding]:
    old, new = before.checkpoint.format, after.checkpoint.format
    if old != new:
        first, second = before.quantization, after.quantization
        yield finding(
            "transpose.lost_format",
            at="checkpoint.variant",
            before=old,
            after=new,
            bits=f"W{first.weight_bits}A{first.activation_bits}",
            now=f"W{second.weight_bits}A{second.activation_bits}",
        )
    was, is_now = before.recipe.checkpoint.dtype, after.recipe.checkpoint.dtype
    if was != is_now:
        yield finding("transpose.lost_dtype", at="checkpoint.dtype", before=was, after=is_now)
    gone = set(before.recipe.roles) - set(after.recipe.roles)
    if gone:
        yield finding("transpose.lost_roles", at="roles", gone=sorted(gone))


def _roles(before: PlannedLaunch, after: PlannedLaunch) -> Iterator[Finding]:
    """Losses of a role, told with its path; the one role of the result stands for all others."""
    first = {view.role: view for view in role_views(before.resolved)}
    for view in role_views(after.resolved):
        old = first.get(view.role) or first.get("decode") or first["serve"]
        at = "" if view.role == "serve" else f"roles.{view.role}."
        for item in _role(old, view, before, after):
            yield _placed(item, at)


def _placed(item: Finding, at: str) -> Finding:
    return replace(item, at=f"{at}{item.at}")


def _role(
    old: RoleView, new: RoleView, before: PlannedLaunch, after: PlannedLaunch
) -> Iterator[Finding]:
    yield from _numbers(old, new, before.resolved, after.resolved)
    yield from _drafting(old, new)
    yield from _graphs(old, new)
    was = _features(before.resolved, old.role)
    now = _features(after.resolved, new.role)
    for path, value in was.items():
        if path not in now and _is_feature(path, value):
            yield finding("transpose.lost_feature", at=path, path=path, before=value)
    for path in ("cache.kv_dtype", "cache.state_dtype"):
        first, second = _typed(old, path), _typed(new, path)
        if first != second:
            yield finding("transpose.lost_cache_type", at=path, before=first, after=second)
    if old.recipe.cache.prefix_caching and not new.recipe.cache.prefix_caching:
        yield finding("transpose.lost_prefix", at="cache.prefix_caching")


def _numbers(
    old: RoleView, new: RoleView, before: ResolvedRecipe, after: ResolvedRecipe
) -> Iterator[Finding]:
    for name, path in _COUNTED:
        field = path.rpartition(".")[2]
        was, now = getattr(old.recipe.scheduler, field), getattr(new.recipe.scheduler, field)
        if now < was:
            yield _fewer(name, path, was, now)
    was, now = _sequences(old, before), _sequences(new, after)
    if now < was:
        yield _fewer("lost_sequences", "scheduler.max_num_seqs", was, now)
    dies = old.recipe.parallel.world_size, new.recipe.parallel.world_size
    if dies[1] < dies[0]:
        nodes = -(-dies[0] // new.hardware.dies_per_node)
        place = "" if new.role == "serve" else f"roles.{new.role}."
        yield replace(_fewer("lost_dies", "parallel.tp", *dies), fix=f"{place}nodes={nodes}")
    tokens = _cache_tokens(before, old.role), _cache_tokens(after, new.role)
    if 0 < tokens[1] < tokens[0]:
        yield _fewer("lost_cache", "cache.memory_fraction", *tokens)


def _fewer(name: str, at: str, before: int, after: int) -> Finding:
    change = f"{(after / before - 1) * 100:.0f} %"
    return finding(f"transpose.{name}", at=at, before=before, after=after, change=change)


def _sequences(view: RoleView, resolved: ResolvedRecipe) -> int:
    """Requests that all copies and replicas of a role run at a time."""
    copies = resolved.recipe.roles[view.role].instances
    return view.recipe.scheduler.max_num_seqs * view.recipe.parallel.dp * copies


def _cache_tokens(resolved: ResolvedRecipe, role: str) -> int:
    """Tokens that the caches of all replicas of a role hold for sure, by the planner."""
    for plan in plan_memory(resolved).roles:
        if plan.memory.role == role:
            view = next(view for view in role_views(resolved) if view.role == role)
            copies = resolved.recipe.roles[view.role].instances
            return plan.memory.cache.tokens[0] * view.recipe.parallel.dp * copies
    return 0


def _drafting(old: RoleView, new: RoleView) -> Iterator[Finding]:
    was, now = _drafter(old), _drafter(new)
    if was != now and (old.draft_tokens >= new.draft_tokens):
        yield finding("transpose.lost_drafter", at="drafter.kind", before=was, after=now)


def _drafter(view: RoleView) -> str:
    kind = view.recipe.drafter.kind
    return kind if kind == "none" else f"{kind} x{view.draft_tokens}"


def _graphs(old: RoleView, new: RoleView) -> Iterator[Finding]:
    first, second = old.recipe.graph, new.recipe.graph
    if first.kind != second.kind:
        yield finding("transpose.lost_graph", at="graph.kind", before=first.kind, after=second.kind)
    elif first.kind != "none" and second.kind != "none" and second.capture_sizes:
        gone = sorted(set(first.capture_sizes) - set(second.capture_sizes))
        if gone:
            yield finding("transpose.lost_sizes", at="graph.capture_sizes", gone=gone)


def _features(resolved: ResolvedRecipe, role: RoleName) -> Mapping[str, Json]:
    """Choices of a role that differ from the schema's own, by path."""
    recipe = resolved.recipe if role == "serve" else role_recipe(resolved.recipe, role)
    return plan_features(replace(resolved, recipe=recipe), Ledger(resolved))


def _is_feature(path: str, value: Json) -> bool:
    """Whether a choice makes something happen, rather than says how much."""
    if path.startswith(("scheduler.", "quant.")):
        return value is True
    return value is True or (isinstance(value, str) and value not in _WHOLE)


def _typed(view: RoleView, path: str) -> str:
    field = path.rpartition(".")[2]
    return view.kv_dtype if field == "kv_dtype" else view.state_dtype


def _machines(before: ResolvedRecipe, after: ResolvedRecipe) -> Iterator[Finding]:
    was, now = len(deployment_nodes(before.recipe)), len(deployment_nodes(after.recipe))
    if now > was:
        yield finding("transpose.more_nodes", at="nodes", before=was, after=now)


def _operators(before: PlannedLaunch, after: PlannedLaunch) -> Iterator[Finding]:
    """Operations that the vendor's operators serve on one generation and not on the other."""
    old, new = before.plan.operations, after.plan.operations
    for provider in _SLOW_PROVIDERS:
        slower = sorted(
            name
            for name, binding in new.items()
            if binding.startswith(f"{provider}.") and _rank(old.get(name, "")) < _rank(binding)
        )
        if slower:
            yield finding(
                "transpose.slower_operators", at="hardware", operations=slower, provider=provider
            )


def _rank(binding: str) -> int:
    provider = binding.partition(".")[0]
    return _SLOW_PROVIDERS.index(provider) + 1 if provider in _SLOW_PROVIDERS else 0
