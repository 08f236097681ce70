"""Rules about parallel axes."""

from collections.abc import Iterator
from math import gcd

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe


def heads_divide(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Tensor parallelism divides every kind of head; key-value heads may be replicated."""
    tp = resolved.recipe.parallel.tp
    sizes = {field: _int(resolved, field) for field in resolved.model.heads_split}
    legal = _divisors(gcd(*sizes.values()))
    for field, heads in sizes.items():
        if heads % tp:
            yield finding(
                "parallel.heads_not_divisible",
                at="parallel.tp",
                fix=f"parallel.tp={max((n for n in legal if n < tp), default=1)}",
                field=field,
                heads=heads,
                tp=tp,
                legal=legal,
            )


def world_fits_nodes(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The axes multiply to no more dies than the nodes have."""
    parallel = resolved.recipe.parallel
    dies = resolved.hardware.dies_per_node * resolved.recipe.nodes
    if parallel.world_size > dies:
        needed = -(-parallel.world_size // resolved.hardware.dies_per_node)
        yield finding(
            "parallel.world_exceeds_nodes",
            at="parallel.tp",
            fix=f"nodes={needed}",
            tp=parallel.tp,
            dp=parallel.dp,
            pp=parallel.pp,
            world=parallel.world_size,
            nodes=resolved.recipe.nodes,
            hardware=resolved.recipe.hardware,
            dies=dies,
        )


def experts_exist(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Expert parallelism needs experts."""
    if resolved.recipe.parallel.ep and "moe" not in resolved.model.traits:
        yield finding(
            "parallel.no_experts",
            at="parallel.ep",
            fix="parallel.ep=false",
            model=resolved.recipe.model,
        )


def _int(resolved: ResolvedRecipe, field: str) -> int:
    value = resolved.config[field]
    assert isinstance(value, int), f"{field} is {value!r}"
    return value


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
