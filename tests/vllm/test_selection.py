"""The platform picks the plan's attention backend, or lists what would be legal."""

from collections import namedtuple

import pytest

from ascend_recipes.compose import recipe_names
from ascend_recipes.errors import RecipeError
from ascend_recipes.platform.selection import attention_backend
from ascend_recipes.registry.load import load_registry

Wanted = namedtuple("Wanted", ("head_size", "use_mla", "use_sparse"))


def test_the_backend_of_the_plan_is_picked(plan):
    made = plan().plan
    path = attention_backend(made, Wanted(256, use_mla=False, use_sparse=False))
    named = {load_registry().backends[layer.backend].implementation for layer in made.layers}
    assert path.rpartition(".")[0] + ":" + path.rpartition(".")[2] in named
    assert path == "ascend_recipes.attention.fused_infer.FusedInferAttentionBackend"


@pytest.mark.parametrize("name", [entry.name for entry in recipe_names()])
def test_every_recipe_gets_the_class_that_its_plan_names(name, plan):
    made = plan(f"recipe={name}").plan
    rows = [load_registry().backends[layer.backend] for layer in made.layers]
    for row in rows:
        if row.selector and row.implementation:
            flags = {"use_mla": False, "use_sparse": False} | row.selector
            path = attention_backend(made, Wanted(256, **flags))
            assert path == row.implementation.replace(":", ".")


def test_a_combination_outside_the_table_lists_the_legal_ones(plan):
    with pytest.raises(RecipeError) as caught:
        attention_backend(plan().plan, Wanted(576, use_mla=True, use_sparse=False))
    (finding,) = caught.value.findings
    assert finding.id == "engine.no_backend"
    assert "use_mla=True" in finding.message
    assert "fused_infer_attention: use_mla=False, use_sparse=False" in finding.message


def test_a_plan_without_attention_has_no_legal_combination(plan):
    made = plan().plan
    states = tuple(layer for layer in made.layers if layer.kind == "linear_attention")
    with pytest.raises(RecipeError) as caught:
        attention_backend(made.model_copy(update={"layers": states}), Wanted(256, False, False))
    assert "legal are -" in caught.value.findings[0].message


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("sequences", "tokens_each", "largest"), [(8, 1, 8), (8, 4, 32), (256, 4, 512), (1024, 1, 512)]
)
def test_graphs_are_no_larger_than_the_largest_decode_batch(sequences, tokens_each, largest):
    from ascend_recipes.platform.ascend import largest_graph

    assert largest_graph(sequences, tokens_each) == largest
