"""`diff`: what two recipes plan differently."""

from dataclasses import dataclass

from ascend_recipes.planning.ledger import plan_leaves
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.plan import LaunchPlan

_ALWAYS_DIFFERENT = ("digest", "recipe")


@dataclass(frozen=True)
class Difference:
    """A value that stands in one plan only, or differs."""

    key: str
    left: Json
    right: Json
    in_left: bool = True
    in_right: bool = True

    def to_json(self) -> dict[str, Json]:
        """The object of the document; a side that lacks the value is left out."""
        tree: dict[str, Json] = {"key": self.key}
        if self.in_left:
            tree["left"] = self.left
        if self.in_right:
            tree["right"] = self.right
        return tree


def diff_plans(left: LaunchPlan, right: LaunchPlan) -> tuple[Difference, ...]:
    """Leaves that differ, in the order of the plan; names and digests are left out."""
    first, second = dict(plan_leaves(left)), dict(plan_leaves(right))
    return tuple(
        Difference(key, first.get(key), second.get(key), key in first, key in second)
        for key in sorted(first | second)
        if key not in _ALWAYS_DIFFERENT
        and ((key in first) != (key in second) or first.get(key) != second.get(key))
    )
