"""`explain` for rendered commands: which line gives a flag, and which flags a field gives."""

import json
import re

import pytest

from ascend_recipes.cli.main import main
from ascend_recipes.cli.pipeline import planned_with_composition
from ascend_recipes.commands.explain import explain
from ascend_recipes.commands.rendered import explain_argument, with_rendering
from ascend_recipes.errors import RecipeError
from ascend_recipes.paths import data_root

RECIPES = ("deepseek_v4_a3_pd", "glm_5_2_w4a8_a3_2n", "kimi_k3_w4a8_a2_8n", "qwen3_6_27b_w8a8_310p")
_LINE = re.compile(r"((?:recipes|registry)/\S+\.yaml):(\d+)$")


def launched(recipe, *words):
    return planned_with_composition([f"recipe={recipe}", "runtime=vllm_ascend", *words], ())


def said(command, target):
    """What a command says for a target, read off its words."""
    if target == "MODEL":
        return command.argv[2]
    if target.startswith("$"):
        return command.env[target[1:]]
    flag, *keys = target.split(".")
    if flag.replace("--", "--no-", 1) in command.argv:
        return False
    spans = re.split(r"\n(?=--)", "\n".join(command.argv[3:]))
    (span,) = [item for item in spans if re.split(r"[=\n]", item)[0] == flag]
    words = span.removeprefix(flag).removeprefix("=").split("\n")
    words = [word for word in words if word]
    if not words:
        return True
    whole = loaded(words[0]) if len(words) == 1 else [loaded(word) for word in words]
    for key in keys:
        whole = whole[key]
    return whole


def loaded(word):
    try:
        return json.loads(word)
    except ValueError:
        return word


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_argument_has_its_value_and_a_line_that_says_it(recipe):
    composition, planned = launched(recipe)
    commands = planned.commands
    targets = dict.fromkeys(target for command in commands for target in command.reasons)
    for target in targets:
        key = "--model" if target == "MODEL" else target.removeprefix("$")
        for item in explain_argument(composition, planned, key):
            meant = [command for command in commands if item.key in command.reasons]
            if item.processes:
                names = " ".join(item.processes)
                meant = [command for command in meant if command.role in names]
                assert any(said(command, item.key) == item.value for command in meant)
            else:
                assert all(said(command, item.key) == item.value for command in meant)
            assert item.layers
            assert item.because
            path = item.because.partition(":")[0].partition(" over ")[0]
            for place in filter(None, map(_LINE.match, item.layers)):
                line = (data_root() / place[1]).read_text().splitlines()[int(place[2]) - 1]
                named = {path.rpartition(".")[2], *path.split("."), "yaml-language-server"}
                assert any(name in line for name in named), (item, line)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_field_names_the_arguments_that_name_the_field(recipe):
    composition, planned = launched(recipe)
    paths = {
        because
        for command in planned.commands
        for because in command.reasons.values()
        if re.fullmatch(r"(roles\.(prefill|decode)\.)?[a-z]+\.\w+", because)
    }
    assert len(paths) > 12
    for path in paths:
        targets = {
            target
            for command in planned.commands
            for target, because in command.reasons.items()
            if because == path and not isinstance(said(command, target), dict)
        }
        found = with_rendering(explain(composition, planned, path), planned)
        (field,) = [item for item in found if item.part == "recipe" and item.key == path][:1] or [
            next(item for item in found if item.part == "recipe")
        ]
        told = {text.partition(" = ")[0] for item in found for text in item.renders}
        assert targets <= told, (path, field)


def test_roles_are_told_apart_and_the_role_s_own_line_wins():
    composition, planned = launched("deepseek_v4_a3_pd")
    found = {
        item.processes: item for item in explain_argument(composition, planned, "--max-num-seqs")
    }
    assert set(found) == {("prefill",), ("decode",)}
    prefill, decode = found[("prefill",)], found[("decode",)]
    recipe = planned.resolved.recipe
    assert prefill.value == recipe.scheduler.max_num_seqs
    assert decode.value == recipe.roles["decode"].scheduler["max_num_seqs"]
    assert prefill.value != decode.value
    assert decode.because.startswith("roles.decode.scheduler.max_num_seqs")
    assert decode.layers[:-1] == prefill.layers


def test_ranks_that_differ_are_named():
    composition, planned = launched("deepseek_v4_a3_pd")
    found = explain_argument(composition, planned, "--data-parallel-rank")
    assert len(found) == len({item.processes for item in found}) > 4
    assert ("decode node 1 rank 15",) in {item.processes for item in found}


def test_the_command_line_is_a_layer_and_the_winner_comes_last():
    composition, planned = launched("qwen3_5_27b_a2", "scheduler.max_num_seqs=7")
    (found,) = explain_argument(composition, planned, "--max_num_seqs")
    assert found.key == "--max-num-seqs"
    assert found.value == 7
    assert found.layers[-1] == "command line"
    assert "ascend_recipes/schema/serving.py" in found.layers[0]


def test_a_json_flag_is_explained_key_by_key():
    composition, planned = launched("deepseek_v4_a3")
    found = {
        item.key: item for item in explain_argument(composition, planned, "--speculative-config")
    }
    assert found["--speculative-config.num_speculative_tokens"].value == 1
    assert found["--speculative-config.method"].because.startswith("drafter.kind")
    assert all(not isinstance(item.value, dict) for item in found.values())


def test_rows_of_the_registry_are_named_where_they_decide():
    composition, planned = launched("deepseek_v4_a3")
    (found,) = explain_argument(composition, planned, "--quantization")
    assert found.layers == ("registry/quantization/w8a8.yaml:1",)


def test_what_is_left_out_names_the_field_that_would_say_it():
    composition, planned = launched("qwen3_5_27b_a2")
    (found,) = explain_argument(composition, planned, "--pipeline-parallel-size")
    assert found.value is None
    assert found.because.startswith("left out: parallel.pp = 1;")
    # Told to, the field says it.
    composition, planned = launched("qwen3_5_27b_a2", "parallel.pp=2")
    (found,) = explain_argument(composition, planned, "--pipeline-parallel-size")
    assert found.value == 2


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("--cpu-offload-gb", "extra_args.cpu_offload_gb=VALUE"),
        ("--max-nun-seqs", "--max-num-seqs"),
        ("--additional-config.enable_dsa_pc", "enable_dsa_cp"),
        ("SOME_OTHER_VARIABLE", "env.SOME_OTHER_VARIABLE=VALUE"),
    ],
)
def test_what_nothing_renders_is_refused_with_what_to_type(key, fix):
    composition, planned = launched("qwen3_5_27b_a2")
    with pytest.raises(RecipeError) as raised:
        explain_argument(composition, planned, key)
    (item,) = raised.value.findings
    assert item.id == "explain.not_rendered"
    assert fix in item.fix


@pytest.mark.parametrize(
    ("key", "planned"),
    [
        ("--max-num-seqs", ["engine.max_num_seqs"]),
        ("--max_num_seqs", ["engine.max_num_seqs"]),
        ("--no-enable-prefix-caching", ["engine.enable_prefix_caching"]),
        ("--compilation-config.cudagraph_mode", ["engine.compilation_config.cudagraph_mode"]),
        ("--tool-call-parser", ["server.tool_call_parser"]),
        ("HCCL_BUFFSIZE", ["env.HCCL_BUFFSIZE"]),
        ("$VLLM_PLUGINS", ["env.VLLM_PLUGINS"]),
    ],
)
def test_our_own_runtime_has_the_arguments_of_its_plan(key, planned, capsys):
    assert main(["explain", key, "recipe=deepseek_v4_a3", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert [item["key"] for item in values] == planned
    assert all(item["part"] == "plan" and item["layers"] for item in values)


def test_flag_that_our_own_plan_has_not_is_shown_in_the_commands(capsys):
    key = "--additional-config.multistream_overlap_shared_expert"
    assert main(["explain", key, "recipe=deepseek_v4_a3", "--json"]) == 2
    (item,) = json.loads(capsys.readouterr().out)["findings"]
    assert item["id"] == "explain.no_commands"
    words = item["fix"].split()
    assert words[0] == "ascend-run"
    assert main(words[1:]) == 0
    assert f"{key} = true" in capsys.readouterr().out


def test_flags_of_others_are_keys_of_explain_alone(capsys):
    words = ["recipe=deepseek_v4_a3", "runtime=vllm_ascend"]
    assert main(["explain", *words, "--max-num-seqs"]) == 0
    out = capsys.readouterr().out
    assert "command --max-num-seqs = 64" in out
    assert "recipes/recipe/deepseek_v4_a3.yaml:" in out
    assert main(["plan", *words, "--max-num-seqs"]) == 2
    assert main(["explain", *words, "--max-num-seqs", "--max-model-len"]) == 2


def test_fields_say_what_they_render(capsys):
    assert (
        main(
            ["explain", "drafter.num_draft_tokens", "recipe=deepseek_v4_a3", "runtime=vllm_ascend"]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "renders  --speculative-config.num_speculative_tokens = 1" in out
    assert main(["explain", "drafter.num_draft_tokens", "recipe=deepseek_v4_a3"]) == 0
    assert "renders" not in capsys.readouterr().out
