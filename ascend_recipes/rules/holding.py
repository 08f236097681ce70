"""For which runtimes and versions a rule holds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec

from ascend_recipes.errors import Finding
from ascend_recipes.resolve import ResolvedRecipe

P = ParamSpec("P")
RuleFunction = Callable[Concatenate[ResolvedRecipe, P], Iterator[Finding]]


@dataclass(frozen=True)
class Holding:
    """Runtimes, and versions of them, for which a statement is true."""

    runtimes: tuple[str, ...]
    """Empty for all."""
    since: str | None = None
    """First version; none for all before `until`."""
    until: str | None = None
    """First version for which it is no longer true."""

    def covers(self, resolved: ResolvedRecipe) -> bool:
        """Whether the statement is true for the recipe's runtime."""
        if self.runtimes and resolved.recipe.runtime.kind not in self.runtimes:
            return False
        order = resolved.runtime.versions
        if resolved.runtime_version not in order:
            return True
        here = order.index(resolved.runtime_version)
        after = self.since is None or here >= order.index(self.since)
        return after and (self.until is None or here < order.index(self.until))


def holds(
    *runtimes: str, since: str | None = None, until: str | None = None
) -> Callable[[RuleFunction[P]], RuleFunction[P]]:
    """Mark a rule as true for some runtimes or versions; elsewhere it says nothing.

    A rule without the mark is true for every runtime. A limit that was read from one runtime's
    source is marked with that runtime. The first argument of the rule decides: of a pair of roles
    that is prefill.

    Args:
        runtimes: rows of `registry/runtimes`.
        since: first version of the one runtime named.
        until: first version for which the statement is no longer true.
    """
    assert (since is None and until is None) or len(runtimes) == 1, "versions of which runtime?"
    holding = Holding(runtimes, since, until)

    def mark(rule: RuleFunction[P]) -> RuleFunction[P]:
        @wraps(rule)
        def held(
            resolved: ResolvedRecipe, /, *args: P.args, **kwargs: P.kwargs
        ) -> Iterator[Finding]:
            if holding.covers(resolved):
                yield from rule(resolved, *args, **kwargs)

        vars(held)["holding"] = holding
        return held

    return mark
