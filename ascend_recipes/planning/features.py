"""Choices of the recipe that run-time code reads and no other part of the plan says."""

from collections.abc import Iterator

from ascend_recipes.planning.ledger import Ledger
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.base import Json, Spec

_SAID_ELSEWHERE = frozenset(
    {
        "attention.kind",
        "cache.block_size",
        "cache.kind",
        "cache.kv_dtype",
        "cache.memory_bytes",
        "cache.memory_fraction",
        "cache.prefix_caching",
        "cache.state_dtype",
        "cache.state_mode",
        "graph.capture_sizes",
        "graph.kind",
        "parallel.dp",
        "parallel.ep",
        "parallel.pp",
        "parallel.tp",
        "quant.kind",
        "scheduler.async_scheduling",
        "scheduler.max_model_len",
        "scheduler.max_num_batched_tokens",
        "scheduler.max_num_seqs",
    }
)


_NATIVE = frozenset(
    {
        "cache.precision",
        "cache.retention_interval_tokens",
        "parallel.dcp",
        "parallel.dcp_interleave_tokens",
    }
)
_NATIVE_SECTIONS = ("graph", "quant", "scheduler")
"""What the native runtime performs, or hands to vLLM."""


def plan_features(resolved: ResolvedRecipe, ledger: Ledger) -> dict[str, Json]:
    """Values that differ from the schema's, by their recipe path; idle ones say so."""
    features = dict(sorted(_features(resolved)))
    native = resolved.recipe.runtime.kind == "native"
    for path in features:
        performed = path in _NATIVE or path.startswith(_NATIVE_SECTIONS)
        idle = native and not performed
        ledger.from_recipe(f"features.{path}", path, _IDLE if idle else "")
    return features


_IDLE = "idle: the native runtime does not perform this choice"


def _features(resolved: ResolvedRecipe) -> Iterator[tuple[str, Json]]:
    recipe = resolved.recipe
    sections: dict[str, Spec] = {
        "attention": recipe.attention,
        "cache": recipe.cache,
        "graph": recipe.graph,
        "moe": recipe.moe,
        "parallel": recipe.parallel,
        "quant": recipe.quant,
        "scheduler": recipe.scheduler,
    }
    for name, spec in sections.items():
        values: dict[str, Json] = spec.model_dump(mode="json", exclude_defaults=True)
        for key, value in values.items():
            if f"{name}.{key}" not in _SAID_ELSEWHERE:
                yield f"{name}.{key}", value
