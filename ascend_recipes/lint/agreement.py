"""What rules say of every recipe that a text may mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from ascend_recipes.errors import Finding

RuleT = TypeVar("RuleT")


def one_at_a_time(axes: tuple[Sequence[Any], ...]) -> Iterator[tuple[Any, ...]]:
    """The first choice of every axis, then each other choice of one axis with the first of all."""
    first = tuple(axis[0] for axis in axes)
    yield first
    for index, axis in enumerate(axes):
        for choice in axis[1:]:
            yield (*first[:index], choice, *first[index + 1 :])


class Asked(Protocol[RuleT]):
    """A recipe that rules can be asked about."""

    def ask(self, rules: Iterable[RuleT]) -> list[tuple[RuleT, Finding]] | None:
        """What rules say, each with its rule; none if it makes no recipe."""


def agreed_findings(
    possibilities: Iterable[Asked[RuleT]],
    asked: Iterable[RuleT],
    is_supported: Callable[[Finding], bool],
) -> list[Finding] | None:
    """What is said about every possibility; none if one of them makes no recipe.

    Only rules that have spoken so far are asked again.
    """
    agreed: dict[tuple[RuleT, str, str], Finding] | None = None
    for possibility in possibilities:
        rules = asked if agreed is None else {rule: None for rule, _, _ in agreed}
        answer = possibility.ask(rules)
        if answer is None:
            return None
        keyed = {(rule, item.id, item.at): item for rule, item in answer}
        if agreed is None:
            agreed = {key: item for key, item in keyed.items() if is_supported(item)}
        else:
            agreed = {key: item for key, item in agreed.items() if key in keyed}
        if not agreed:
            break
    return list((agreed or {}).values())
