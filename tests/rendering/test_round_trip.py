"""Rendering, importing and rendering again gives the same processes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.compose import recipe_names
from ascend_recipes.errors import RecipeError
from ascend_recipes.registry.load import load_registry
from ascend_recipes.rendering.command import RenderedCommand
from ascend_recipes.rendering.importing import import_command
from ascend_recipes.rendering.recipe_tree import recipe_tree
from ascend_recipes.rendering.render import render_commands
from ascend_recipes.resolve import resolve_recipe
from ascend_recipes.schema.recipe import Recipe
from tests.conftest import plan_of
from tests.rendering.atoms import atoms

VERSIONS = load_registry().runtimes["vllm_ascend"].versions
NAMES = [entry.name for entry in recipe_names()]


def again(commands: tuple[RenderedCommand, ...], hardware: str, version: str):
    """The processes of the recipe that the commands are imported to."""
    read = [import_command(item.argv, item.env, version=version) for item in commands]
    imported = recipe_tree(read, hardware=hardware, version=version)
    assert imported.unmapped == ()
    assert imported.findings == ()
    site = {key: value for key, value in imported.site.items() if key != "node_addresses"}
    recipe = Recipe.model_validate_json(json.dumps({**imported.tree, "site": site}))
    return render_commands(resolve_recipe(recipe, load_registry()))


def same(ours: tuple[RenderedCommand, ...], theirs: tuple[RenderedCommand, ...]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.role, mine.node, mine.rank) == (other.role, other.node, other.rank)
        assert atoms(mine.argv, mine.env) == atoms(other.argv, other.env)


CASES = [
    *((name, VERSIONS[-1]) for name in NAMES),
    *((name, version) for name in NAMES[::6] for version in VERSIONS[:-1] if "dspark" not in name),
]


@pytest.mark.parametrize(("name", "version"), CASES)
def test_every_recipe_comes_back(name: str, version: str):
    planned = plan_of(f"recipe={name}", "runtime=vllm_ascend", f"runtime.version={version}")
    commands = planned.commands
    same(commands, again(commands, planned.plan.hardware, version))


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_that_share_a_replica_come_back(version: str):
    words = ("recipe=qwen3_5_27b_w8a8_a2", "nodes=2", "parallel.tp=4", "parallel.pp=4")
    planned = plan_of(*words, "runtime=vllm_ascend", f"runtime.version={version}")
    commands = planned.commands
    assert [item.argv[item.argv.index("--node-rank") + 1] for item in commands] == ["0", "1"]
    same(commands, again(commands, planned.plan.hardware, version))


OVERRIDES = {
    "scheduler.max_num_seqs": st.sampled_from([8, 16, 33, 64]),
    "scheduler.async_scheduling": st.booleans(),
    "scheduler.balance": st.booleans(),
    "cache.memory_fraction": st.sampled_from([0.5, 0.85, 0.9, 1.0]),
    "cache.prefix_caching": st.booleans(),
    "checkpoint.trust_remote_code": st.booleans(),
    "checkpoint.load_threads": st.sampled_from([1, 16]),
    "moe.prefill_dispatch": st.booleans(),
    "moe.shared_expert": st.sampled_from(["tp", "dp"]),
    "drafter.graph": st.booleans(),
    "serving.served_model_name": st.sampled_from(["名字", "two words", "it's", "-dash", "a=b"]),
    "serving.api_servers": st.integers(1, 4),
    "serving.seed": st.integers(0, 2**31),
    "extra_args.max_logprobs": st.integers(1, 40),
    "extra_args.enable_log_requests": st.booleans(),
    "runtime.additional_config.mega_moe_max_tokens": st.integers(1, 10**6),
    "env.EXAMPLE": st.sampled_from(["1", "中文 值", "a'b\"c", "{x}"]),
}


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_overrides_come_back(data: st.DataObject):
    chosen = data.draw(st.lists(st.sampled_from(sorted(OVERRIDES)), unique=True, max_size=5))
    planned = plan_of("recipe=deepseek_v4_a3", "runtime=vllm_ascend")
    tree = json.loads(planned.resolved.recipe.model_dump_json())
    for path in chosen:
        *sections, name = path.split(".")
        node = tree
        for section in sections:
            node = node[section]
        node[name] = data.draw(OVERRIDES[path])
    recipe = Recipe.model_validate_json(json.dumps(tree))
    try:
        commands = render_commands(resolve_recipe(recipe, load_registry()))
    except RecipeError:
        return
    same(commands, again(commands, "a3", VERSIONS[-1]))
