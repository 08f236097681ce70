"""Renders a resolved recipe as the processes of an installed vllm-ascend."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass

from pydantic import BaseModel

from ascend_recipes.rendering.arguments import Arguments, Clash
from ascend_recipes.rendering.command import RenderedCommand
from ascend_recipes.rendering.derived import is_stock_ladder, put_derived
from ascend_recipes.rendering.kinds import rows_for
from ascend_recipes.rendering.table import ADDITIONAL, ROWS, Row
from ascend_recipes.rendering.topology import (
    Process,
    lay_out,
    put_endpoint,
    put_network,
    put_topology,
)
from ascend_recipes.rendering.transfer import put_transfer
from ascend_recipes.resolve import ResolvedRecipe, role_views
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.schema.serving import RoleName

_SECRET_FLAGS = ("api_key", "hf_token")
"""Engine and server arguments that hold secrets; they are never rendered."""


def render_commands(resolved: ResolvedRecipe) -> tuple[RenderedCommand, ...]:
    """Every process of the deployment: prefill before decode, machine by machine.

    The result is complete words for `subprocess` or a shell; addresses that the site does not give
    stand as `NODE_0_ADDRESS` and `NETWORK_INTERFACE`.
    """
    views = views_of(resolved)
    shared = {role: role_arguments(view, role) for role, view in views.items()}
    deployment = lay_out(resolved.recipe, views)
    return tuple(
        _command(views, process, deepcopy(shared[process.role]), deployment.machines)
        for process in deployment.processes
    )


def views_of(resolved: ResolvedRecipe) -> dict[RoleName, ResolvedRecipe]:
    """The recipe as each role sees it."""
    return {"serve": resolved} if "serve" in resolved.recipe.roles else role_views(resolved)


def role_arguments(view: ResolvedRecipe, role: RoleName | None = None) -> Arguments:
    """Arguments that all processes of a role share, before topology and transfer.

    With a role, reasons name its own overrides where it has some.
    """
    arguments = Arguments()
    for name, variable in sorted(view.recipe.env.items()):
        arguments.put(f"${name}", variable, _place(view.recipe, role, f"env.{name}"))
    for row, value in spoken(view):
        if row.target.removeprefix("$") not in view.recipe.env:
            arguments.put(row.target, value, _place(view.recipe, role, row.path))
    for name, value in view.recipe.extra_args.items():
        if name not in _SECRET_FLAGS:
            flag = "--" + name.replace("_", "-")
            arguments.put(flag, value, f"extra_args.{name}")
    for name, value in view.recipe.runtime.additional_config.items():
        arguments.put(f"{ADDITIONAL}.{name}", value, f"runtime.additional_config.{name}")
    put_derived(arguments, view)
    return arguments


def spoken(view: ResolvedRecipe) -> Iterator[tuple[Row, Json]]:
    """Rows of the version that have something to say, with the encoded value."""
    versions = view.runtime.versions
    for row in ROWS:
        if not row.serves(view.runtime_version, versions):
            continue
        if row.trait and row.trait not in view.traits:
            continue
        found = field_value(view.recipe, row.path)
        if found is None or (row.emit == "changed" and not found.changed):
            continue
        if row.path == "graph.capture_sizes" and is_stock_ladder(view):
            continue
        if (argument := row.codec.encode(found.value)) is not None:
            yield row, argument


@dataclass(frozen=True)
class FieldValue:
    """A value of the recipe, and whether it differs from what the schema says by itself."""

    value: Json
    changed: bool


def field_value(recipe: Recipe, path: str) -> FieldValue | None:
    """The value at a path; none where the section's kind has no such field."""
    owner: BaseModel = recipe
    *sections, name = path.split(".")
    for section in sections:
        owner = getattr(owner, section)
    if name not in type(owner).model_fields:
        return None
    value = getattr(owner, name)
    field = type(owner).model_fields[name]
    default = field.get_default(call_default_factory=True)
    plain: Json = list(value) if isinstance(value, tuple) else value
    return FieldValue(plain, changed=field.is_required() or value != default)


def clashes(resolved: ResolvedRecipe) -> tuple[Clash, ...]:
    """What two parts of the recipe say differently, of a role's own view."""
    return tuple(role_arguments(resolved).clashes)


def misplaced(view: ResolvedRecipe) -> Iterator[tuple[str, str, Json]]:
    """Path of an argument without a field, path of the field that it has after all, and value."""
    places: list[tuple[str, str, Json]] = [
        (ADDITIONAL, "runtime.additional_config", dict(view.recipe.runtime.additional_config))
    ]
    for name, value in view.recipe.extra_args.items():
        flag = "--" + name.replace("_", "-")
        places.append((flag, f"extra_args.{name}", value))
    for target, path, tree in places:
        yield from _misplaced(view, target, path, tree)


def _misplaced(
    view: ResolvedRecipe, target: str, path: str, value: Json
) -> Iterator[tuple[str, str, Json]]:
    for row in rows_for(target, view.runtime_version):
        if field_value(view.recipe, row.path) is not None:
            with suppress(ValueError):
                if (decoded := row.codec.decode(value)) is not None:
                    yield path, row.path, decoded
                    return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _misplaced(view, f"{target}.{key}", f"{path}.{key}", item)


def secret_arguments(recipe: Recipe) -> tuple[str, ...]:
    """Paths of engine arguments that hold secrets."""
    return tuple(f"extra_args.{name}" for name in recipe.extra_args if name in _SECRET_FLAGS)


def _place(recipe: Recipe, role: RoleName | None, path: str) -> str:
    """Path that sets the value: the role's own where it overrides the field."""
    if role is None:
        return path
    section, _, name = path.partition(".")
    spec = recipe.roles[role]
    own: Mapping[str, object] = spec.env if section == "env" else spec.sections.get(section, {})
    return f"roles.{role}.{path}" if name in own else path


def _command(
    views: Mapping[RoleName, ResolvedRecipe],
    process: Process,
    arguments: Arguments,
    machines: int,
) -> RenderedCommand:
    view = views[process.role]
    port = put_endpoint(arguments, view.recipe, process, machines)
    put_topology(arguments, view.recipe, process)
    put_transfer(arguments, views, process)
    put_network(arguments, view.recipe, process, machines)
    model = str(arguments.flags.pop("MODEL"))
    return RenderedCommand(
        role=process.role,
        node=process.node,
        rank=process.rank,
        instance=process.instance,
        argv=("vllm", "serve", model, *arguments.words()),
        env=dict(arguments.variables),
        port=port,
        reasons=dict(arguments.reasons),
    )
