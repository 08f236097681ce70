"""Validate: types, ranges and unknown keys, all at once, each with the line that set it."""

import difflib
import json
import types
import typing
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ascend_recipes.compose import Composition
from ascend_recipes.errors import COMMAND_LINE, ExitCode, Finding, RecipeError
from ascend_recipes.findings import finding
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.complaints import complaint
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.schema.roles import role_recipe

UNSET = "???"


def validate_recipe(composition: Composition) -> Recipe:
    """Turn the merged tree into a frozen recipe.

    Raises:
        RecipeError: every missing, unknown or wrongly typed value of the tree.
    """
    tree = _drop_stale_fields(composition)
    unset = [path for path, value in _leaves(tree) if value == UNSET]
    if unset:
        findings = tuple(_missing(path, composition) for path in unset)
        raise RecipeError(findings, ExitCode.USAGE)
    try:
        # JSON, because strict Python input refuses a list for a tuple; "1" is still no number.
        recipe = Recipe.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        findings = tuple(_finding(item, composition) for item in error.errors())
        raise RecipeError(_without_echoes(findings), _exit_code(findings)) from None
    if findings := tuple(_role_findings(recipe, composition)):
        raise RecipeError(_without_echoes(findings), _exit_code(findings))
    return recipe


def _role_findings(recipe: Recipe, composition: Composition) -> Iterator[Finding]:
    """Mistakes in the overrides of roles, which are checked against the sections they change."""
    for role in sorted(set(recipe.roles) - {"serve"}):
        try:
            role_recipe(recipe, role)
        except ValidationError as error:
            for item in error.errors():
                found = _finding(item, composition)
                at = f"roles.{role}.{found.at}"
                fix = found.fix.replace(f"~{found.at}", f"~{at}")
                yield replace(found, at=at, fix=fix, source=composition.source(at))


def section_fields(section: str, kind: str) -> set[str] | None:
    """Fields of the variant of a discriminated section; none where `kind` is unknown."""
    for variant in _variants(Recipe.model_fields[section].annotation):
        if kind in typing.get_args(variant.model_fields["kind"].annotation):
            return set(variant.model_fields)
    return None


def section_models(section: str) -> tuple[type[BaseModel], ...]:
    """Every model that a section of the recipe may be."""
    return tuple(_variants(Recipe.model_fields[section].annotation))


def _drop_stale_fields(composition: Composition) -> dict[str, Json]:
    """Forget what files said about another kind, when the command line chose a new kind.

    `graph=none` must not fail because the recipe lists capture sizes for the kind it had.
    """
    tree = dict(composition.tree)
    for section, value in composition.tree.items():
        if not isinstance(value, dict) or "kind" not in value or section not in Recipe.model_fields:
            continue
        fields = section_fields(section, str(value["kind"]))
        if fields is not None:
            tree[section] = {
                key: item
                for key, item in value.items()
                if key in fields or not _known_elsewhere(section, key, composition)
            }
    return tree


def _known_elsewhere(section: str, key: str, composition: Composition) -> bool:
    source = composition.source(f"{section}.{key}")
    if source is None or source.origin == COMMAND_LINE:
        return False
    return any(
        key in variant.model_fields
        for variant in _variants(Recipe.model_fields[section].annotation)
    )


def _variants(annotation: Any) -> list[type[BaseModel]]:
    """The models that an annotation admits: itself, or the members of its union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        return [model for part in typing.get_args(annotation) for model in _variants(part)]
    return []


def _leaves(tree: Json, prefix: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, tree


def _missing(path: str, composition: Composition) -> Finding:
    return finding(
        "schema.missing",
        at=path,
        source=composition.source(path),
        fix=f"{path}=VALUE",
        path=path,
    )


def _finding(error: ErrorDetails, composition: Composition) -> Finding:
    path, owner = _config_path(error["loc"])
    dotted = ".".join(path)
    if error["type"] == "extra_forbidden":
        return _unknown(path, owner, composition)
    if error["type"] == "missing":
        return _missing(dotted, composition)
    return finding(
        "schema.value",
        at=dotted,
        source=composition.source(dotted),
        path=dotted or "recipe",
        said=complaint(error),
    )


def _unknown(
    path: tuple[str, ...], owner: tuple[type[BaseModel], ...], composition: Composition
) -> Finding:
    dotted = ".".join(path)
    known = sorted({name for model in owner for name in model.model_fields})
    close = difflib.get_close_matches(path[-1], known, n=1)
    where = ".".join(path[:-1]) or "recipe"
    suggestion = ".".join((*path[:-1], close[0])) if close else ""
    source = composition.source(dotted)
    typed = source is not None and source.origin == COMMAND_LINE
    return finding(
        "schema.unknown_key",
        at=dotted,
        source=source,
        # A field of another kind, as after `drafter=none`, has no other name: it goes.
        fix=None if suggestion else f"~{dotted}" if typed else "",
        suggestion=suggestion,
        path=dotted,
        section=where,
        known=known,
    )


def _config_path(
    loc: tuple[int | str, ...],
) -> tuple[tuple[str, ...], tuple[type[BaseModel], ...]]:
    """Strip union tags from a pydantic location; also the models that own the last key."""
    owners: tuple[type[BaseModel], ...] = (Recipe,)
    path: list[str] = []
    for part in loc:
        tagged = [model for model in owners if part in _kinds(model)]
        if tagged and len(owners) > 1:
            owners = tuple(tagged)
            continue
        path.append(str(part))
        fields = [model.model_fields[str(part)] for model in owners if part in model.model_fields]
        owners = tuple(m for field in fields for m in _variants(field.annotation)) or owners
    return tuple(path), owners


def _kinds(model: type[BaseModel]) -> tuple[str, ...]:
    field = model.model_fields.get("kind")
    return typing.get_args(field.annotation) if field else ()


def _without_echoes(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Keep one finding a path: union members may report the same mistake twice."""
    return tuple({(item.id, item.at): item for item in findings}.values())


def _exit_code(findings: tuple[Finding, ...]) -> ExitCode:
    usage = {"schema.unknown_key", "schema.missing"}
    only_usage = all(item.id in usage for item in findings)
    return ExitCode.USAGE if only_usage else ExitCode.FINDINGS
