"""Collects planned values together with the reason for each."""

from dataclasses import dataclass, field

from ascend_recipes.errors import Source
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.base import Json


@dataclass(frozen=True)
class Reason:
    """Who set a planned value, and why."""

    source: str
    """File and line, `command line`, `schema default`, or the name of a rule of ours."""
    because: str

    def to_json(self) -> dict[str, str]:
        """The object in the reasons file."""
        return {"source": self.source, "because": self.because}


@dataclass
class Ledger:
    """Values of one part of the plan, and the reasons of all parts."""

    resolved: ResolvedRecipe
    reasons: dict[str, Reason] = field(default_factory=dict)

    def from_recipe(self, key: str, recipe_path: str, because: str = "") -> None:
        """Record that a plan value follows from a recipe value."""
        source = self.resolved.source_of(recipe_path)
        self.reasons[key] = Reason(
            source=str(source or Source(origin="schema default")),
            because=because or f"recipe {recipe_path}",
        )

    def from_row(self, key: str, table: str, row: str, because: str = "") -> None:
        """Record that a plan value is a fact of a registry row."""
        tables = {item.name: item for item in self.resolved.registry.tables()}
        source = tables[table].source(row)
        self.reasons[key] = Reason(source=str(source), because=because or f"{table} row {row}")

    def decided(self, key: str, rule: str, because: str) -> None:
        """Record that our mechanism decided."""
        self.reasons[key] = Reason(source=rule, because=because)


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

    def decided(self, key: str, value: Json, because: str) -> None:
        """Set a value that follows from the design of the runtime."""
        self.values[key] = value
        self.ledger.decided(f"{self.name}.{key}", f"plan.{self.name}", because)

    def row(self, key: str, value: Json, table: str, row: str, because: str = "") -> None:
        """Set a value that a registry row states."""
        self.values[key] = value
        self.ledger.from_row(f"{self.name}.{key}", table, row, because)
