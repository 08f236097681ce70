"""Which patch rows a plan needs; rows that it does not need are never loaded into a process."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ascend_recipes.schema.patch import PatchNeeds, PatchRow


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """What a plan has, by the names that rows ask for."""

    traits: frozenset[str]
    backends: frozenset[str]
    hardware: str
    drafter: str
    roles: frozenset[str]


def needed_patches(rows: Mapping[str, PatchRow], facts: PlanFacts) -> dict[str, str]:
    """Keys of the rows that the plan needs, each with the reason.

    Args:
        rows: Every patch row.
        facts: What the plan has.
    """
    reasons = {key: _reason(row.needs, facts) for key, row in rows.items()}
    return {key: f"{reason}: {rows[key].because}" for key, reason in reasons.items() if reason}


def _reason(needs: PatchNeeds, facts: PlanFacts) -> str:
    """What the plan has of what the row needs; empty if anything is lacking."""
    met = [
        ("traits", needs.traits, facts.traits.issuperset(needs.traits)),
        ("backend", needs.backends, _any(needs.backends, facts.backends)),
        ("hardware", needs.hardware, facts.hardware in needs.hardware),
        ("drafter", needs.drafters, facts.drafter in needs.drafters),
        ("role", needs.roles, _any(needs.roles, facts.roles)),
    ]
    asked = [(name, wanted, holds) for name, wanted, holds in met if wanted]
    if not all(holds for _, _, holds in asked):
        return ""
    return "; ".join(f"{name} {', '.join(wanted)}" for name, wanted, _ in asked)


def _any(wanted: Iterable[str], offered: frozenset[str]) -> bool:
    return not offered.isdisjoint(wanted)
