"""Composition: merging, provenance, and mistakes that Hydra would word badly."""

from pathlib import Path

import pytest

from ascend_recipes.compose import compose_recipe, recipe_names
from ascend_recipes.errors import ExitCode, RecipeError

RECIPE = "recipe=qwen3_5_27b_a2"


def test_recipe_value_wins_over_preset_and_override_over_both():
    composition = compose_recipe([RECIPE, "scheduler.max_num_seqs=5"])
    assert composition.tree["scheduler"]["max_num_seqs"] == 5
    origins = [str(item) for item in composition.provenance["scheduler.max_num_seqs"]]
    assert [origin.partition(":")[0] for origin in origins] == [
        "recipes/scheduler/balanced.yaml",
        "recipes/recipe/qwen3_5_27b_a2.yaml",
        "command line",
    ]


def test_provenance_names_the_line_that_set_the_value():
    composition = compose_recipe([RECIPE])
    source = composition.source("scheduler.max_model_len")
    assert source is not None and source.line is not None
    lines = Path(source.origin).read_text(encoding="utf-8").splitlines()
    assert lines[source.line - 1].strip() == "max_model_len: 133000"


def test_tiny_scale_wins_over_the_recipe_and_loses_to_the_command_line():
    tree = compose_recipe([RECIPE, "scale=tiny", "parallel.tp=2"]).tree
    assert tree["parallel"]["tp"] == 2
    assert tree["scheduler"]["max_model_len"] < 10_000


def test_a_key_that_no_file_sets_may_be_overridden():
    assert compose_recipe([RECIPE, "serving.port=9000"]).tree["serving"] == {"port": 9000}


def test_unknown_recipe_shows_names_like_it_and_suggests_the_closest():
    with pytest.raises(RecipeError) as caught:
        compose_recipe(["recipe=qwen3_5_27b_a22"])
    (finding,) = caught.value.findings
    assert caught.value.exit_code is ExitCode.USAGE
    assert finding.id == "recipe.unknown"
    assert finding.fix == "recipe=qwen3_5_27b_a2"
    assert f"among {len(recipe_names())};" in finding.message
    assert "qwen3_5_27b_w8a8_a2" in finding.message
    assert "deepseek_v4_a3" not in finding.message
    assert len(finding.message) < 250


def test_word_that_is_like_no_preset_has_no_fix():
    with pytest.raises(RecipeError) as caught:
        compose_recipe([RECIPE, "graph=zzz"])
    (finding,) = caught.value.findings
    assert finding.fix == ""
    assert "full_decode, full_decode_plain, none, piecewise" in finding.message


def test_every_unknown_preset_is_reported_at_once():
    with pytest.raises(RecipeError) as caught:
        compose_recipe([RECIPE, "graph=fulldecode", "cache=pagd"])
    assert {item.at: item.fix for item in caught.value.findings} == {
        "graph": "graph=full_decode",
        "cache": "cache=paged",
    }


def test_missing_recipe_says_what_to_type():
    with pytest.raises(RecipeError) as caught:
        compose_recipe(["parallel.tp=2"])
    assert caught.value.findings[0].id == "recipe.missing"


@pytest.mark.parametrize("word", ["parallel.tp", "model=http://x/y?z=1", "=3", "a b=c=d"])
def test_unparsable_override_is_refused_with_a_remedy(word):
    with pytest.raises(RecipeError) as caught:
        compose_recipe([RECIPE, word])
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.findings[0].id == "usage.override"
    assert caught.value.findings[0].fix


def test_users_folder_adds_recipes_and_presets(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "mine.yaml").write_text("kind: full_decode\ncapture_sizes: [4]\n")
    (tmp_path / "recipe" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - qwen3_5_27b_a2\n  - override /graph: mine\n"
        "about: mine\n"
    )
    composition = compose_recipe(["recipe=mine"], [tmp_path])
    assert composition.tree["graph"]["capture_sizes"] == [4]
    assert composition.tree["about"] == "mine"
    assert composition.tree["model"] == "qwen3_5_27b"
    assert "mine" in {entry.name for entry in recipe_names([tmp_path])}


def test_broken_yaml_names_file_and_line(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "broken.yaml").write_text("about: [1, 2\nmodel: x\n")
    with pytest.raises(RecipeError) as caught:
        compose_recipe(["recipe=broken"], [tmp_path])
    (finding,) = caught.value.findings
    assert finding.id == "file.invalid_yaml"
    assert finding.source is not None and finding.source.origin.endswith("broken.yaml")
    assert finding.source.line == 2


def test_missing_config_dir_is_refused(tmp_path):
    with pytest.raises(RecipeError) as caught:
        compose_recipe([RECIPE], [tmp_path / "nowhere"])
    assert caught.value.findings[0].id == "usage.config_dir"


def test_an_intricate_defaults_list_is_left_to_hydra(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "more.yaml").write_text("about: more\n")
    (tmp_path / "recipe" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - qwen3_5_27b_a2\n  - /extra@_global_: more\n"
    )
    composition = compose_recipe(["recipe=mine"], [tmp_path])
    assert composition.tree["about"] == "more"
    assert str(composition.source("about")).endswith("extra/more.yaml:1")
