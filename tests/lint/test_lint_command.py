"""`ascend-run lint`: exit codes, and documents that hold to their schemas."""

import json
from importlib.metadata import distribution
from pathlib import Path

import jsonschema
import pytest
import yaml

from ascend_recipes.cli.main import main
from tests.documents import conforming

ROOT = Path(__file__).parents[2]
GOOD = "vllm serve Qwen/Qwen3.5-27B --tensor-parallel-size 4 --max-model-len 4096\n"


def official_sarif_schema():
    """The text of OASIS, out of the cache that the package `schemastore` ships."""
    (cache,) = [file for file in distribution("schemastore").files if file.name == "cache.sqlite"]
    content = Path(cache.locate()).read_bytes()
    key = b'"title": "Static Analysis Results Format (SARIF) Version 2.1.0 JSON Schema"'
    import sqlite3

    with sqlite3.connect(f"file:{cache.locate()}?mode=ro", uri=True) as database:
        rows = [value for (value,) in database.execute("select value from responses")]
    database.close()
    assert key in content
    (row,) = [value for value in rows if key in value]
    text = row[row.index(b"{\r\n") :].decode("utf-8", "replace")
    return json.JSONDecoder().raw_decode(text)[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good.sh").write_text(GOOD)
    Path("warn.sh").write_text(GOOD.rstrip() + " --dtype float16 --dtype bfloat16\n")
    Path("错误 error.sh").write_text(GOOD.rstrip() + " \\\n  --no-such-flag --dtype a --dtype b\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["good.sh"], 0),
        (["warn.sh"], 0),
        (["warn.sh", "--strict"], 3),
        (["good.sh", "错误 error.sh"], 3),
        (["."], 3),
        ([], 2),
        (["missing.sh"], 2),
        (["good.sh", "--runtime-version", "9.9"], 2),
        (["good.sh", "--format", "xml"], 2),
    ],
)
def test_exit_codes(folder, words, code):
    assert main(["lint", *words]) == code


def test_a_version_without_record_names_the_recorded_ones(folder, capsys):
    main(["lint", "good.sh", "--runtime-version", "9.9"])
    told = capsys.readouterr().err
    assert "version.unrecorded" in told
    assert all(version in told for version in ("9.9", "0.23.0", "main-2026-08", "0.27.1"))


def test_people_see_the_place_first_and_the_sum_last(folder, capsys):
    main(["lint", "."])
    out, err = capsys.readouterr()
    assert "错误 error.sh:2\nerror  cli.unknown_flag" in out
    assert "3 file(s), 3 server command(s) for main-2026-08: " in err


def test_chinese(folder, capsys):
    main(["lint", "warn.sh", "--lang", "zh"])
    assert "只有最后一个生效" in capsys.readouterr().out


def test_json_holds_to_its_schema(folder, capsys):
    assert main(["lint", ".", "--format", "json"]) == 3
    document = conforming(capsys.readouterr().out)
    assert {item["id"] for item in document["findings"]} >= {"cli.unknown_flag"}
    assert [item["model"] for item in document["commands"]] == ["Qwen/Qwen3.5-27B"] * 3
    main(["lint", ".", "--json"])
    assert json.loads(capsys.readouterr().out) == document


@pytest.mark.parametrize("path", ["good.sh", "."])
def test_sarif_holds_to_the_official_schema(folder, capsys, path):
    main(["lint", path, "--format", "sarif"])
    log = json.loads(capsys.readouterr().out)
    schema = official_sarif_schema()
    jsonschema.Draft7Validator(schema).validate(log)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        location = result["locations"][0]["physicalLocation"]
        assert location["region"]["startLine"] in (1, 2)
        assert " " not in location["artifactLocation"]["uri"]
    assert bool(run["results"]) == (path == ".")
    del log["runs"][0]["tool"]["driver"]["name"]
    assert not jsonschema.Draft7Validator(schema).is_valid(log)


def test_hooks_name_commands_that_exist():
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert [hook["id"] for hook in hooks] == ["ascend-lint", "ascend-check"]
    from ascend_recipes.cli.commands import COMMANDS

    for hook in hooks:
        program, command, *_ = hook["entry"].split()
        assert (program, command in COMMANDS) == ("ascend-run", True)
