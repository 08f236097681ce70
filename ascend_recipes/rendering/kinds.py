"""Which fields the sections of an imported recipe have, by their kinds."""

from collections.abc import Mapping
from functools import cache
from typing import get_args

from pydantic import BaseModel

from ascend_recipes.registry.load import load_registry
from ascend_recipes.rendering.table import Row, rows_by_target
from ascend_recipes.schema.attention import AttentionSpec
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.cache import CacheSpec
from ascend_recipes.schema.drafter import DrafterSpec
from ascend_recipes.schema.graph import GraphSpec
from ascend_recipes.schema.quant import AnyQuantSpec
from ascend_recipes.schema.recipe import Recipe

CACHES: Mapping[str, str] = {
    "full": "paged",
    "hybrid": "hybrid",
    "mla": "paged",
    "sfa": "paged",
    "dsa": "heterogeneous",
}
"""Kind of attention -> kind of cache that goes with it."""

_UNIONS = {
    "attention": AttentionSpec,
    "cache": CacheSpec,
    "drafter": DrafterSpec,
    "graph": GraphSpec,
    "quant": AnyQuantSpec,
}


def has_field(path: str, overrides: Mapping[str, Json]) -> bool:
    """Whether the section has the field under the kind that was chosen for it.

    A graph section whose kind is not known yet is taken to have graphs.
    """
    section, _, name = path.partition(".")
    if section not in _UNIONS or name == "kind":
        return True
    kind = overrides.get(f"{section}.kind", "full_decode" if section == "graph" else None)
    return kind in _owners(section, name)


def rows_for(target: str, version: str) -> tuple[Row, ...]:
    """Rows that read a target in a version."""
    versions = load_registry().runtimes["vllm_ascend"].versions
    return tuple(row for row in rows_by_target().get(target, ()) if row.serves(version, versions))


@cache
def _owners(section: str, name: str) -> frozenset[Json]:
    """Kinds of a section that have a field."""
    union = get_args(_UNIONS[section])[0]
    kinds: set[Json] = set()
    for model in get_args(union) or (union,):
        assert issubclass(model, BaseModel)
        if name in model.model_fields:
            kinds.update(get_args(model.model_fields["kind"].annotation))
    return frozenset(kinds)


def section_default(section: str, kind: Json, name: str) -> Json:
    """The schema's value of a field of a section; none where the recipe must state it."""
    for model in _models(section):
        field = model.model_fields.get(name)
        if field is None or not _is_kind(model, kind):
            continue
        if field.is_required():
            return None
        value = field.get_default(call_default_factory=True)
        plain: Json = list(value) if isinstance(value, tuple) else value
        return plain
    return None


def _models(section: str) -> tuple[type[BaseModel], ...]:
    if section in _UNIONS:
        union = get_args(_UNIONS[section])[0]
        return get_args(union) or (union,)
    owner = Recipe.model_fields[section].annotation
    assert isinstance(owner, type)
    assert issubclass(owner, BaseModel)
    return (owner,)


def _is_kind(model: type[BaseModel], kind: Json) -> bool:
    field = model.model_fields.get("kind")
    return field is None or kind in get_args(field.annotation)
