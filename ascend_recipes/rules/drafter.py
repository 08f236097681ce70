"""Rules about speculative decoding."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe


def draft_length_is_offered(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A drafter proposes no more tokens than it was made for."""
    spec, facts = resolved.recipe.drafter, resolved.drafter
    if spec.kind == "none" or facts is None:
        return
    if spec.num_draft_tokens > facts.max_draft_tokens:
        yield finding(
            "drafter.too_long",
            at="drafter.num_draft_tokens",
            fix=f"drafter.num_draft_tokens={facts.max_draft_tokens}",
            kind=spec.kind,
            model=resolved.recipe.model,
            most=facts.max_draft_tokens,
            asked=spec.num_draft_tokens,
        )
