"""Fixes that hold: what a rule proposes for a command is tried before it is offered.

Fixes that set fields of a recipe are tried, as they are for recipes (`offering.py`), in the first
recipe that the text may mean: the one that the rule computed them for. What is said of names (a
flag that is gone, a key that moved) has a name in place of a fix, and a text that does not parse
has advice: there is nothing in them that rules could judge.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from ascend_recipes.errors import Finding
from ascend_recipes.schema.recipe import Recipe

if TYPE_CHECKING:
    from ascend_recipes.offering import Offer
    from ascend_recipes.trial import Trial


class Meant(Protocol):
    """A recipe that a text may mean."""

    def everything(self, added: Sequence[str] = ()) -> Sequence[Finding] | None:
        """What all rules say of it, with words of a fix set; none if that makes no recipe."""


def hold_in(meant: Meant, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Findings of a recipe, with fixes that remove them and add no error."""
    offer: Offer | None = None
    for item in findings:
        # What has no fix needs none of the modules that try one.
        if item.fix:
            offer = offer or _offer(meant)
            yield offer.hold(item)
        else:
            yield item


def _offer(meant: Meant) -> Offer:
    from ascend_recipes.offering import Offer
    from ascend_recipes.trial import Trial

    said = tuple(meant.everything() or ())

    def judge(words: Sequence[str], added: Sequence[str] = ()) -> Trial:
        """Words that make no recipe remove no finding, so that nobody offers them."""
        answer = meant.everything((*words, *added))
        return Trial(said if answer is None else tuple(answer), {}, None)

    return Offer(judge, (), said)


def with_words(recipe: Recipe, words: Sequence[str]) -> Recipe:
    """The recipe with fields set.

    Raises:
        pydantic.ValidationError: a field does not exist or does not take the value.
    """
    from ascend_recipes.trial import set_leaf

    tree = json.loads(recipe.model_dump_json())
    for word in words:
        set_leaf(tree, word)
    return Recipe.model_validate_json(json.dumps(tree))
