"""Rules about what the chosen version of vllm-ascend can be told.

Rendering is imported inside: the native runtime has no use for it.
"""

import json
from collections.abc import Iterator
from functools import cache

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import holds

_FIRST_DSPARK, _FIRST_DSPARK_A5 = "0.26.0rc1", "main-2026-08"


@holds("vllm_ascend")
def version_offers_choices(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Every choice that some version can be told can be told to this one."""
    from ascend_recipes.rendering.render import field_value

    versions, here = resolved.runtime.versions, resolved.runtime_version
    if here not in versions:
        return
    for path, others in _only_in_others(here, tuple(versions)).items():
        found = field_value(resolved.recipe, path)
        if found is not None and found.changed:
            yield finding(
                "version.not_offered",
                at=path,
                fix=f"runtime.version={others[-1]}",
                version=here,
                path=path,
                value=str(found.value).lower(),
                others=", ".join(others),
            )


@cache
def _only_in_others(here: str, versions: tuple[str, ...]) -> dict[str, list[str]]:
    """Fields that a version has no argument for -> versions that have one."""
    from ascend_recipes.rendering.table import ROWS

    found = {}
    for path in dict.fromkeys(row.path for row in ROWS):
        rows = [row for row in ROWS if row.path == path and not row.trait]
        if rows and not any(row.serves(here, versions) for row in rows):
            found[path] = [
                name for name in versions if any(row.serves(name, versions) for row in rows)
            ]
    return found


@holds("vllm_ascend", until=_FIRST_DSPARK)
def version_has_drafter(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """DSpark drafting came with vLLM 0.26."""
    if resolved.recipe.drafter.kind == "dspark":
        first = _FIRST_DSPARK_A5 if _drafts_blocks_on_a5(resolved) else _FIRST_DSPARK
        yield finding(
            "version.drafter",
            at="drafter.kind",
            fix=f"runtime.version={first}",
            vllm=resolved.runtime.vllm[resolved.runtime_version],
            version=resolved.runtime_version,
            kind="dspark",
        )


@holds("vllm_ascend", since=_FIRST_DSPARK, until=_FIRST_DSPARK_A5)
def version_has_drafter_on_hardware(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A5's operator over packed keys could not be told which keys a block of drafts sees."""
    if _drafts_blocks_on_a5(resolved):
        yield finding(
            "version.drafter_hardware",
            at="drafter.kind",
            fix=f"runtime.version={_FIRST_DSPARK_A5}",
            version=resolved.runtime_version,
            kind="dspark",
            hardware=resolved.recipe.hardware,
        )


def _drafts_blocks_on_a5(resolved: ResolvedRecipe) -> bool:
    recipe = resolved.recipe
    packed_keys = recipe.hardware == "a5" and "compressed_context" in resolved.model.traits
    return packed_keys and recipe.drafter.kind == "dspark"


@holds("vllm_ascend")
def arguments_are_stated_once(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Arguments without a field do not speak against fields."""
    from ascend_recipes.rendering.render import clashes, misplaced, secret_arguments

    if resolved.runtime_version not in resolved.runtime.versions:
        return
    clashing = clashes(resolved)
    for path, place, value in misplaced(resolved):
        if not any(
            path == clash.second or path.startswith(f"{clash.second}.") for clash in clashing
        ):
            shown = json.dumps(value)
            yield finding(
                "rendering.has_field",
                at=path,
                fix=f"~{path} {place}={shown}",
                path=path,
                place=place,
            )
    for clash in clashing:
        mine, other = clash.values
        yield finding(
            "rendering.stated_twice",
            at=clash.second,
            fix=f"~{clash.second}",
            first=clash.first,
            second=clash.second,
            target=clash.target.removeprefix("$"),
            mine=str(mine),
            other=str(other),
        )
    for path in secret_arguments(resolved.recipe):
        yield finding("rendering.secret", at=path, fix=f"~{path}", path=path)


@holds("vllm_ascend")
def replicas_spread_over_nodes(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Every node gets the same number of replicas, or all share one."""
    from ascend_recipes.rendering.topology import fitting_nodes, shares_evenly, spreads_evenly

    recipe = resolved.recipe
    fitting = fitting_nodes(recipe, resolved.hardware.dies_per_node)
    fix = f"nodes={fitting}" if fitting else ""
    if not shares_evenly(recipe):
        world = recipe.parallel.world_size
        yield finding("rendering.nodes_share", at="nodes", fix=fix, world=world, nodes=recipe.nodes)
    if not spreads_evenly(recipe):
        dp = recipe.parallel.dp
        yield finding("rendering.nodes_uneven", at="nodes", fix=fix, dp=dp, nodes=recipe.nodes)
