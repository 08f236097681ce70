"""`transpose`: acceptable on the generation asked for, minimal, and honest about what is lost."""

import json
import math

import pytest

from ascend_recipes.cli.main import main
from ascend_recipes.cli.pipeline import planned_launch
from ascend_recipes.commands.donors import find_donors
from ascend_recipes.commands.losses import find_losses
from ascend_recipes.commands.transpose import transpose, transposed_recipe
from ascend_recipes.compose import recipe_names
from ascend_recipes.errors import ExitCode, RecipeError, Severity
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.roles import role_recipe
from ascend_recipes.words import split_override

GENERATIONS = ("310p", "a2", "a3", "a5")

TRANSPOSED = [
    ("deepseek_v4_a2", "a3"),
    ("deepseek_v4_a3", "a2"),
    ("deepseek_v4_a3", "a5"),
    ("deepseek_v4_pro_a2_4n", "a5"),
    ("deepseek_v4_a3_pd", "a2"),
    ("deepseek_v4_pro_a2_8n_pd", "a3"),
    ("glm_5_1_w4a4_mxfp4_a5", "a2"),
    ("glm_5_1_w4a4_mxfp4_a5_4n_pd", "a3"),
    ("glm_5_1_w8a8_a3_2n_prefix", "a2"),
    ("deepseek_v4_a5", "a2"),
    ("deepseek_v4_a5", "a3"),
    ("glm_5_2_w4a8_a2_2n", "a3"),
    ("glm_5_2_w4a8_a2_8n_pd", "a5"),
    ("glm_5_w4a8_a3", "a5"),
    ("kimi_k3_w4a8_a3_4n", "a2"),
    ("kimi_k3_w4a8_a2_8n", "a3"),
    ("kimi_k3_w4a8_a3_4n", "a5"),
    ("kimi_k3_w4a8_a2_8n", "a5"),
    ("qwen3_5_397b_a17b_w8a8_a3", "a2"),
    ("qwen3_5_397b_a17b_w8a8_a2_2n", "a3"),
    ("qwen3_5_397b_a17b_w4a8_a2", "a5"),
    ("qwen3_6_35b_a3b_w4a8_a3", "a5"),
    ("qwen3_8_27b_fp8_a5", "a2"),
    ("qwen3_6_27b_w8a8_mxfp8_a5", "a3"),
    ("qwen3_6_27b_w8a8_a2", "310p"),
    ("qwen3_5_27b_w8a8_a3_2n_pd", "310p"),
    ("qwen3_6_27b_w8a8_mxfp8_a5", "310p"),
    ("qwen3_6_27b_w8a8_310p", "a2"),
    ("qwen3_6_35b_a3b_w8a8_310p", "a3"),
    ("qwen3_5_27b_w8a8_310p", "a5"),
]
"""Every family in every direction in which a recipe of it can be carried."""

UNSERVED = {("deepseek_v4", "310p"), ("glm_5", "310p"), ("kimi_k3", "310p")}
"""Families and generations without a backend."""


def planned(*words):
    return planned_launch(words, ())


def judged(words):
    """Ids of errors, and of warnings, by the path of the command line and not the search's."""
    try:
        found = planned_launch(words, ()).findings
    except RecipeError as error:
        found = error.findings
    errors = {item.id for item in found if item.severity is Severity.ERROR}
    return errors, {item.id for item in found if item.severity is Severity.WARNING}


def worlds(launch):
    """Role -> dies that an instance occupies, and dies of the machines that it has."""
    recipe, dies = launch.resolved.recipe, launch.resolved.hardware.dies_per_node
    if "serve" in recipe.roles:
        return {"serve": (recipe.parallel.world_size, recipe.nodes * dies)}
    roles = {role: role_recipe(recipe, role) for role in recipe.roles}
    return {
        role: (item.parallel.world_size, item.nodes * dies) for role, item in sorted(roles.items())
    }


def wastes(launch, before):
    """Whether machines stay idle, or fewer dies serve than did before and would fit."""
    dies = launch.resolved.hardware.dies_per_node
    for role, (world, room) in worlds(launch).items():
        if math.ceil(world / dies) * dies < room:
            return True
        if world < min(room, before.get(role, (0, 0))[0]):
            return True
    return False


@pytest.mark.parametrize(("recipe", "target"), TRANSPOSED)
def test_a_result_is_acceptable_and_every_change_of_it_is_needed(recipe, target):
    before = planned(f"recipe={recipe}")
    found = transpose((f"recipe={recipe}",), target, ())
    after = planned(*found.words)
    assert after.resolved.recipe.hardware == target
    assert after.resolved.recipe.model == before.resolved.recipe.model
    assert after.plan.digest == found.planned.plan.digest
    known = {item.id for item in before.findings}
    for word in found.words:
        path = split_override(word)[0]
        if path in ("hardware", "recipe"):
            continue
        errors, warnings = judged([other for other in found.words if other != word])
        fewer = errors or warnings - known
        if not fewer:
            launch = planned(*(other for other in found.words if other != word))
            assert wastes(launch, worlds(before)), f"{word} is not needed"
    told = {item.at for item in found.swaps}
    assert all(item.returns for item in found.swaps if item.at != "hardware")
    assert {split_override(word)[0] for word in found.words} - {"recipe"} <= {
        *told,
        *(path.partition(".")[0] for path in told),
    }


def test_every_direction_of_every_family_is_tried():
    registry = load_registry()
    families = {name: registry.models[name].family for name in registry.models}
    entries = {entry.name: entry for entry in recipe_names()}
    tried = {
        (families[entries[name].model], entries[name].hardware, target)
        for name, target in TRANSPOSED
    }
    for entry in entries.values():
        for target in set(GENERATIONS) - {entry.hardware}:
            family = families[entry.model]
            direction = (family, entry.hardware, target)
            assert direction in tried or (family, target) in UNSERVED, direction


@pytest.mark.parametrize("recipe", ["deepseek_v4_a3", "glm_5_w4a8_a3", "kimi_k3_w4a8_a2_8n"])
def test_where_no_backend_serves_the_rest_is_told(recipe, capsys):
    with pytest.raises(RecipeError) as raised:
        transpose((f"recipe={recipe}",), "310p", ())
    ids = [item.id for item in raised.value.findings]
    assert ids[0] == "transpose.impossible"
    assert set(ids[1:]) == judged((f"recipe={recipe}", "hardware=310p"))[0]
    assert "attention.no_backend" in ids
    assert main(["transpose", f"recipe={recipe}", "--to", "310p"]) == 3


def test_a_shipped_recipe_of_the_generation_says_how():
    found = transpose(("recipe=deepseek_v4_a3",), "a2", ())
    assert found.donors[0] == "deepseek_v4_a2"
    donor = planned("recipe=deepseek_v4_a2").resolved.recipe
    swaps = {item.at: item for item in found.swaps}
    assert swaps["parallel.tp"].after == donor.parallel.tp == 8
    assert swaps["parallel.dp"].after == donor.parallel.dp == 1
    assert swaps["parallel.tp"].documented_by == "deepseek_v4_a2"
    assert (swaps["hardware"].before, swaps["hardware"].after) == ("a3", "a2")


def test_donors_are_the_model_s_own_and_the_most_similar_comes_first():
    source = planned("recipe=glm_5_2_w4a8_a2_8n_pd").resolved
    donors = find_donors(source, "a3", ())
    names = {entry.name: (entry.model, entry.hardware) for entry in recipe_names()}
    assert {names[donor.name] for donor in donors} == {("glm_5_2", "a3")}
    assert len(donors) == sum(pair == ("glm_5_2", "a3") for pair in names.values())
    assert donors[0].roles == {"prefill", "decode"}
    assert donors[0].tree["checkpoint"]["variant"] == source.recipe.checkpoint.variant
    assert [donor.roles for donor in donors][-1] == {"serve"}


def test_machines_that_are_typed_keep_every_die():
    found = transpose(("recipe=deepseek_v4_a3", "nodes=2"), "a2", ())
    assert [item.at for item in found.swaps] == ["hardware"]
    assert worlds(found.planned) == {"serve": (16, 16)}
    assert [item.id for item in found.losses] == []


def test_without_an_example_dies_are_kept_on_more_machines():
    found = transpose(("recipe=qwen3_8_2_4t_a95b_w8a8_a3_4n",), "a5", ())
    assert found.donors == ()
    swaps = {item.at: (item.before, item.after) for item in found.swaps}
    assert swaps["hardware"] == ("a3", "a5")
    assert swaps["nodes"] == (4, 8)
    lost = {item.id: item.message for item in found.losses}
    assert "8 machines instead of 4" in lost["transpose.more_nodes"]
    assert "top_k_top_p" in lost["transpose.slower_operators"]


def test_what_vllm_ascend_can_be_told_counts_where_it_serves():
    """Two replicas of sixteen dies would not spread over four machines there."""
    words = ("recipe=glm_5_1_w8a8_a3_2n", "runtime=vllm_ascend")
    found = transpose(words, "a5", ())
    assert "runtime=vllm_ascend" in found.words
    assert judged(found.words)[0] == set()
    assert worlds(found.planned) == {"serve": (32, 32)}
    swaps = {item.at: item for item in found.swaps}
    assert (swaps["nodes"].before, swaps["nodes"].after) == (2, 4)
    assert swaps["parallel.dp"].after % 4 == 0
    assert "rendering.nodes_uneven" in swaps["parallel.dp"].returns
    assert len(found.planned.commands) == 4


def test_machines_that_are_not_needed_are_left_out():
    found = transpose(("recipe=glm_5_2_w4a8_a2_2n",), "a3", ())
    assert [(item.at, item.before, item.after) for item in found.swaps][1:] == [("nodes", 2, 1)]
    assert "transpose.idle_nodes" in found.swaps[1].returns
    assert worlds(found.planned) == {"serve": (16, 16)}


def test_roles_that_cannot_be_apart_become_one():
    found = transpose(("recipe=qwen3_5_27b_w8a8_a3_2n_pd",), "310p", ())
    swaps = {item.at: (item.before, item.after) for item in found.swaps}
    assert swaps["recipe"] == ("qwen3_5_27b_w8a8_a3_2n_pd", "qwen3_5_27b_w8a8_310p")
    assert "hardware.lacks_capability" in found.swaps[1].returns
    ids = [item.id for item in found.losses]
    assert "transpose.lost_roles" in ids
    assert "transpose.lost_dtype" in ids


def test_weights_of_the_nearest_format_stand_in_for_those_that_the_generation_lacks():
    found = transpose(("recipe=qwen3_5_397b_a17b_w4a8_a2",), "a5", ())
    formats = load_registry().quantization
    chosen = found.planned.resolved.checkpoint.format
    offered = {
        facts.format
        for facts in found.planned.resolved.model.checkpoints.values()
        if "a5" in formats[facts.format].hardware
    }

    def far(name):
        row = formats[name]
        return abs(row.weight_bits - 4), abs(row.activation_bits - 8)

    assert far(chosen) == min(map(far, offered))
    lost = next(item for item in found.losses if item.id == "transpose.lost_format")
    assert chosen in lost.message


LOSSES = [
    ("qwen3_5_27b_a2", "scheduler.max_model_len=1024", "lost_context", ("1024", "133000")),
    ("qwen3_5_27b_a2", "scheduler.max_num_batched_tokens=1024", "lost_step", ("1024",)),
    ("deepseek_v4_a3", "scheduler.max_num_seqs=16", "lost_sequences", ("64", "256", "-75 %")),
    ("deepseek_v4_a3", "parallel.dp=2", "lost_dies", ("8", "16", "-50 %")),
    ("deepseek_v4_a3", "cache.memory_fraction=0.85", "lost_cache", ()),
    ("qwen3_5_27b_a2", "cache.prefix_caching=false", "lost_prefix", ()),
    ("qwen3_8_27b_w8a8_a2", "drafter=none", "lost_drafter", ("mtp", "none")),
    ("qwen3_5_27b_a2", "graph=none", "lost_graph", ("full_decode", "none")),
    ("qwen3_5_27b_a2", "cache.state_dtype=float16", "lost_cache_type", ("float16",)),
    ("glm_5_2_w4a8_a2_8n_pd", "cache.kv_dtype=model", "lost_cache_type", ("bfloat16", "int8")),
    ("deepseek_v4_a3", "moe.overlap_shared_expert=false", "lost_feature", ("moe.overlap",)),
    ("deepseek_v4_a3", "nodes=2", "more_nodes", ("2", "1")),
    ("kimi_k3_w4a8_a2_8n", "graph.capture_sizes=[1,4,8]", "lost_sizes", ("2",)),
]


@pytest.mark.parametrize(("recipe", "word", "name", "numbers"), LOSSES)
def test_what_is_given_up_is_told_with_its_numbers(recipe, word, name, numbers):
    whole, less = planned(f"recipe={recipe}"), planned(f"recipe={recipe}", word)
    found = {item.id: item for item in find_losses(whole, less)}
    assert f"transpose.{name}" in found
    item = found[f"transpose.{name}"]
    assert all(number in item.message for number in numbers), item.message
    assert item.severity is Severity.INFO
    assert item.message_zh
    # The other way round nothing of the kind is lost, except where any difference is one.
    back = {item.id for item in find_losses(less, whole)}
    either_way = {"lost_cache_type", "lost_graph"}
    assert (f"transpose.{name}" in back) == (name in either_way)


def test_the_same_deployment_loses_nothing():
    launch = planned("recipe=glm_5_2_w4a8_a3_4n_pd")
    assert find_losses(launch, launch) == ()


def test_losses_of_roles_say_which():
    whole = planned("recipe=deepseek_v4_a3_pd")
    less = planned("recipe=deepseek_v4_a3_pd", "roles.decode.scheduler.max_num_seqs=30")
    lost = [item for item in find_losses(whole, less) if item.id == "transpose.lost_sequences"]
    assert [item.at for item in lost] == ["roles.decode.scheduler.max_num_seqs"]
    assert "480" in lost[0].message
    assert "960" in lost[0].message


def test_the_document_names_changes_losses_and_the_command(capsys):
    words = ["transpose", "recipe=qwen3_8_27b_fp8_a5", "--to", "a2", "--json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["source"], document["target"]) == ("a5", "a2")
    assert document["donors"] == ["qwen3_8_27b_w8a8_a2"]
    changes = {item["at"]: item for item in document["changes"]}
    assert changes["checkpoint.variant"]["before"] == "fp8"
    assert changes["checkpoint.variant"]["after"] == "w8a8"
    assert changes["checkpoint.variant"]["documented_by"] == "qwen3_8_27b_w8a8_a2"
    assert "quant.hardware" in changes["checkpoint.variant"]["returns"]
    assert "transpose.lost_format" in [item["id"] for item in document["lost"]]
    assert judged(document["words"])[0] == set()


def test_people_read_it_in_their_language(capsys):
    assert main(["transpose", "recipe=deepseek_v4_a3", "--to", "a2", "--lang", "zh"]) == 0
    told = capsys.readouterr().out
    assert "失去的" in told
    assert "instead of" not in told
    assert main(["transpose", "recipe=deepseek_v4_a3", "--to", "a2"]) == 0
    told = capsys.readouterr().out
    assert "what is lost" in told
    assert "64 requests at a time instead of 256 (-75 %)" in told
    assert "ascend-run plan recipe=deepseek_v4_a3 hardware=a2" in told


def test_write_saves_a_recipe_that_plans_as_the_result_does(tmp_path, capsys):
    words = ["recipe=glm_5_1_w4a4_mxfp4_a5", "--to", "a2", "--config-dir", str(tmp_path)]
    assert main(["transpose", "glm_there", *words, "--write"]) == 0
    path = tmp_path / "recipe" / "glm_there.yaml"
    assert str(path) in capsys.readouterr().out
    ours = planned_launch(["recipe=glm_there"], [tmp_path]).plan
    found = transpose(words[:1], "a2", ())
    assert ours.engine == found.planned.plan.engine
    assert ours.hardware == "a2"
    assert path.read_text() == transposed_recipe(found)
    # A second time nothing is overwritten.
    assert main(["transpose", "glm_there", *words, "--write"]) == 2
    assert path.read_text() == transposed_recipe(found)


def test_write_takes_a_file(tmp_path, capsys):
    file = tmp_path / "recipe" / "flash.yaml"
    words = ["recipe=deepseek_v4_a3", "--to", "a2", "--write", str(file)]
    assert main(["transpose", *words]) == 0
    assert planned_launch(["recipe=flash"], [tmp_path]).plan.hardware == "a2"
    assert [path.name for path in file.parent.iterdir()] == ["flash.yaml"]


@pytest.mark.parametrize(
    ("words", "id"),
    [
        (["recipe=deepseek_v4_a3"], "transpose.no_target"),
        (["recipe=deepseek_v4_a3", "--to", "a3"], "transpose.same_hardware"),
        (["recipe=deepseek_v4_a3", "--to", "a4"], "registry.unknown_key"),
        (["stray", "recipe=deepseek_v4_a3", "--to", "a2"], "transpose.stray_word"),
        (["recipe=deepseek_v4", "--to", "a2"], "recipe.unknown"),
    ],
)
def test_what_was_typed_wrongly_is_told(words, id, capsys):
    assert main(["transpose", *words, "--json"]) == int(ExitCode.USAGE)
    document = json.loads(capsys.readouterr().out)
    assert [item["id"] for item in document["findings"]] == [id]


def test_a_recipe_that_is_refused_where_it_is_goes_nowhere():
    with pytest.raises(RecipeError) as raised:
        transpose(("recipe=deepseek_v4_a3", "parallel.tp=7"), "a2", ())
    ids = {item.id for item in raised.value.findings}
    assert ids == judged(("recipe=deepseek_v4_a3", "parallel.tp=7"))[0]
    assert "parallel.heads_not_divisible" in ids
