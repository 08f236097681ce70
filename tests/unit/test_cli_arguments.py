"""The argument parser, without any recipe."""

import pytest

from ascend_recipes.cli.arguments import COMMANDS, FLAGS, parse_arguments
from ascend_recipes.errors import ExitCode, RecipeError

PROMPTS = (
    "你好，世界",
    "Hello, world",
    "it's",
    "a=b",
    '{"a":1}',
    "${x}",
    "🙂",
    "two\nlines",
    "--not-a-flag",
    "recipe=no",
    " ",
)


def refusal(*argv):
    with pytest.raises(RecipeError) as caught:
        parse_arguments(argv)
    (finding,) = caught.value.findings
    assert caught.value.exit_code is ExitCode.USAGE
    return finding


def test_serve_is_the_default_and_words_keep_their_order():
    invocation = parse_arguments(["recipe=x", "~drafter", "+a=1", "++b=2"])
    assert invocation.command == "serve"
    assert invocation.words == ("recipe=x", "~drafter", "+a=1", "++b=2")


@pytest.mark.parametrize("command", COMMANDS)
def test_command_comes_first(command):
    assert parse_arguments([command, "recipe=x"]).command == command


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompt_arrives_unchanged(prompt):
    invocation = parse_arguments(["generate", "recipe=x", "--prompt", prompt, "a=1"])
    assert invocation.prompts == (prompt,)
    assert invocation.words == ("recipe=x", "a=1")


@pytest.mark.parametrize("prompt", [*PROMPTS, "--json", "", "="])
def test_prompt_after_an_equals_sign_may_be_anything(prompt):
    assert parse_arguments([f"--prompt={prompt}"]).prompts == (prompt,)


def test_prompts_add_up():
    assert parse_arguments(["--prompt", "a", "--prompt", "b"]).prompts == ("a", "b")


def test_switches():
    invocation = parse_arguments(["plan", "--json", "--strict", "-q", "-m", "recipe=x"])
    assert (invocation.json, invocation.strict, invocation.quiet, invocation.multirun) == (
        True,
    ) * 4


@pytest.mark.parametrize(
    ("argv", "cfg", "info"),
    [
        (["--cfg", "job"], "job", ""),
        (["--cfg=hydra"], "hydra", ""),
        (["-c", "recipe=x"], "job", ""),
        (["--info"], "", "all"),
        (["-i", "defaults-tree"], "", "defaults-tree"),
    ],
)
def test_hydra_flags_have_defaults(argv, cfg, info):
    invocation = parse_arguments(argv)
    assert (invocation.cfg, invocation.info) == (cfg, info)


def test_config_dir_is_repeatable(tmp_path):
    (tmp_path / "a").mkdir()
    argv = ["--config-dir", str(tmp_path), "-cd", str(tmp_path / "a")]
    assert parse_arguments(argv).config_dirs == (tmp_path, tmp_path / "a")


@pytest.mark.parametrize(
    ("argv", "id", "told"),
    [
        (["plam"], "usage.unknown_command", "ascend-run plan;"),
        (["qwen"], "usage.unknown_command", "recipe=qwen"),
        (["plan", "--jsn"], "usage.unknown_flag", "--json"),
        (["plan", "--zzzzzz"], "usage.unknown_flag", "ascend-run --help"),
        (["--tensor-parallel-size", "4"], "usage.flag_of_vllm", "parallel.tp=4"),
        (["--max_model_len=4096"], "usage.flag_of_vllm", "scheduler.max_model_len=4096"),
        (["--enable-expert-parallel", "recipe=x"], "usage.flag_of_vllm", "parallel.ep=true"),
        (["--no-enable-prefix-caching"], "usage.flag_of_vllm", "cache.prefix_caching=false"),
        (["--tool-call-parser", "hermes"], "usage.flag_of_vllm", "serving.tool_call_parser=hermes"),
        (["--scheduler.max-num-seqs=4"], "usage.dashed_override", "scheduler.max_num_seqs=4"),
        (["plan", "check"], "usage.stray_word", "recipe=check for a recipe, --prompt 'check'"),
        (["--prompt"], "usage.missing_value", "--prompt=TEXT"),
        (["--prompt", "--json"], "usage.missing_value", "--prompt=TEXT"),
        (["--json=1"], "usage.takes_no_value", "--json"),
        (["--max-tokens", "many"], "usage.not_a_number", "--max-tokens 64"),
        (["--max-tokens", "0"], "usage.not_a_number", "--max-tokens 64"),
        (["--cfg=jobs"], "usage.bad_value", "--cfg job"),
        (["--config-dir", "/no/such/folder"], "usage.config_dir", "--config-dir DIR"),
    ],
)
def test_refusals_say_what_to_type(argv, id, told):
    finding = refusal(*argv)
    assert finding.id == id
    assert told in finding.fix


def test_every_flag_has_a_summary_and_a_unique_name():
    names = [name for flag in FLAGS for name in flag.names]
    assert len(names) == len(set(names))
    assert all(flag.summary for flag in FLAGS)
