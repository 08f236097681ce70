"""Rules about shapes that attention operators of Ascend take, after the split over dies."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.planning.degrees import divisors
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import holds

_LATENT_HEADS = (32, 64, 128)
"""Query heads of a die that the captured latent operator takes (FAQ 13 of vllm-ascend)."""

_EQUAL_WIDTHS = (64, 128, 192)
"""Head widths that the packed operator takes where every query head has its own key head."""


@holds("vllm_ascend")
def latent_heads_fit_operator(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The captured latent operator takes few numbers of query heads, on A2."""
    recipe = resolved.recipe
    heads, tp = _size(resolved, "num_attention_heads"), recipe.parallel.tp
    captured = recipe.attention.kind == "mla" and recipe.graph.kind != "none"
    if captured and recipe.hardware == "a2" and heads // tp not in _LATENT_HEADS:
        fitting = [n for n in divisors(heads) if n <= tp and heads // n in _LATENT_HEADS]
        yield finding(
            "attention.mla_heads",
            at="parallel.tp",
            fix=f"parallel.tp={max(fitting)}" if fitting else "graph=none",
            heads=heads,
            tp=tp,
            each=heads // tp,
            legal=_LATENT_HEADS,
        )


@holds("vllm_ascend")
def widths_fit_operator(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """With one key head for each query head the packed operator takes few widths."""
    if "full_attention" not in {layer.kind for layer in resolved.model.layers}:
        return
    width = _size(resolved, "head_dim")
    tp = resolved.recipe.parallel.tp
    if width in _EQUAL_WIDTHS or not _own_keys(resolved, tp):
        return
    grouped = [n for n in divisors(tp) if not _own_keys(resolved, n)]
    yield finding(
        "attention.mha_head_dim",
        at="parallel.tp",
        fix=f"parallel.tp={max(grouped)}" if grouped else "",
        tp=tp,
        width=width,
        legal=_EQUAL_WIDTHS,
    )


def _own_keys(resolved: ResolvedRecipe, tp: int) -> bool:
    """Whether every query head of a die has a key head of its own."""
    queries = _size(resolved, "num_attention_heads") // tp
    return queries <= max(1, _size(resolved, "num_key_value_heads") // tp)


def _size(resolved: ResolvedRecipe, field: str) -> int:
    value = resolved.config[field]
    assert isinstance(value, int), f"{field} is {value!r}"
    return value
