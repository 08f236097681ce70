"""Commands as flat tables of arguments, and one spelling for each argument of a version."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from ascend_recipes.rendering.kinds import rows_for
from ascend_recipes.rendering.render import field_value
from ascend_recipes.rendering.words import plain_value, read_words
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.base import Json


def flat_arguments(argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Json]:
    """Every flag, every leaf of a JSON flag and every variable (`$NAME`) of a command."""
    found: dict[str, Json] = {}
    for flag, value in read_words(argv).flags.items():
        found.update(_leaves(flag, plain_value(value)))
    return found | {f"${name}": value for name, value in env.items()}


def _leaves(name: str, value: Json) -> Iterator[tuple[str, Json]]:
    """Objects key by key, also those in lists; other lists are one value."""
    inside: Iterator[tuple[str, Json]] | None = None
    if isinstance(value, dict) and value:
        inside = iter(value.items())
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        inside = ((str(number), item) for number, item in enumerate(value))
    if inside is None:
        yield name, value
        return
    for key, item in inside:
        yield from _leaves(f"{name}.{key}", item)


def one_spelling(arguments: Mapping[str, Json], view: ResolvedRecipe) -> dict[str, Json]:
    """The arguments where the version reads them first, with values as rendering writes them.

    A variable whose key has taken over, or a method named after a model, says the same as the key
    or the plain name; what has no field stays as it is.
    """
    found: dict[str, Json] = {}
    for name, value in arguments.items():
        target, written = _spelling(name, value, view)
        if target != name and target in arguments:
            if same_value(written, arguments[target]):
                continue
            target, written = name, value
        found[target] = written
    return found


def _spelling(name: str, value: Json, view: ResolvedRecipe) -> tuple[str, Json]:
    for row in rows_for(name, view.runtime_version):
        if row.trait and row.trait not in view.traits:
            continue
        if field_value(view.recipe, row.path) is None:
            continue
        with suppress(ValueError):
            decoded = row.codec.decode(plain_value(value))
            if decoded is not None and (written := row.codec.encode(decoded)) is not None:
                return row.target, written
    return name, value


def same_value(one: Json, other: Json) -> bool:
    """Whether two values are read as the same: `1`, `"1"` and `1.0`, `true` and `"True"`."""
    return value_text(one) == value_text(other)


def value_text(value: Json) -> str:
    """A value in one writing, whatever its quotes."""
    plain = plain_value(value)
    if isinstance(plain, str) and plain.lower() in ("true", "false"):
        plain = plain.lower() == "true"
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
