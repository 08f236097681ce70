"""`explain`: where every value of a plan or recipe comes from, and why it is what it is."""

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from pydantic import BaseModel

from ascend_recipes.compose import Composition
from ascend_recipes.errors import ExitCode, RecipeError, Source
from ascend_recipes.findings import recipe_error
from ascend_recipes.paths import display_path
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.planning.ledger import Reason, plan_leaves, reason_of
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.documentation import field_text
from ascend_recipes.schema.recipe import Recipe

PLAN = "plan"
RECIPE = "recipe"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One value and its history."""

    key: str
    """Dotted path of the value."""
    part: str
    """Whether the path is one of the plan or of the recipe."""
    value: Json
    layers: tuple[str, ...]
    """Who set it, the winner last: lines of schema, presets and recipe, the command line."""
    because: str
    follows: tuple[str, ...] = ()
    """Plan values that follow from a recipe value."""
    renders: tuple[str, ...] = ()
    """Arguments of rendered commands that a recipe value gives."""
    processes: tuple[str, ...] = ()
    """Processes whose command says it; empty for all."""

    def to_json(self) -> dict[str, Json]:
        """The object of the document."""
        return {
            "key": self.key,
            "part": self.part,
            "value": self.value,
            "layers": list(self.layers),
            "because": self.because,
            "follows": list(self.follows),
            "renders": list(self.renders),
            "processes": list(self.processes),
        }


def explain(
    composition: Composition, planned: PlannedLaunch, key: str = ""
) -> tuple[Explanation, ...]:
    """Explain what a key names in the plan or in the recipe; every leaf of the plan without one.

    A key that names nothing by itself may be the end of paths: `max_num_seqs`, `compressor`.

    Raises:
        RecipeError: neither the plan nor the recipe has the key (exit code 2).
    """
    leaves = tuple(_plan_values(composition, planned))
    if not key:
        return leaves
    for names in (_names, _ends):
        found = tuple(item for item in leaves if names(key, item.key))
        found += tuple(_recipe_values(composition, planned, partial(names, key)))
        if found:
            return found
    raise _unknown(key, [item.key for item in leaves], composition.name)


def _plan_values(composition: Composition, planned: PlannedLaunch) -> Iterator[Explanation]:
    recipe = planned.resolved.recipe
    for path, value in plan_leaves(planned.plan):
        reason = reason_of(planned.reasons, path)
        assert reason is not None, f"{path} has no reason"
        layers = _layers(composition, recipe, reason)
        yield Explanation(key=path, part=PLAN, value=value, layers=layers, because=reason.because)


def _layers(composition: Composition, recipe: Recipe, reason: Reason) -> tuple[str, ...]:
    if not reason.recipe_path:
        return (reason.source,)
    set_by = composition.provenance.get(reason.recipe_path, ())
    return (str(schema_source(reason.recipe_path, recipe)), *map(str, set_by))


def _recipe_values(
    composition: Composition, planned: PlannedLaunch, is_meant: Callable[[str], bool]
) -> Iterator[Explanation]:
    recipe = planned.resolved.recipe
    for path, value in _flat(recipe.model_dump(mode="json"), ""):
        if not is_meant(path):
            continue
        follows = tuple(
            leaf for leaf, reason in planned.reasons.items() if reason.recipe_path == path
        )
        set_by = composition.provenance.get(path, ())
        yield Explanation(
            key=path,
            part=RECIPE,
            value=value,
            layers=(str(schema_source(path, recipe)), *map(str, set_by)),
            because=schema_text(path, recipe),
            follows=follows,
        )


def schema_source(path: str, recipe: Recipe) -> Source:
    """File and line of the schema field that states the default of a recipe path."""
    owner, name = _field(path, recipe)
    file, lines = _field_lines(owner)
    return Source(origin=display_path(file), line=lines[name])


def schema_text(path: str, recipe: Recipe) -> str:
    """What the schema says that a recipe path means."""
    owner, name = _field(path, recipe)
    return field_text(owner, name) or (owner.__doc__ or "").strip()


def _field(path: str, recipe: Recipe) -> tuple[type[BaseModel], str]:
    """Deepest schema field on the way to a path."""
    value: object = recipe
    owner: type[BaseModel] = type(recipe)
    name = "about"
    for part in path.split("."):
        if isinstance(value, BaseModel) and part in type(value).model_fields:
            owner, name = type(value), part
            value = dict(value)[part]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            break
    return owner, name


@cache
def _field_lines(model: type[BaseModel]) -> tuple[Path, dict[str, int]]:
    """Lines of a model's fields; the file is that of the class, or of the one it inherits from."""
    lines: dict[str, int] = {}
    file = Path(inspect.getfile(model))
    for ancestor in reversed(model.__mro__):
        if not issubclass(ancestor, BaseModel) or ancestor is BaseModel:
            continue
        source = Path(inspect.getfile(ancestor))
        if source == file:
            lines |= _class_lines(source, ancestor.__name__)
    return file, lines


def _class_lines(file: Path, name: str) -> dict[str, int]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {
                item.target.id: item.lineno
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
    return {}


def _names(key: str, path: str) -> bool:
    return path == key or path.startswith(f"{key}.")


def _ends(key: str, path: str) -> bool:
    return path.endswith(f".{key}") or f".{key}." in path


def _flat(tree: Json, path: str) -> Iterator[tuple[str, Json]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _flat(value, f"{path}.{key}" if path else key)
    else:
        yield path, tree


def _unknown(key: str, known: list[str], recipe: str) -> RecipeError:
    import difflib

    ends = {path.rpartition(".")[2]: path for path in known}
    close = difflib.get_close_matches(key, known, n=1) or [
        ends[name]
        for name in difflib.get_close_matches(key.rpartition(".")[2], ends, n=1, cutoff=0.7)
    ]
    return recipe_error(
        "explain.unknown_key",
        at=key,
        fix=" ".join(["ascend-run explain", *close, f"recipe={recipe}"]),
        exit_code=ExitCode.USAGE,
        key=key,
    )
