"""Recognizes a model and its weights by the name under which a command loads them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ascend_recipes.registry.load import Registry
from ascend_recipes.schema.rows import CheckpointFacts, ModelRow

_OTHER = re.compile(r"[^a-z0-9]+")
_FORMATS = re.compile(r"w\d+a\d+|mxfp\d|fp8")


@dataclass(frozen=True)
class Weights:
    """A row and one of its checkpoints."""

    model: str
    variant: str
    exact: bool
    """Whether the name is the published one; else only the model's part of it is."""


def recognize_weights(name: str, registry: Registry) -> Weights | None:
    """The published weights that a path or hub id names; none where no row fits.

    The last part of the name decides. Where it only begins like a published name, the weight
    format in the rest chooses the checkpoint.
    """
    tail = _plain(name.rstrip("/").rpartition("/")[2])
    best: tuple[int, str, str] | None = None
    for model in registry.models:
        row = registry.models[model]
        for variant, published in _names(row):
            if _plain(published) == tail:
                return Weights(model, variant, exact=True)
            stem = _stem(published)
            if tail.startswith(stem) and (best is None or len(stem) > best[0]):
                best = (len(stem), model, variant)
    if best is None:
        return None
    _, model, variant = best
    fitting = _variant(registry.models[model], tail)
    return Weights(model, fitting or variant, exact=False)


def weights_of(model: str, name: str, registry: Registry) -> Weights:
    """Weights of a model that the user names; what the command loads tells the format.

    Raises:
        RecipeError: no such row (exit code 2).
    """
    row = registry.models[model]
    variant = _variant(row, _plain(name.rpartition("/")[2]))
    return Weights(model, variant or next(iter(row.checkpoints)), exact=False)


def folder_name(facts: CheckpointFacts, model: str) -> str:
    """Last part of the name under which weights are published."""
    return (facts.hub or facts.modelscope or model).rpartition("/")[2]


def _names(row: ModelRow) -> Iterator[tuple[str, str]]:
    for variant, facts in row.checkpoints.items():
        for published in (facts.hub, facts.modelscope):
            if published:
                yield variant, published.rpartition("/")[2]


def _variant(row: ModelRow, tail: str) -> str | None:
    """The checkpoint whose format the name tells; unquantized where it tells none."""
    told = "".join(_FORMATS.findall(tail))
    for variant, facts in row.checkpoints.items():
        if "".join(_FORMATS.findall(_plain(facts.format))) == told:
            return variant
    return None


def _stem(published: str) -> str:
    """The model's part of a published name: what stands before the weight format."""
    plain = _plain(published)
    found = _FORMATS.search(plain)
    return plain[: found.start()] if found else plain


def _plain(name: str) -> str:
    return _OTHER.sub("", name.lower())
