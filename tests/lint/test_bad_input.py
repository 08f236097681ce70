"""Whatever stands in a file: findings or silence, quickly, and never a traceback."""

import json
import os
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.cli.main import main
from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.lint.files import collect_files, read_file, read_text
from ascend_recipes.lint.judge import judge_reading, lint_paths
from ascend_recipes.surface.load import load_surface

VERSION = "main-2026-08"


def lint(path):
    return lint_paths([path], VERSION)


@pytest.mark.parametrize("suffix", [".sh", ".md", ".yaml", ""])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n\n",
        b"\xff\xfe\x00\x01vllm serve m\x00" * 100,
        b"vllm serve \xff\xfe m --port 1\n",
        b"\xef\xbb\xbfvllm serve m --port 1\r\n",
        b"vllm serve",
        b"vllm serve --config x.yaml",
        b"vllm serve m --",
        b"vllm serve m '",
        b'vllm serve m --additional-config \'{"a": \n',
        b"```bash\nvllm serve m\n",
        b"a: [vllm serve\n",
        b"vllm serve m: {{ template }}\n  bad: [\n",
        b"vllm serve m --unknown-plugin.flag x --other-plugin\n",
    ],
)
def test_odd_contents(tmp_path, suffix, content):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    report = lint(path)
    assert report.files == 1
    assert all(item.source.origin == str(path) for item in report.findings)


def test_binary_files_hold_no_commands(tmp_path):
    path = tmp_path / "a.sh"
    path.write_bytes(b"\x7fELF\0\0vllm serve m\n")
    assert lint(path).commands == []


def test_a_byte_order_mark_and_carriage_returns_hide_nothing(tmp_path):
    path = tmp_path / "a.sh"
    path.write_bytes(b"\xef\xbb\xbfvllm serve m \\\r\n  --port 1\r\n")
    (judged,) = lint(path).commands
    assert judged.command.texts == ("vllm", "serve", "m", "--port", "1")


@pytest.mark.parametrize("suffix", [".sh", ".md", ".yaml"])
def test_ten_megabytes_take_seconds_and_bounded_memory(tmp_path, suffix):
    path = tmp_path / f"big{suffix}"
    line = "echo 'some text' \"and more\" $VALUE --with flags  # and a comment\n"
    body = {
        ".sh": line,
        ".md": f"```bash\n{line}```\n",
        ".yaml": "- key: 'a value of no interest, in quotes'\n",
    }[suffix]
    path.write_text(body * (10_000_000 // len(body)) + "# vllm\n")
    assert path.stat().st_size > 9_900_000
    begin = time.process_time()
    assert lint(path).commands == []
    assert time.process_time() - begin < 5


def test_memory_stays_bounded(tmp_path):
    path = tmp_path / "big.sh"
    path.write_text("A=$A$A$A\n" * 2000 + "vllm serve $A\n")
    tracemalloc.start()
    lint(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 * 2**20


def test_values_that_double_end_somewhere():
    reading = read_text("x.sh", "A=0123456789\n" + "A=$A$A\n" * 60 + "vllm serve $A\n", ".sh")
    assert len(reading.commands[0].argv[2].text) < 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m " + "${A:-" * 3000 + "}" * 3000 + "\n",
        "vllm serve m " + "$(" * 3000 + ")" * 3000 + "\n",
        "vllm serve m " + '"$(' * 500 + "\n",
        "bash -c 'vllm serve m; " * 50 + "\n",
        "cat <<A\n" * 500 + "vllm serve m\n",
        "if " * 3000 + "vllm serve m\n",
        "(" * 3000 + "vllm serve m" + ")" * 3000,
    ],
)
def test_deep_nesting_in_shell(text):
    read_text("x.sh", text, ".sh")


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve: " + "[" * 5000 + "]" * 5000,
        "vllm serve: " + "{a: " * 900 + "1" + "}" * 900,
        "".join(f"{'  ' * depth}a:\n" for depth in range(400)) + "# vllm serve",
        "a0: &a0 [vllm serve m]\n"
        + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)),
        "a: &a {b: *a, run: vllm serve m}\n",
        "<<: [1, 2]\nrun: vllm serve m\n",
        "env: [1, {name: A}, B=2]\nserver_cmd: {a: b}\ntemplates: vllm serve m\n",
        "config: [1]\nnode_index: [2]\nserver_cmd_template: [[1], --a]\nx: vllm serve m\n",
    ],
)
def test_odd_yaml(text):
    begin = time.process_time()
    reading = read_text("x.yaml", text, ".yaml")
    assert time.process_time() - begin < 2
    assert len(reading.commands) <= 2


def test_a_file_that_is_no_yaml_says_where(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("ok: 1\nrun: vllm serve m\nbad: [\n")
    (found,) = [item for item in lint(path).findings if item.id == "lint.broken_yaml"]
    assert found.source.line >= 3


def test_paths_that_do_not_exist_are_named_all_at_once(tmp_path):
    with pytest.raises(RecipeError) as caught:
        collect_files([tmp_path / "a", tmp_path / "b"])
    assert caught.value.exit_code is ExitCode.USAGE
    assert [item.id for item in caught.value.findings] == ["lint.no_such_path"] * 2


def test_what_is_no_file_cannot_be_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.sh")
    report = lint(tmp_path)
    assert [item.id for item in report.findings] == ["lint.unreadable"]


def test_an_unreadable_file_is_a_finding_and_the_others_are_read(tmp_path, monkeypatch):
    from pathlib import Path

    (tmp_path / "a.sh").write_text("vllm serve m\n")
    (tmp_path / "b.sh").write_text("vllm serve n\n")
    real = Path.read_bytes

    def read(path):
        if path.name == "a.sh":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    report = lint(tmp_path)
    assert [item.message for item in report.findings] == [f"{tmp_path / 'a.sh'}: Permission denied"]
    assert [item.command.texts[2] for item in report.commands] == ["n"]


def test_folders_are_searched_for_scripts_pages_and_manifests(tmp_path):
    for name in ("a.sh", "b.md", "c.yml", "d.txt", "sub/e.yaml", ".git/f.sh"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    found = [str(path.relative_to(tmp_path)) for path in collect_files([tmp_path, tmp_path])]
    assert found == ["a.sh", "b.md", "c.yml", "sub/e.yaml"]


def test_the_largest_file_is_bounded(tmp_path):
    path = tmp_path / "a.sh"
    with path.open("wb") as stream:
        stream.truncate(65 * 2**20)
    with pytest.raises(RecipeError) as caught:
        read_file(path)
    assert "64 MiB" in str(caught.value)


PIECES = st.sampled_from(
    [
        *("vllm serve m ", "\n", "```bash\n", "```\n", "- ", "  ", "run: ", "|\n", ">\n", "{", "}"),
        *("--additional-config ", "'{\"a\": 1}' ", '"', "'", "$A ", "${B:-x} ", "A=1 ", "export "),
        *(
            "--flag=",
            "--x.y z ",
            "<<E\n",
            "E\n",
            "\\\n",
            "# ",
            "env: ",
            "server_cmd: ",
            "&a ",
            "*a ",
        ),
        *("bash -c ", "docker run -e ", "[", "]", ", ", ": ", '=== "t"\n', "中", "\t", "\0"),
    ]
)


@given(st.lists(PIECES, max_size=40), st.sampled_from([".sh", ".md", ".yaml"]))
@settings(max_examples=400, deadline=None)
def test_any_mixture_is_judged_without_an_exception(pieces, suffix):
    reading = read_text("x", "".join(pieces), suffix)
    judge_reading("x", reading, load_surface(VERSION), [])


BAD = {
    "binary.sh": (b"\x7fELF\0\0vllm serve m --nope\n", []),
    "plugin.sh": (b"vllm serve m --our-plugin.depth 2 --our-switch\n", ["cli.unknown_flag"] * 2),
    "json.sh": (b"vllm serve m --additional-config '{\"a\": 1,}'\n", ["lint.broken_json"]),
    "quote.sh": (b"vllm serve m --port '80\n", ["lint.broken_text"]),
    "blank.sh": (b"vllm serve m \\ \n  --port 80\n", ["lint.cut_by_blank"]),
    "tree.yaml": (b"run: vllm serve m\nbad: [\n", ["lint.broken_yaml"]),
    "page.md": (b"```bash\nvllm serve m --nope\n", ["cli.unknown_flag"]),
    "large.sh": (
        b"echo text of no interest\n" * 420_000 + b"vllm serve m --nope\n",
        ["cli.unknown_flag"],
    ),
}


def test_the_command_tells_what_is_bad_in_each_file_and_has_no_traceback(tmp_path, capsys):
    for name, (content, _) in BAD.items():
        (tmp_path / name).write_bytes(content)
    assert (tmp_path / "large.sh").stat().st_size > 10_000_000
    assert main(["lint", str(tmp_path), "--format", "json"]) == ExitCode.FINDINGS
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    found = {name: [] for name in BAD}
    for item in json.loads(captured.out)["findings"]:
        name = item["file"].rpartition("/")[2]
        found[name].append(item["id"])
        if name == "large.sh":
            assert item["line"] == 420_001
    assert found == {name: ids for name, (_, ids) in BAD.items()}
