"""Rules about speculative decoding."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.resolve import ResolvedRecipe


def draft_length_is_offered(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A drafter proposes no more tokens than it was made for."""
    spec, facts = resolved.recipe.drafter, resolved.drafter
    if spec.kind == "none" or facts is None:
        return
    if spec.num_draft_tokens > facts.max_draft_tokens:
        yield Finding(
            id="drafter.too_long",
            message=f"{spec.kind} of {resolved.recipe.model} proposes at most "
            f"{facts.max_draft_tokens} tokens, not {spec.num_draft_tokens}",
            at="drafter.num_draft_tokens",
            fix=f"drafter.num_draft_tokens={facts.max_draft_tokens}",
        )
