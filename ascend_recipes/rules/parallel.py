"""Rules about parallel axes; context and fine-grained axes stand in `parallel_groups`."""

from collections.abc import Iterator
from math import gcd

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import Holding, holds
from ascend_recipes.rules.options import argument, key, switched_on, variable


def heads_divide(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Tensor parallelism divides every kind of head; key-value heads may be replicated."""
    tp = resolved.recipe.parallel.tp
    sizes = {field: _int(resolved, field) for field in resolved.model.heads_split}
    for field, heads in sizes.items():
        if heads % tp:
            yield finding(
                "parallel.heads_not_divisible",
                at="parallel.tp",
                fix=_smaller_tp(resolved),
                field=field,
                heads=heads,
                tp=tp,
                legal=_divisors(gcd(*sizes.values())),
            )


def key_value_heads_divide(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Key-value heads are split evenly, or every one is copied the same number of times."""
    tp = resolved.recipe.parallel.tp
    if any(_int(resolved, field) % tp for field in resolved.model.heads_split):
        return
    if not _keys_split(resolved, tp):
        heads, fix = resolved.config["num_key_value_heads"], _smaller_tp(resolved)
        yield finding("parallel.kv_heads", at="parallel.tp", fix=fix, heads=heads, tp=tp)


def _smaller_tp(resolved: ResolvedRecipe) -> str:
    """The largest smaller size that splits heads, keys and feed-forward layers evenly."""
    heads = gcd(*(_int(resolved, field) for field in resolved.model.heads_split))
    width = resolved.config.get("intermediate_size")
    fitting = [
        n
        for n in _divisors(heads)
        if n < resolved.recipe.parallel.tp
        and _keys_split(resolved, n)
        and (not isinstance(width, int) or width % n == 0)
    ]
    return f"parallel.tp={max(fitting, default=1)}"


def _keys_split(resolved: ResolvedRecipe, tp: int) -> bool:
    heads = resolved.config.get("num_key_value_heads")
    grouped = "full_attention" in {layer.kind for layer in resolved.model.layers}
    if not grouped or not isinstance(heads, int):
        return True
    return max(tp, heads) % min(tp, heads) == 0


def world_fits_nodes(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The axes multiply to no more dies than the nodes have."""
    parallel = resolved.recipe.parallel
    dies = resolved.hardware.dies_per_node * resolved.recipe.nodes
    if parallel.world_size > dies:
        from ascend_recipes.rendering.topology import fitting_nodes

        fitting = fitting_nodes(resolved.recipe, resolved.hardware.dies_per_node)
        yield finding(
            "parallel.world_exceeds_nodes",
            at="parallel.tp",
            fix=f"nodes={fitting}" if fitting else "",
            tp=parallel.tp,
            dp=parallel.dp,
            pp=parallel.pp,
            world=parallel.world_size,
            nodes=resolved.recipe.nodes,
            hardware=resolved.recipe.hardware,
            dies=dies,
        )


def cards_are_not_dies(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """As many dies as there are cards, where a card has two: half of the machine stays idle."""
    recipe, row = resolved.recipe, resolved.hardware
    world = recipe.parallel.world_size
    cards = row.cards_per_node * recipe.nodes
    spread = recipe.parallel.ep and recipe.parallel.tp * recipe.parallel.dp == world
    alone = "serve" in recipe.roles and not recipe.site.device_ids
    if row.dies_per_card > 1 and world == cards and spread and alone:
        yield finding(
            "hardware.card_die",
            at="parallel.tp",
            cards=cards,
            per_card=row.dies_per_card,
            dies=cards * row.dies_per_card,
            hardware=recipe.hardware,
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


def stages_hold_layers(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Every pipeline stage has a layer, and a listed partition is one."""
    parallel = resolved.recipe.parallel
    layers = _int(resolved, "num_hidden_layers")
    if parallel.pp > layers:
        yield finding(
            "parallel.too_many_stages",
            at="parallel.pp",
            fix=f"parallel.pp={layers}",
            pp=parallel.pp,
            layers=layers,
        )
    listed = parallel.pp_layers
    if listed and (len(listed) != parallel.pp or sum(listed) != layers):
        yield finding(
            "parallel.stage_layers",
            at="parallel.pp_layers",
            fix="parallel.pp_layers=[]",
            listed=listed,
            pp=parallel.pp,
            layers=layers,
        )


@holds("vllm_ascend")
def stages_are_tried(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Pipeline stages of attention over compressed context do not start on A5."""
    recipe = resolved.recipe
    compressed = "compressed_context" in resolved.model.traits
    if recipe.parallel.pp > 1 and compressed and recipe.hardware == "a5":
        yield finding("parallel.stages_a5", at="parallel.pp", pp=recipe.parallel.pp)


_OLD_SEQUENCE = Holding(("vllm_ascend",), until="main-2026-08")
"""From there on the old names are ignored (vllm_ascend/ascend_config.py:44-48 at 182b75ea)."""


@holds("vllm_ascend")
def sequence_parallel_has_ranks(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Sequence parallelism splits over tensor parallelism; experts must be spread."""
    recipe = resolved.recipe
    old = switched_on(
        key(resolved, "enable_flashcomm1"), variable(resolved, "VLLM_ASCEND_ENABLE_FLASHCOMM1")
    )
    old = old if _OLD_SEQUENCE.covers(resolved) else None
    other = switched_on(argument(resolved, "enable_sp")) or switched_on(
        argument(resolved, "compilation_config.pass_config.enable_sp")
    )
    at = "parallel.sequence" if recipe.parallel.sequence else ""
    at = at or next((item.at for item in (old, other) if item is not None), "")
    if not at:
        return
    if recipe.parallel.tp == 1:
        yield finding("parallel.sp_alone", at=at, fix=f"{at}={_off(at)}")
    elif "moe" in resolved.model.traits and not recipe.parallel.ep:
        yield finding("parallel.sp_experts", at=at, fix="parallel.ep=true")


@holds("vllm_ascend")
def prefill_context_is_whole(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Prefill context parallelism belongs to the second model runner."""
    size = argument(resolved, "prefill_context_parallel_size")
    second = switched_on(variable(resolved, "VLLM_USE_V2_MODEL_RUNNER"))
    if size is None or not isinstance(size.value, int) or size.value <= 1:
        return
    if second is None:
        yield finding("parallel.pcp", at=size.at, fix=f"{size.at}=1", size=size.value)
    elif resolved.recipe.parallel.dcp > 1:
        yield finding("parallel.pcp_dcp", at=size.at, fix=f"{size.at}=1")


def _off(path: str) -> str:
    return "0" if path.startswith("env.") else "false"


def _int(resolved: ResolvedRecipe, field: str) -> int:
    value = resolved.config[field]
    assert isinstance(value, int), f"{field} is {value!r}"
    return value


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
