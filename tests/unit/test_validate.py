"""Validation: closed, strict, and complete in what it reports."""

import pytest

from ascend_recipes.compose import compose_recipe
from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.validate import section_fields, validate_recipe


def validate(*overrides):
    return validate_recipe(compose_recipe(["recipe=qwen3_5_27b_a2", *overrides]))


def refused(*overrides) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        validate(*overrides)
    return caught.value


def test_recipe_is_frozen():
    recipe = validate()
    with pytest.raises(ValueError, match="frozen"):
        recipe.model = "other"


@pytest.mark.parametrize(
    ("override", "at", "suggestion"),
    [
        ("paralel.tp=2", "paralel", "parallel"),
        ("parallel.tpp=2", "parallel.tpp", "parallel.tp"),
        ("cache.block_sizes=3", "cache.block_sizes", "cache.block_size"),
        ("serving.prot=1", "serving.prot", "serving.port"),
        ("schduler={max_num_seqs:2}", "schduler", "scheduler"),
    ],
)
def test_unknown_key_suggests_the_closest(override, at, suggestion):
    error = refused(override)
    (finding,) = error.findings
    assert error.exit_code is ExitCode.USAGE
    assert (finding.id, finding.at) == ("schema.unknown_key", at)
    assert finding.fix == f"did you mean {suggestion}?"
    assert finding.source is not None and finding.source.origin == "command line"


def test_all_mistakes_are_reported_at_once():
    error = refused("parallel.tp=abc", "serving.port=0", "cach.kind=x", "drafter={kind:mtp}")
    assert {item.at for item in error.findings} == {
        "parallel.tp",
        "serving.port",
        "cach",
        "drafter.num_draft_tokens",
    }
    assert error.exit_code is ExitCode.FINDINGS


@pytest.mark.parametrize("value", ["'8'", "8.0", "true", "null", "[8]", "0", "-1"])
def test_a_number_is_not_coerced(value):
    assert refused(f"parallel.tp={value}").findings[0].at == "parallel.tp"


def test_unknown_kind_lists_the_kinds():
    (finding,) = refused("drafter.kind=medusa").findings
    assert finding.at == "drafter"
    assert "'mtp'" in finding.message
    assert finding.source is not None and finding.source.origin == "command line"


def test_unset_values_are_listed_together():
    error = refused("model=???", "hardware=???")
    assert [item.at for item in error.findings] == ["model", "hardware"]
    assert {item.id for item in error.findings} == {"schema.missing"}


def test_choosing_another_kind_forgets_what_files_said_about_the_old_one(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "sized.yaml").write_text(
        "# @package _global_\ndefaults: [qwen3_5_27b_a2]\ngraph: {capture_sizes: [4]}\n"
    )
    recipe = validate_recipe(compose_recipe(["recipe=sized", "graph=none"], [tmp_path]))
    assert recipe.graph.kind == "none"


def test_a_field_of_another_kind_on_the_command_line_is_refused():
    assert refused("graph=none", "graph.capture_sizes=[1]").findings[0].at == "graph.capture_sizes"


def test_environment_values_are_text_as_the_shell_sees_them():
    env = validate("env.A=1", "env.B=true", "env.C=x").env
    assert (env["A"], env["B"], env["C"]) == ("1", "true", "x")


@pytest.mark.parametrize("name", ["HF_TOKEN", "MY_API_KEY", "db_password"])
def test_secrets_are_refused(name):
    (finding,) = refused(f"env.{name}=x").findings
    assert "secret" in finding.message


def test_roles_are_one_or_a_pair():
    (finding,) = refused("roles={prefill:{nodes:1},serve:{nodes:1}}").findings
    assert "prefill" in finding.message


def test_section_fields_follow_the_kind():
    assert section_fields("graph", "none") == {"kind"}
    assert "capture_sizes" in (section_fields("graph", "full_decode") or set())
    assert section_fields("graph", "nonsense") is None
