"""Logs as they are read: order, places, counts, and files that are no logs."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.cli.main import main
from ascend_recipes.errors import Finding
from ascend_recipes.logs import decode
from ascend_recipes.logs.advice import RecipeAtHand, log_findings
from ascend_recipes.logs.decode import decode_log
from ascend_recipes.logs.patterns import search_terms
from ascend_recipes.registry.load import load_registry

TERMS = search_terms(load_registry().log_messages)
WINDOW = "[ERROR] MoeDistributeDispatchV2 tiling failed"
STREAMS = "error code is 207008"
WAITED = "EI0002: Notify register times out"
DEAD = "RuntimeError: Engine core initialization failed."


def decoded(text: str | bytes):
    return decode_log(io.BytesIO(text.encode() if isinstance(text, str) else text), TERMS)


def test_the_first_cause_comes_before_what_follows_from_it():
    text = "\n".join(("x", WAITED, DEAD, STREAMS, WINDOW, STREAMS))
    matches = decoded(text).matches
    assert [(m.name, m.first_line, m.count) for m in matches] == [
        ("stream_resources", 4, 2),
        ("dispatch_window", 5, 1),
        ("hccl_notify_timeout", 2, 1),
        ("engine_dead", 3, 1),
    ]


def test_warnings_stand_behind_errors():
    matches = decoded(f"Hybrid KV cache manager is disabled\n{WINDOW}\n").matches
    assert [match.name for match in matches] == ["dispatch_window", "hybrid_manager_off"]


def test_a_general_message_yields_to_a_special_one_of_its_line_only():
    line = "EZ9999: numHeads / numKvHeads = 8, MLA only support {32, 64, 128}"
    assert [match.name for match in decoded(line).matches] == ["latent_heads"]
    both = decoded(f"{line}\nEZ9999: Inner Error!").matches
    assert [match.name for match in both] == ["latent_heads", "operator_arguments"]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lines=st.lists(
        st.sampled_from(["", "plain words", WAITED, STREAMS, "x" * 90, "é" * 30]), max_size=40
    ),
    chunk=st.integers(1, 200),
    ended=st.booleans(),
)
def test_places_and_counts_do_not_depend_on_the_pieces(lines, chunk, ended):
    text = "\n".join(lines) + ("\n" if ended and lines else "")
    before = decode._CHUNK
    decode._CHUNK = chunk
    try:
        result = decoded(text)
    finally:
        decode._CHUNK = before
    for name, line in (("hccl_notify_timeout", WAITED), ("stream_resources", STREAMS)):
        places = [number for number, item in enumerate(lines, start=1) if item == line]
        match = next((item for item in result.matches if item.name == name), None)
        assert ((match.first_line, match.count) if match else (0, 0)) == (
            (places[0], len(places)) if places else (0, 0)
        )
    assert result.lines == len(text.split("\n")) - text.endswith("\n") if text else True
    assert result.size == len(text.encode())


def test_a_healthy_log_holds_no_errors():
    """Lines of starts and serving as vLLM writes them, with the warnings that mean nothing."""
    matches = decoded(Path(__file__).with_name("healthy.txt").read_bytes()).matches
    assert [(item.name, item.message.severity) for item in matches] == [("few_open_files", "warn")]


def test_a_progress_bar_does_not_hide_what_follows_it():
    match = decoded(b"10%|#| 1/9\r20%|##| 2/9\r" + STREAMS.encode()).matches[0]
    assert match.excerpt == STREAMS


def test_what_is_shown_of_a_line_is_short_and_plain():
    match = decoded(b"\x1b[31m" + STREAMS.encode() + b"\xff" * 5000 + b"\r\n").matches[0]
    assert match.excerpt.startswith(STREAMS)
    assert len(match.excerpt) <= 240


def test_a_line_without_an_end_is_read_too():
    text = "y" * 3_000_000 + " " + STREAMS
    assert [match.name for match in decoded(text).matches] == ["stream_resources"]


def test_without_a_known_line_the_first_error_and_the_last_words_are_told():
    (item,) = log_findings(decoded("a\n[ERROR] strange\nbye\n"), "x.log", None)
    assert (item.id, item.severity) == ("log.nothing_known", "info")
    assert "[ERROR] strange" in item.why
    assert "bye" in item.why
    assert "[ERROR] strange" in item.why_zh


def test_an_unknown_exception_comes_before_what_only_follows():
    text = f"ok\n(EngineCore pid=1) ERROR x\n[core.py:1] AttributeError: no such thing\n{DEAD}\n"
    first, second = log_findings(decoded(text), "x.log", None)
    assert (first.id, first.severity, str(first.source)) == (
        "log.unknown_error",
        "error",
        "x.log:3",
    )
    assert "AttributeError: no such thing" in first.message
    assert second.id == "log.engine_dead"


def test_a_known_cause_needs_no_unknown_one():
    text = f"KeyError: 'a'\n{WINDOW}\n{DEAD}\n"
    found = log_findings(decoded(text), "x.log", None)
    assert [item.id for item in found] == ["log.dispatch_window", "log.engine_dead"]


def test_an_exception_beats_a_line_of_level_error():
    result = decoded("[ERROR] first\nmore\nValueError: second\nTypeError: third\n")
    assert (result.unknown.line, result.unknown.excerpt) == (3, "ValueError: second")


@pytest.mark.parametrize(
    ("content", "id", "code"),
    [
        (b"", "log.empty", 0),
        (b"\x7fELF\0\0", "log.binary", 3),
        (b"all is well\n", "log.nothing_known", 0),
    ],
)
def test_files_that_say_nothing(tmp_path, capsys, content, id, code):
    log = tmp_path / "a.log"
    log.write_bytes(content)
    assert main(["doctor", "--log", str(log)]) == code
    assert id in capsys.readouterr().out


@pytest.mark.parametrize("name", ["absent.log", "."])
def test_files_that_are_not_there(tmp_path, capsys, name):
    assert main(["doctor", "--log", str(tmp_path / name)]) == 2
    assert "log.unreadable" in capsys.readouterr().err


def test_log_goes_with_doctor(capsys):
    assert main(["check", "recipe=deepseek_v4_a3", "--log", "x"]) == 2
    assert "doctor --log" in capsys.readouterr().err


def test_a_log_of_standard_input(monkeypatch, capsys):
    class Stdin:
        buffer = io.BytesIO(f"{STREAMS}\n".encode())

    monkeypatch.setattr("sys.stdin", Stdin())
    assert main(["doctor", "--lang", "zh", "--log", "-"]) == 3
    out = capsys.readouterr().out
    assert "stream" in out
    assert "第 1 行，共 1 次" in out


def test_the_document_has_places_findings_and_fixes(tmp_path, capsys):
    log = tmp_path / "a.log"
    log.write_text(f"x\n{WINDOW}\n{DEAD}\n")
    assert main(["doctor", "--json", "--log", str(log)]) == 3
    body = json.loads(capsys.readouterr().out)
    assert body["lines"] == 3
    assert body["matches"][0] == {
        "id": "log.dispatch_window",
        "first_line": 2,
        "count": 1,
        "consequence": False,
        "excerpt": WINDOW,
    }
    assert body["findings"][0]["fix"] == "env.HCCL_BUFFSIZE=<more>"
    assert body["findings"][0]["source"] == f"{log}:2"
    assert [item["id"] for item in body["findings"]] == ["log.dispatch_window", "log.engine_dead"]


def test_with_a_recipe_the_fix_has_its_values(tmp_path, capsys):
    log = tmp_path / "a.log"
    log.write_text(f"{WINDOW}\n{STREAMS}\n")
    assert main(["doctor", "recipe=deepseek_v4_a3", "--json", "--log", str(log)]) == 3
    window, streams = json.loads(capsys.readouterr().out)["findings"]
    # The recipe sets 1024; its graphs are of decode steps already.
    assert window["fix"] == "env.HCCL_BUFFSIZE=2048"
    assert "env.HCCL_BUFFSIZE=1024" in window["why"]
    assert "env.HCCL_BUFFSIZE=1024" in window["why_zh"]
    assert streams["fix"] == "graph=none"


def test_a_fix_that_the_rules_refuse_is_not_offered():
    tree = {"graph": {"kind": "piecewise"}}
    recipe = RecipeAtHand(tree, accepts=lambda word: word == "graph=none")
    (item,) = log_findings(decoded(STREAMS), "x", recipe)
    assert item.fix == "graph=none"


def test_numbers_are_changed_by_their_kind():
    tree = {"cache": {"memory_fraction": 0.9}, "scheduler": {"max_num_batched_tokens": 1048577}}
    (item,) = log_findings(decoded("NPU out of memory"), "x", RecipeAtHand(tree))
    assert item.fix == "scheduler.max_num_batched_tokens=524288 or cache.memory_fraction=0.855"


def test_what_the_rules_foresaw_is_said():
    foreseen = Finding(id="moe.hccl_buffsize", message="too small", message_zh="太小")
    unrelated = Finding(id="graph.cap_512", message="elsewhere")
    recipe = RecipeAtHand({"env": {}}, (foreseen, unrelated))
    (item,) = log_findings(decoded(WINDOW), "x", recipe)
    assert "moe.hccl_buffsize: too small" in item.why
    assert "moe.hccl_buffsize：太小" in item.why_zh
    assert "elsewhere" not in item.why
    # Where the recipe states none, the runtime's own 200 MB count.
    assert item.fix == "env.HCCL_BUFFSIZE=400"
