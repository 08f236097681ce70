"""Commands of every kind of file, word by word; each also survives import and rendering."""

import shlex
from pathlib import Path

import pytest
import yaml

from ascend_recipes.lint import find_commands
from ascend_recipes.lint.arguments import split_arguments
from ascend_recipes.lint.files import read_text
from ascend_recipes.lint.round_trip import differences
from ascend_recipes.lint.scalars import entries

SAMPLES = Path(__file__).parent / "samples"
FILES = sorted(path for path in SAMPLES.iterdir() if path.name != "expected.txt")
COMMANDS = [(path.name, item) for path in FILES for item in find_commands(path)]


def written(name, command):
    env = [f"{key}={shlex.quote(word.text)}" for key, word in sorted(command.env.items())]
    words = [" ".join(text.split()) for text in command.texts]
    return f"{name}:{command.line}: {' '.join([*env, shlex.join(words)])}"


def test_every_command_is_found_with_its_words_and_variables():
    expected = (SAMPLES / "expected.txt").read_text(encoding="utf-8").splitlines()
    assert len(expected) >= 30
    assert [written(name, command) for name, command in COMMANDS] == expected


@pytest.mark.parametrize(
    ("name", "command"), COMMANDS, ids=[f"{name}:{item.line}" for name, item in COMMANDS]
)
def test_importing_and_rendering_gives_the_same_arguments(name, command):
    found = differences(command, split_arguments(command), "main-2026-08")
    assert [item for item in found if not item.reason] == []


def test_a_lost_argument_would_be_noticed(monkeypatch):
    from ascend_recipes.rendering import importing

    monkeypatch.setattr(importing._Importer, "_extra", lambda *_: None)
    (command,) = read_text("x.sh", "vllm serve Qwen/Qwen3.5-27B --max-logprobs 7\n", ".sh").commands
    found = differences(command, split_arguments(command), "main-2026-08")
    assert [item.name for item in found if not item.reason] == ["--max-logprobs"]


def only(text, suffix=".sh"):
    (command,) = read_text("x", text, suffix).commands
    return command


@pytest.mark.parametrize(
    "text",
    [
        "echo vllm serve m --port 1",
        "# vllm serve m --port 1",
        "pgrep -f 'vllm serve'",
        "grep 'vllm serve m' log",
        "vllm bench serve --model m",
        "vllm --version",
        "pip install vllm serve",
        "x='vllm serve m --port 1'",
        "INFO: starting vllm serve m --port 1",
    ],
)
def test_what_only_speaks_of_a_command_is_none(text):
    assert read_text("x.sh", text, ".sh").commands == ()


def test_a_variable_of_two_branches_is_unknown_and_of_one_is_known():
    text = "if x; then A=1; B=2; else A=3; fi\nvllm serve m --max-num-seqs $A --block-size $B\n"
    command = only(text)
    assert command.texts[2:] == ("m", "--max-num-seqs", "$A", "--block-size", "2")
    assert command.unresolved == ("A",)


def test_loops_and_reads_leave_variables_unknown():
    command = only("A=1\nfor A in 1 2; do\nread B\nvllm serve m --port $A --host $B\ndone\n")
    assert command.unresolved == ("A", "B")


def test_exports_reach_later_commands_and_own_variables_only_their_command():
    text = "A=1\nexport B=2 C\nD=4 vllm serve m\nunset B\nvllm serve n\n"
    first, second = read_text("x.sh", text, ".sh").commands
    assert {key: word.text for key, word in first.env.items()} == {"B": "2", "C": "C", "D": "4"}
    assert set(second.env) == {"C"}


@pytest.mark.parametrize(
    ("tail", "id", "line"),
    [
        ("--a 1 \\ \n  --b 2\n", "lint.cut_by_blank", 2),
        ("--a 1 \\\n  # why\n  --b 2\n", "lint.cut_by_comment", 3),
        ("--a 1\n  --b 2\n", "lint.cut_by_line", 2),
        ("--a 1 \\\n\n  --b 2\n", "lint.cut_by_line", 3),
    ],
)
def test_flags_behind_a_broken_continuation_are_kept_and_reported(tail, id, line):
    command = only(f"vllm serve m {tail}")
    assert command.texts == ("vllm", "serve", "m", "--a", "1", "--b", "2")
    assert [(item.id, item.source.line) for item in command.findings] == [(id, line)]


def test_later_flags_of_a_cut_command_belong_to_it_and_are_told_once():
    command = only("vllm serve m\n--a 1\n--b 2\necho done\n--c 3\n")
    assert command.texts[3:] == ("--a", "1", "--b", "2")
    assert len(command.findings) == 1


def test_an_unterminated_quote_of_a_command_is_reported_where_it_begins():
    text = "vllm serve m \\\n  --compilation-config '{}\nvllm serve n\n"
    first, second = read_text("x.sh", text, ".sh").commands
    assert (second.texts[2], second.findings) == ("n", ())
    (finding,) = first.findings
    assert (finding.id, finding.source.line) == ("lint.broken_text", 2)


def test_variables_of_earlier_blocks_of_a_page_are_known_where_blocks_agree():
    text = (
        "```bash\nM=one\nN=1\n```\n```bash\nN=2\n```\n```bash\nvllm serve $M --block-size $N\n```\n"
    )
    command = only(text, ".md")
    assert command.texts[2:] == ("one", "--block-size", "$N")


def test_places_in_indented_fences_are_those_of_the_file():
    text = "- item\n\n  ```sh\n  vllm serve m \\\n    --a 1\n  ```\n"
    word = only(text, ".md").argv[3]
    assert (word.text, word.place().line, word.place().column) == ("--a", 5, 5)


def test_places_in_folded_and_escaped_scalars_are_those_of_the_file():
    text = 'a: >\n  vllm serve m\n  --a 1\nb:\n  run: "vllm serve m\n    --c \\"x y\\""\n'
    first, second = read_text("x", text, ".yaml").commands
    assert [(word.text, word.line) for word in first.argv[2:]] == [("m", 2), ("--a", 3), ("1", 3)]
    assert [(word.text, word.line) for word in second.argv[3:]] == [("--c", 6), ("x y", 6)]


def test_an_anchor_is_read_once_and_a_merge_gives_its_variables():
    text = "x: &x {env: {A: '1'}, run: vllm serve m}\ny: *x\nz: {<<: *x, other: 1}\n"
    commands = read_text("x", text, ".yaml").commands
    assert [command.env["A"].text for command in commands] == ["1"]


def test_a_merge_inside_a_merge_is_read_and_a_loop_ends():
    text = (
        "common: &common {A: '1', B: '1'}\n"
        "own: &own {<<: *common, B: '2'}\n"
        "envs: {<<: *own, C: '3'}\n"
        "run: vllm serve m\n"
        "loop: &loop {<<: *loop, D: '4'}\n"
    )
    root = yaml.compose(text)
    read = {key: entries(value) for key, value in entries(root).items()}
    values = {key: node.value for key, node in read["envs"].items()}
    assert values == {"A": "1", "B": "2", "C": "3"}
    assert list(read["loop"]) == ["D"]


def test_a_test_configuration_without_the_word_vllm_is_read(tmp_path):
    file = tmp_path / "case.yaml"
    file.write_text("test_cases:\n  - {model: m, server_cmd: [--seed, '1']}\n", encoding="utf-8")
    (command,) = find_commands(file)
    assert command.texts == ("vllm", "serve", "m", "--seed", "1")
