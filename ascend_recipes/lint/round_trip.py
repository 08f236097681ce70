"""Whether a command survives import and rendering: what differs, each with its reason."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from ascend_recipes.errors import Finding, RecipeError
from ascend_recipes.lint.arguments import Arguments, leaves
from ascend_recipes.lint.command import ServeCommand
from ascend_recipes.lint.recipe_rules import known_part, possible_models
from ascend_recipes.lint.stand_ins import registry_with_stand_ins
from ascend_recipes.registry.load import Registry
from ascend_recipes.rendering.codecs import count
from ascend_recipes.rendering.command import RenderedCommand
from ascend_recipes.rendering.derived import SPARSE_CACHE, is_stock_ladder
from ascend_recipes.rendering.imported import ImportedCommand
from ascend_recipes.rendering.importing import import_command
from ascend_recipes.rendering.kinds import rows_for
from ascend_recipes.rendering.recipe_tree import recipe_tree
from ascend_recipes.rendering.render import field_value, render_commands
from ascend_recipes.rendering.words import plain_value, read_words
from ascend_recipes.resolve import ResolvedRecipe, look_up
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.schema.roles import role_recipe
from ascend_recipes.surface.load import load_surface

_ADDITIONAL = "--additional-config."
_LAUNCHER = (
    *("--host", "--port", "--headless", "--nnodes", "--node-rank", "--master-addr"),
    *("--master-port", "--data-parallel-", "--kv-transfer-config"),
)
"""Beginnings of arguments that follow from where a process runs; the launcher numbers them."""
_FROM_ROWS = ("--quantization", "--tokenizer-mode", "--tool-call-parser", "--reasoning-parser")
_STATED = ("--enable-auto-tool-choice", "--trust-remote-code", "--speculative-config.method")
"""Arguments that a model's row or another argument decides."""


_SITE = frozenset(
    {
        *("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "HCCL_IF_IP"),
        *("ASCEND_RT_VISIBLE_DEVICES", "VLLM_HOST_IP"),
    }
)
"""Variables whose values a site gives."""


@dataclass(frozen=True)
class Difference:
    """An argument that import and rendering change or lose."""

    name: str
    given: str
    rendered: str | None
    reason: str
    """Why; empty where nothing explains it."""


def differences(
    command: ServeCommand, arguments: Arguments, version: str
) -> list[Difference] | None:
    """Import and render a command; none where no complete recipe comes of it.

    What rendering adds is not reported: it writes defaults out, and says where each comes from.
    """
    registry = registry_with_stand_ins()
    reading = known_part(command, arguments)
    imported = import_command(reading.argv, reading.env, version=version, registry=registry)
    # The last stand-in has every part that a model may have, so that every argument has a place.
    possible = (possible_models(imported) or [imported])[-1]
    recipe = _recipe(possible, version, registry)
    if recipe is None:
        return None
    rendered = _rendered(recipe, possible, registry)
    given, kept = _flat(reading.argv, reading.env), _flat(rendered.argv, rendered.env)
    own = recipe if imported.role == "serve" else role_recipe(recipe, imported.role)
    view = look_up(own, registry, lambda _: None)
    explain = _Explanation(imported, recipe, view, version)
    return [
        Difference(name, value, kept.get(name), explain.reason(name, value))
        for name, value in given.items()
        if kept.get(name) != value
    ]


def _recipe(imported: ImportedCommand, version: str, registry: Registry) -> Recipe | None:
    try:
        made = recipe_tree([imported], hardware="a3", version=version, registry=registry)
        return Recipe.model_validate_json(json.dumps(made.tree))
    except (ValidationError, RecipeError):
        return None


def _rendered(recipe: Recipe, imported: ImportedCommand, registry: Registry) -> RenderedCommand:
    commands = render_commands(look_up(recipe, registry, lambda _: None))
    return next(item for item in commands if item.role == imported.role)


def _flat(argv: tuple[str, ...], env: Mapping[str, str]) -> dict[str, str]:
    """Arguments and variables by name, keys of JSON one by one."""
    flat = {f"${name}": _text(value) for name, value in env.items()}
    for flag, value in read_words(argv).flags.items():
        if not isinstance(value, dict):
            flat[flag] = _text(value)
            continue
        for path, item in leaves(value):
            if not isinstance(item, dict) or not item:
                flat[f"{flag}.{'.'.join(path)}"] = _text(item)
    return flat


def _text(value: Json) -> str:
    """The same for `1`, `"1"` and `1.0`, and for both ways to write a truth value."""
    plain = plain_value(value)
    with suppress(ValueError):
        plain = count(plain)
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    return json.dumps(plain, sort_keys=True).strip('"').lower()


@dataclass(frozen=True)
class _Explanation:
    imported: ImportedCommand
    recipe: Recipe
    view: ResolvedRecipe
    """The recipe as the command's role sees it."""
    version: str

    def reason(self, name: str, value: str) -> str:
        """Why an argument is not as it was given; empty if nothing explains it."""
        return next(self._reasons(name, value), "")

    def _reasons(self, name: str, value: str) -> Iterator[str]:
        for item in self.imported.unmapped:
            if name.startswith(item.target) and item.target:
                yield item.reason
        surface = load_surface(self.version)
        if name.startswith("$"):
            finding = surface.judge_variable(name.removeprefix("$"))
        elif name.startswith(_ADDITIONAL):
            finding = self._key_finding(name.removeprefix(_ADDITIONAL), plain_value(value))
        else:
            finding = surface.judge_flag(name)
        if finding is not None:
            yield finding.id
        if name.startswith(_LAUNCHER) or name.removeprefix("$") in _SITE:
            yield "the launcher numbers it"
        if name.startswith((*_FROM_ROWS, *_STATED)):
            yield "the model's row says it"
        if "model" not in self.imported.overrides and name.startswith("--speculative-config"):
            yield "the model is unknown: a stand-in drafts in its place"
        yield from self._field_reasons(name)

    def _key_finding(self, key: str, value: Json) -> Finding | None:
        """A finding about a key with its value, or about a block around it."""
        surface = load_surface(self.version)
        parts = key.split(".")
        around = (surface.judge_key(".".join(parts[:end])) for end in range(1, len(parts)))
        blocks = [item for item in around if item is not None]
        return blocks[0] if blocks else surface.judge_key(key, value)

    def _field_reasons(self, name: str) -> Iterator[str]:
        """A field that has its default is not written; one of another kind does not exist."""
        if name == SPARSE_CACHE and getattr(self.view.recipe.cache, "kv_dtype", "model") == "model":
            yield "cache.kv_dtype has its default"
        for row in rows_for(name, self.version):
            found = field_value(self.recipe, row.path)
            if row.path == "graph.capture_sizes" and is_stock_ladder(self.view):
                yield "the runtime takes these sizes by itself"
            elif found is None:
                yield f"{row.path} does not go with the kinds of the recipe"
            elif not found.changed:
                yield f"{row.path} has its default"
            elif row.target != name:
                yield f"{row.path} is written as {row.target}"
