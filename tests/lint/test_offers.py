"""A fix is tried before lint offers it: it removes its finding and brings no error."""

import json
from pathlib import Path

import pytest

from ascend_recipes.cli.main import main
from ascend_recipes.errors import Finding, Severity
from ascend_recipes.lint.offers import hold_in

HYBRID = (
    "vllm serve Eco-Tech/Qwen3.5-27B-w8a8-mtp --quantization ascend --tensor-parallel-size 2 "
    "--max-model-len 8192 --max-num-seqs 16 --enable-prefix-caching {0}\n"
)
"""States are kept at ends of blocks; blocks of 1536 tokens then want steps as large."""


def said(id, fix):
    return Finding(id=id, severity=Severity.ERROR, at=id, message="told", fix=fix)


class Meaning:
    """A recipe whose field `a.one` must be 2, and then `a.two` too; it knows no number above 2."""

    def everything(self, added=()):
        values = dict(word.split("=") for word in added)
        if "3" in values.values():
            return None
        if values.get("a.one") != "2":
            return [said("a.one", "a.one=2")]
        return [said("a.two", "a.two=2")] if values.get("a.two") != "2" else []


@pytest.mark.parametrize(
    ("fix", "offered"),
    [
        ("a.one=2 a.two=2", "a.one=2 a.two=2"),
        ("a.one=2", "a.one=2 a.two=2"),
        ("a.two=2", ""),
        ("a.one=3", ""),
        ("ask somebody", "ask somebody"),
        ("", ""),
    ],
)
def test_what_a_rule_proposes_is_offered_as_far_as_it_holds(fix, offered):
    (item,) = hold_in(Meaning(), [said("a.one", fix)])
    assert item.fix == offered


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = "--mamba-cache-mode none --max-num-batched-tokens 512"
    (tmp_path / "run.sh").write_text(HYBRID.format(wrong))


def fixes(capsys, *words):
    main([*words, "--json"])
    document = json.loads(capsys.readouterr().out)
    return {item["id"]: item.get("fix", "") for item in document["findings"]}


def test_lint_offers_what_else_must_change(script, capsys):
    fix = fixes(capsys, "lint", "run.sh")["cache.state_mode"]
    assert fix == "--mamba-cache-mode align --max-num-batched-tokens 1536"
    Path("typed.sh").write_text(HYBRID.format(fix))
    assert fixes(capsys, "lint", "typed.sh") == {}


def test_import_offers_what_else_must_change(script, capsys):
    fix = fixes(capsys, "import", "run.sh", "hardware=a2")["cache.state_mode"]
    assert fix == "cache.state_mode=align scheduler.max_num_batched_tokens=1536"
