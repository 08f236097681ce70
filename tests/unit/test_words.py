"""Override words: rewriting for Hydra's grammar, sweeps, repeats."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from ascend_recipes.errors import RecipeError, Severity
from ascend_recipes.words import (
    check_no_sweep,
    fit_for_hydra,
    repeated_overrides,
    split_top_level,
    sweep,
)


def value_after_hydra(word):
    return OverridesParser.create().parse_override(fit_for_hydra(word)).value()


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ('graph={"mode":"FULL"}', {"mode": "FULL"}),
        (
            'graph={"sizes":[1,2],"on":true,"no":null,"f":1.5}',
            {"sizes": [1, 2], "on": True, "no": None, "f": 1.5},
        ),
        ('extra_args={"a":{"b":[{"c":"d, e = f"}]}}', {"a": {"b": [{"c": "d, e = f"}]}}),
        ('a={"b":"it\'s \\\\ and \\" too"}', {"b": "it's \\ and \" too"}),
        ('a={"b":"ends with \\\\"}', {"b": "ends with \\"}),
        ("a=[1,2]", [1, 2]),
        ("a={mode:FULL}", {"mode": "FULL"}),
        ("checkpoint.path=/data/权重", "/data/权重"),
        ("site.proxy=http://host:1/?a=b", "http://host:1/?a=b"),
        ("a=it's", "it's"),
        ("a=x;y#z", "x;y#z"),
        ("a=1", 1),
        ("a=two words", "two words"),
        ("a=", ""),
        ("a='quoted, text'", "quoted, text"),
        ("a=${b}", "${b}"),
    ],
)
def test_value_reaches_hydra_unchanged(word, value):
    parsed = value_after_hydra(word)
    assert getattr(parsed, "text", parsed) == value


def test_deletion_and_bare_words_stay_as_they_are():
    assert fit_for_hydra("~drafter") == "~drafter"
    assert fit_for_hydra("+a.b=1") == "+a.b=1"


def test_json_key_that_hydra_cannot_say_is_left_to_hydra():
    word = 'a={"two words":1}'
    assert fit_for_hydra(word) == word


def test_commas_split_only_outside_brackets_and_quotes():
    assert split_top_level("1,[2,3],{a:4,b:5},'6,7',f(8,9)") == [
        "1",
        "[2,3]",
        "{a:4,b:5}",
        "'6,7'",
        "f(8,9)",
    ]


def test_sweep_is_the_cartesian_product():
    words = ["recipe=r", "a=1,2", "b=x,y", "~c"]
    assert sweep(words) == [["recipe=r", f"a={a}", f"b={b}", "~c"] for a in "12" for b in "xy"]


def test_sweep_knows_hydras_functions():
    assert sweep(["a=range(1,4)"]) == [["a=1"], ["a=2"], ["a=3"]]
    assert sweep(["a=choice(x,y)"]) == [["a=x"], ["a=y"]]


def test_comma_list_without_multirun_says_both_ways_out():
    with pytest.raises(RecipeError) as caught:
        check_no_sweep(["parallel.tp=2,4"])
    (finding,) = caught.value.findings
    assert finding.at == "parallel.tp"
    assert "parallel.tp=[2,4]" in finding.fix
    assert "-m" in finding.fix


def test_repeated_override_is_a_warning_that_names_the_winner():
    (finding,) = repeated_overrides(["a=1", "b=2", "+a=3"])
    assert (finding.id, finding.severity) == ("override.repeated", Severity.WARNING)
    assert "(3)" in finding.message
    assert repeated_overrides(["a=1", "b=1"]) == []
