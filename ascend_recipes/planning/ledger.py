"""Collects planned values together with the reason for each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ascend_recipes.errors import Source
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.plan import LaunchPlan

DEFAULT = "schema default"
"""Source of a value that no file and no override sets; the schema states it."""


@dataclass(frozen=True)
class Reason:
    """Who set a planned value, and why."""

    source: str
    """File and line, `command line`, `schema default`, or a function of ours (`module:name`)."""
    because: str
    recipe_path: str = ""
    """Dotted path of the recipe value that it follows from; empty if from none."""

    def to_json(self) -> dict[str, str]:
        """The object in the reasons file."""
        return {"source": self.source, "because": self.because}


@dataclass
class Ledger:
    """The reasons for all parts of a plan, by the dotted path of the value."""

    resolved: ResolvedRecipe
    reasons: dict[str, Reason] = field(default_factory=dict)

    def from_recipe(self, key: str, recipe_path: str, because: str = "") -> None:
        """Record that a plan value follows from a recipe value."""
        source = self.resolved.source_of(recipe_path)
        self.reasons[key] = Reason(
            source=str(source or Source(origin=DEFAULT)),
            because=because or f"recipe {recipe_path}",
            recipe_path=recipe_path,
        )

    def from_row(self, key: str, table: str, row: str, because: str = "", at: str = "") -> None:
        """Record that a plan value is a fact of a registry row, at a dotted path in it."""
        tables = {item.name: item for item in self.resolved.registry.tables()}
        source = tables[table].source(row, *filter(None, at.split(".")))
        self.reasons[key] = Reason(source=str(source), because=because or f"{table} row {row}")

    def decided(self, key: str, rule: Callable[..., object], because: str) -> None:
        """Record that a function of ours decided."""
        source = f"{rule.__module__}:{rule.__name__}"
        self.reasons[key] = Reason(source=source, because=because)


@dataclass
class Section:
    """A mapping of the plan under construction, for example the engine arguments."""

    ledger: Ledger
    name: str
    values: dict[str, Json] = field(default_factory=dict)

    def recipe(self, key: str, value: Json, recipe_path: str, because: str = "") -> None:
        """Set a value that the recipe chose."""
        self.values[key] = value
        self.ledger.from_recipe(f"{self.name}.{key}", recipe_path, because)

    def decided(self, key: str, value: Json, because: str, rule: Callable[..., object]) -> None:
        """Set a value that follows from the design of the runtime."""
        self.values[key] = value
        self.ledger.decided(f"{self.name}.{key}", rule, because)

    def row(self, key: str, value: Json, table: str, row: str, because: str = "") -> None:
        """Set a value that a registry row states under the same name."""
        self.values[key] = value
        self.ledger.from_row(f"{self.name}.{key}", table, row, because, at=key)


def plan_leaves(plan: LaunchPlan) -> Iterator[tuple[str, Json]]:
    """Dotted path and value of every leaf; parts of a list go by their name, axis or position."""
    yield from _leaves(plan.model_dump(mode="json"), "")


def reason_of(reasons: dict[str, Reason], path: str) -> Reason | None:
    """The reason for a leaf: its own, or that of the closest part around it."""
    while path:
        if path in reasons:
            return reasons[path]
        path = path.rpartition(".")[0]
    return None


def _leaves(tree: Json, path: str) -> Iterator[tuple[str, Json]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif path == "hooks" and isinstance(tree, list):
        yield from ((f"{path}.{name}", name) for name in tree)
    elif isinstance(tree, list) and any(isinstance(item, dict) for item in tree):
        for index, item in enumerate(tree):
            named = item.get("axis") or item.get("name") if isinstance(item, dict) else None
            yield from _leaves(item, f"{path}.{named or index}")
    else:
        yield path, tree
