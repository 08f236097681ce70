"""`fix`: minimal, acceptable, and written so that it can be named."""

import json

import pytest

from ascend_recipes.cli.main import main
from ascend_recipes.commands.changes import changes_for
from ascend_recipes.commands.fix import derived_recipe, propose_fix
from ascend_recipes.errors import Finding, RecipeError, Severity
from ascend_recipes.words import split_override

BROKEN = [
    ("recipe=deepseek_v4_a3", "parallel.tp=7"),
    ("recipe=qwen3_5_27b_a2", "drafter=mtp3", "graph.capture_sizes=[2,3]"),
    ("recipe=qwen3_5_27b_a2", "parallel.tp=3", "scheduler.max_num_seq=64"),
    ("recipe=qwen3_5_27b_a2", "hardware=a5", "parallel.tp=16"),
    ("recipe=qwen3_5_27b_a2", "scheduler.max_model_len=100000000", "cache.block_size=48"),
    ("recipe=kimi_k3_w4a8_a3_4n", "nodes=1"),
]


def trial(words, config_dirs=()):
    """Findings of a command line by the command line's own path, without the search."""
    from ascend_recipes.cli.pipeline import planned_launch

    try:
        return list(planned_launch(words, config_dirs).findings)
    except RecipeError as error:
        return list(error.findings)


def errors(words, config_dirs=()):
    return [item.id for item in trial(words, config_dirs) if item.severity is Severity.ERROR]


@pytest.mark.parametrize("words", BROKEN, ids=" ".join)
def test_a_proposal_is_acceptable_and_every_change_of_it_is_needed(words):
    proposal = propose_fix(words, ())
    assert errors(words), "the configuration is broken to begin with"
    assert proposal.steps
    assert errors(proposal.words) == []
    for step in proposal.steps:
        kept = [word for word in proposal.words if word not in step.change.words]
        replaced = {split_override(word)[0] for word in step.change.words}
        typed = [
            word
            for word in words
            if word == step.change.dropped or split_override(word)[0] in replaced
        ]
        back = errors([*kept, *typed])
        assert back, f"{step.change.text} is not needed"
        assert set(step.returns) == set(back)


def test_the_change_that_takes_least_away_is_proposed():
    proposal = propose_fix(("recipe=qwen3_5_27b_a2", "drafter=mtp3", "graph.capture_sizes=[3]"), ())
    # Sizes are cheaper to change than the drafter is to give up.
    assert [step.change.text for step in proposal.steps] == ["graph.capture_sizes=[4]"]
    (step,) = proposal.steps
    assert (step.before, step.after) == ([3], [4])
    assert step.returns == ("graph.spec_void",)


def test_a_number_says_how_far_it_moves():
    (step,) = propose_fix(("recipe=deepseek_v4_a3", "parallel.tp=7"), ()).steps
    assert (step.before, step.after) == (7, 4)
    assert step.cost.endswith(": -43 %")
    assert step.cost.startswith("Tensor parallel")


def test_an_acceptable_recipe_needs_no_change():
    proposal = propose_fix(("recipe=deepseek_v4_a3",), ())
    assert proposal.steps == ()
    assert proposal.words == ("recipe=deepseek_v4_a3",)


def test_warnings_go_only_where_strictness_is_asked_for():
    words = ("recipe=qwen3_5_27b_a2", "scheduler.max_num_seqs=600")
    assert propose_fix(words, ()).steps == ()
    strict = propose_fix(words, (), strict=True)
    assert strict.steps
    assert [item.severity for item in trial(strict.words) if item.severity != "info"] == []


def test_a_choice_of_hardware_that_cannot_work_is_left_out_last():
    words = ("recipe=glm_5_2_w8a8_a3_2n", "hardware=310p")
    (step,) = propose_fix(words, ()).steps
    assert step.change.dropped == "hardware=310p"


def test_where_nothing_helps_the_findings_are_told(tmp_path):
    (tmp_path / "recipe").mkdir()
    text = "# @package _global_\ndefaults: [glm_5_2_w8a8_a3_2n]\nhardware: 310p\n"
    (tmp_path / "recipe" / "lost.yaml").write_text(text)
    with pytest.raises(RecipeError) as raised:
        propose_fix(("recipe=lost",), (tmp_path,))
    ids = [item.id for item in raised.value.findings]
    assert ids[0] == "fix.none_found"
    assert "attention.no_backend" in ids


def test_alternatives_of_a_fix_are_apart_and_words_of_one_stay_together():
    told = Finding(
        id="a.b",
        message="",
        at="graph.kind",
        fix="graph=none, or drafter=none cache=paged or ascend-run recipe=x runtime=native",
    )
    found = [change.words for change in changes_for(told, {"graph": {"kind": "full"}}, ())]
    assert found[:3] == [("graph=none",), ("drafter=none", "cache=paged"), ("runtime=native",)]
    assert ("graph.kind=piecewise",) in found


def test_a_derived_recipe_plans_as_the_proposal_does(tmp_path):
    proposal = propose_fix(("recipe=qwen3_5_27b_a2", "drafter=mtp3", "parallel.tp=3"), ())
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "ours.yaml").write_text(derived_recipe(proposal))
    from ascend_recipes.cli.pipeline import planned_launch

    ours = planned_launch(["recipe=ours"], [tmp_path]).plan
    assert ours.engine == proposal.planned.plan.engine
    assert ours.drafter == proposal.planned.plan.drafter


def test_write_saves_a_recipe_that_can_be_named(tmp_path, capsys):
    words = ["recipe=qwen3_5_27b_a2", "parallel.tp=3"]
    place = ["--config-dir", str(tmp_path)]
    assert main(["fix", "mended", *words, "--write", *place]) == 0
    assert str(tmp_path / "recipe" / "mended.yaml") in capsys.readouterr().out
    assert main(["check", "recipe=mended", *place]) == 0
    assert list((tmp_path / "recipe").iterdir()) == [tmp_path / "recipe" / "mended.yaml"]
    # A second time nothing is overwritten.
    before = (tmp_path / "recipe" / "mended.yaml").read_text()
    assert main(["fix", "mended", *words, "--write", *place]) == 2
    assert (tmp_path / "recipe" / "mended.yaml").read_text() == before


def test_the_document_names_every_change(capsys):
    assert main(["fix", "recipe=qwen3_5_27b_a2", "parallel.tp=3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "fix"
    assert [step["at"] for step in document["steps"]] == ["parallel.tp"]
    assert document["words"][0] == "recipe=qwen3_5_27b_a2"
    assert document["found"][0]["id"] == "parallel.heads_not_divisible"


def test_a_key_of_a_users_file_cannot_be_taken_away_by_a_derived_recipe(tmp_path, capsys):
    (tmp_path / "recipe").mkdir()
    text = "# @package _global_\ndefaults: [qwen3_5_27b_a2]\nscheduler: {max_seqs: 4}\n"
    (tmp_path / "recipe" / "typo.yaml").write_text(text)
    place = ["--config-dir", str(tmp_path)]
    assert main(["fix", "recipe=typo", *place]) == 0
    assert "~scheduler.max_seqs" in capsys.readouterr().out
    assert main(["fix", "recipe=typo", "--write", *place]) == 3
    assert "delete the line" in capsys.readouterr().err
