"""Merging plain files and words: what Hydra itself makes of them, and what is left to it."""

import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_recipes import compose
from ascend_recipes.compose import compose_recipe
from ascend_recipes.errors import RecipeError
from ascend_recipes.merging import IntricateError, merge_plainly

RECIPE = "recipe=deepseek_v4_a3_pd_dspark"
"""Builds on another recipe, chooses presets, and so does what it builds on."""
CHILD = """\
# @package _global_
defaults:
  - deepseek_v4_a3_dspark
  - override /graph: none
  - override /quant: mine
about: mine
scheduler: {max_num_seqs: 7}
env: {A: 1e5, B: 2026-11-30, C: off, D: null, E: "1e5", F: 0x1F, G: 1_000}
"""


def outcome(words: tuple[str, ...], dirs: tuple = ()) -> str:
    """All that a composition says, in its order; or its errors."""
    try:
        composition = compose_recipe(words, dirs)
    except RecipeError as error:
        return str([(item.id, item.message) for item in error.findings])
    layers = {key: [str(item) for item in value] for key, value in composition.provenance.items()}
    return json.dumps([composition.tree, layers])


@pytest.fixture
def asked(monkeypatch) -> Callable[..., tuple[bool, str]]:
    """Whether words were merged here, then to what Hydra makes of them; and what came of them."""

    def ask(words: tuple[str, ...], dirs: tuple = ()) -> tuple[bool, str]:
        plain = []

        def watched(*args):
            merged = merge_plainly(*args)
            plain.append(True)
            return merged

        def refused(*args):
            raise IntricateError

        monkeypatch.setattr(compose, "merge_plainly", watched)
        ours = outcome(words, dirs)
        if plain:
            monkeypatch.setattr(compose, "merge_plainly", refused)
            assert outcome(words, dirs) == ours
        return bool(plain), ours

    return ask


WORDS = (
    *("graph=none", "cache=paged", "scale=tiny", "device=emulated", "runtime=vllm_ascend"),
    *("scheduler.max_num_seqs=5", "scheduler={max_num_seqs: 3}", "~scheduler.max_num_seqs"),
    *("cache=5", "cache={}", "cache={a: {b: 1}}", "cache.a.c=2", "cache.a=x", "cache.a=null"),
    *("new.b.c=1", "new.b=2", "new.b.d=[1,{e: f}]", "+new.f=1", "++about='a, b'", "source=[]"),
    *("x=nan", "x=-0.0", "x=True", "x='1'", "x=1e5", "x=0x1F", "roles.prefill.env.A=1"),
)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(words=st.lists(st.sampled_from(WORDS), min_size=3, max_size=9))
def test_words_give_what_hydra_makes_of_them(asked, words):
    asked((RECIPE, *words))


def test_plain_words_are_merged_here(asked):
    words = [word for word in WORDS if not word.startswith(("~", "cache="))]
    plain, ours = asked((RECIPE, *words, "cache={a: {b: 1}}", "~roles.decode.env"))
    assert plain
    assert '"runtime": {"kind": "vllm_ascend"}' in ours


@pytest.mark.parametrize(
    "words",
    [
        ("about=${model}",),
        ("about=???",),
        ("scheduler.max_num_seqs=1,2",),
        ("source=extend_list(a)",),
        ("source.0=x",),
        ("source={a: 1}",),
        ("~drafter",),
        ("~scheduler.none",),
        ("~scheduler.max_num_seqs=5",),
        ("+graph=none",),
        ("graph@other=none",),
        ("hydra.x=1",),
        ("x={1: 2}",),
    ],
    ids=lambda words: words[0],
)
def test_what_is_more_is_left_to_hydra(asked, words):
    plain, _ = asked((RECIPE, *words))
    assert not plain


def folder_of(tmp_path, **files: str) -> tuple:
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".yaml").write_text(text)
    return (tmp_path,)


def test_files_give_what_hydra_makes_of_them(asked, tmp_path):
    """Numbers, dates and words of YAML are read as Hydra reads them, not as YAML has it."""
    dirs = folder_of(tmp_path, recipe__mine=CHILD, quant__mine="kind: none\n")
    plain, ours = asked(("recipe=mine", "cache.memory_fraction=0.5"), dirs)
    assert plain
    assert '"A": 100000.0, "B": "2026-11-30", "C": false, "D": null, "E": "1e5"' in ours
    assert '"F": 31, "G": 1000' in ours
    assert '"quant": {"kind": "none"}' in ours


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("about: mine", "about: ${model}"),
        ("about: mine", "about: mine\nabout: twice"),
        ("about: mine", "about: mine\n1: one"),
        ("about: mine", "about: [1, 2"),
        ("about: mine", "about: mine\nhydra: {output_subdir: x}"),
        ("about: mine", "about: mine\nscheduler: [1]"),
        ("  - override /graph: none", "  - _self_\n  - override /graph: none"),
        ("override /graph: none", "override /device: emulated"),
        ("override /graph: none", "override /graph: unknown"),
        ("- deepseek_v4_a3_dspark", "- deepseek_v4_a33"),
        ("# @package _global_", "# @package other"),
        ("# @package _global_", "# A comment\n# @package _global_"),
    ],
)
def test_files_that_say_more_are_left_to_hydra(asked, tmp_path, old, new):
    assert old in CHILD
    dirs = folder_of(tmp_path, recipe__mine=CHILD.replace(old, new), quant__mine="kind: none\n")
    plain, _ = asked(("recipe=mine",), dirs)
    assert not plain


def test_a_preset_may_build_on_no_other_unless_hydra_says_so(asked, tmp_path):
    dirs = folder_of(tmp_path, graph__mine="defaults: [none]\ncapture_sizes: [4]\n")
    plain, _ = asked((RECIPE, "graph=mine"), dirs)
    assert not plain


def test_compositions_share_nothing():
    first = compose_recipe([RECIPE, "env.LIST=[1]"])
    untouched = json.dumps(first.tree)
    first.tree["scheduler"]["max_num_seqs"] = -1
    first.tree["source"].append("changed")
    first.tree["env"]["LIST"].append(2)
    assert json.dumps(compose_recipe([RECIPE, "env.LIST=[1]"]).tree) == untouched


def test_a_file_written_anew_is_read_anew(tmp_path):
    dirs = folder_of(tmp_path, recipe__mine=CHILD, quant__mine="kind: none\n")
    assert compose_recipe(["recipe=mine"], dirs).tree["about"] == "mine"
    folder_of(tmp_path, recipe__mine="\n" + CHILD.replace("about: mine", "about: ours"))
    composition = compose_recipe(["recipe=mine"], dirs)
    assert composition.tree["about"] == "ours"
    assert str(composition.source("about")).endswith("recipe/mine.yaml:7")
