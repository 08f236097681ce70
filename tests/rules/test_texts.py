"""The text table: two languages that agree, exactly the ids that code tells, nothing untold."""

import ast
import errno
import os
import re
import string

import pytest

from ascend_recipes import findings
from ascend_recipes.cli.main import main
from ascend_recipes.cli.pipeline import planned_launch
from ascend_recipes.cli.render import render_finding
from ascend_recipes.errors import ExitCode, Severity
from ascend_recipes.findings import (
    Phrase,
    chosen_language,
    finding,
    message_of,
    phrase,
    read_back,
    recipe_error,
)
from ascend_recipes.paths import PACKAGE
from ascend_recipes.registry.load import load_registry
from tests.rules.english import english_in
from tests.rules.text_calls import PHRASES as PHRASE_CALLS
from tests.rules.text_calls import choices, name_of, strings_of, text_calls

ROWS = load_registry().findings
TEXTS = {
    f"{family}.{name}": text for family in ROWS for name, text in ROWS[family].findings.items()
}
PHRASES = {
    f"{family}.{name}": text for family in ROWS for name, text in ROWS[family].phrases.items()
}
CALLS = list(text_calls())
TOLD = [call for call in CALLS if call.function not in PHRASE_CALLS]
SPOKEN = [call for call in CALLS if call.function in PHRASE_CALLS]

CHOSEN_AT_RUN_TIME = {
    "commands/losses.py": {
        "transpose.lost_sequences",
        "transpose.lost_dies",
        "transpose.lost_cache",
        "transpose.lost_context",
        "transpose.lost_step",
    },
    "launch/audit.py": {
        "effective.attention_backends",
        "effective.block_size",
        "effective.capture_sizes",
        "effective.graph_mode",
        "effective.prefix_caching",
        "effective.prefix_retention",
        "effective.state_mode",
    },
    "launch/preflight.py": {
        "environment.no_package",
        "environment.no_torch_npu",
        "environment.no_vllm",
    },
    "rules/disaggregation.py": {
        "pd.block_size",
        "pd.cache_dtype",
        "pd.index_dtype",
        "pd.state_dtype",
    },
    "surface/verdict.py": set(),
}
"""Modules that choose among ids of their own; a verdict's id stands where the verdict is made."""

SPOKEN_AT_RUN_TIME = {
    "memory/headers.py": {
        "checkpoint.cut_short",
        "checkpoint.header_too_long",
        "checkpoint.header_unreadable",
    },
    "schema/complaints.py": {
        "schema.bool_type",
        "schema.float_type",
        "schema.greater_than",
        "schema.greater_than_equal",
        "schema.int_type",
        "schema.less_than",
        "schema.less_than_equal",
        "schema.literal_error",
        "schema.mapping_type",
        "schema.pattern",
        "schema.string_type",
        "schema.too_long",
        "schema.too_short",
        "schema.tuple_type",
        "schema.union_tag_invalid",
    },
}


def placeholders(text) -> set[str]:
    if text is None:
        return set()
    return {name for _, name, _, _ in string.Formatter().parse(text.en) if name}


def is_chinese(text: str) -> bool:
    return any("\u4e00" <= letter <= "\u9fff" for letter in text)


def parts(id: str):
    text = TEXTS.get(id) or PHRASES[id]
    if id in TEXTS:
        return [part for part in (text.title, text.message, text.why, text.fix) if part]
    return [text]


@pytest.mark.parametrize("id", [*sorted(TEXTS), *(f"{id} (phrase)" for id in sorted(PHRASES))])
def test_languages_agree(id):
    texts = [PHRASES[id.removesuffix(" (phrase)")]] if "(phrase)" in id else parts(id)
    for part in texts:
        english, chinese = (set(re.findall(r"{[^{}]+}", text)) for text in (part.en, part.zh))
        assert english == chinese
        written = re.sub(r"\{.*?\}|`.*?`", "", part.en)
        assert is_chinese(part.zh) or not english_in(written)
        assert not is_chinese(part.en)
        assert not english_in(part.zh)


@pytest.mark.parametrize("call", TOLD, ids=lambda call: call.place)
def test_code_gives_what_the_texts_name(call):
    for id in call.ids:
        text = TEXTS[id]
        always = placeholders(text.message) | placeholders(text.why)
        if call.is_whole:
            assert always <= call.given <= always | placeholders(text.fix)
            assert call.has_fix or call.given >= placeholders(text.fix)


@pytest.mark.parametrize("call", SPOKEN, ids=lambda call: call.place)
def test_code_gives_what_the_phrases_name(call):
    for id in call.ids:
        if call.is_whole:
            assert call.given == placeholders(PHRASES[id])


@pytest.mark.parametrize(
    ("calls", "chosen", "table"),
    [(TOLD, CHOSEN_AT_RUN_TIME, TEXTS), (SPOKEN, SPOKEN_AT_RUN_TIME, PHRASES)],
    ids=["findings", "phrases"],
)
def test_texts_are_those_that_code_tells(calls, chosen, table):
    """No row that nothing tells, and no id, chosen at run time or not, without a row."""
    assert {call.file for call in calls if not call.ids} == set(chosen)
    for file, ids in chosen.items():
        strings = {text.replace(" ", "_") for text in strings_of(file)}
        assert {id for id in ids if not {id, id.partition(".")[2]} & strings} == set()
    told = {id for call in calls for id in call.ids} | set().union(*chosen.values())
    assert told == set(table)


def test_findings_are_made_from_a_table_only():
    """`doctor` tells what lines of logs mean from rows of its own, in both languages too."""
    made = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and name_of(node) == "Finding"
    }
    assert made == {"findings.py", "logs/advice.py"}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.place)
def test_no_english_is_handed_over_as_a_value(call):
    """Sentences and parts of sentences stand in the table, not in the values of a call."""
    for value in call.values:
        for node in ast.walk(value):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not english_in(node.value), node.value
                assert not re.search(r"\b(did you mean|or|and|not|is|are)\b ", node.value)


@pytest.mark.parametrize("id", sorted(TEXTS))
def test_chinese_has_no_english_sentence_left(id):
    text = TEXTS[id]
    names = set().union(*(placeholders(part) for part in (text.message, text.why, text.fix)))
    shown = render_finding(finding(id, **dict.fromkeys(names, "X")), "zh").plain
    assert not english_in(shown.replace(text.evidence or "\0", ""))


def test_a_finding_carries_both_languages_and_its_severity():
    made = finding("parallel.no_experts", at="parallel.ep", fix="parallel.ep=false", model="m")
    assert made.severity is Severity.ERROR
    assert "m is dense" in made.message
    assert "m" in made.message_zh
    assert made.to_json()["message_zh"] == made.message_zh
    assert (made.fix, made.fix_zh) == ("parallel.ep=false", "")


def test_a_remedy_of_the_table_has_two_languages():
    made = finding("init.exists", path="a.yaml")
    assert "name another recipe" in made.fix
    assert "换一个配方名" in made.fix_zh
    assert made.to_json()["fix_zh"] == made.fix_zh
    assert finding("init.exists", path="a.yaml", fix="").fix == ""


def test_phrases_are_told_in_the_language_around_them():
    told = finding("receipt.missing", who=phrase("receipt.worker", rank=3))
    assert told.message.startswith("the worker of rank 3 did not report")
    assert told.message_zh.startswith("rank 3 的工作进程没有上报")
    several = phrase("schema.not", said=[phrase("schema.int_type"), "x"], given=(1, 2.5))
    assert several == Phrase(
        "must be a whole number, x, not 1, 2.5", "必须是整数、x，而不是 1、2.5"
    )
    assert str(several) == several.en


def test_an_error_of_one_finding():
    error = recipe_error("init.exists", exit_code=ExitCode.USAGE, at="x", path="a.yaml")
    assert (error.exit_code, error.findings[0].at) == (ExitCode.USAGE, "x")
    assert message_of(error.findings[0]).zh == error.findings[0].message_zh


RECIPE = "recipe=deepseek_v4_a3"
WRONG = (
    ("plam",),
    ("plan", RECIPE, "--jsn"),
    ("plan", RECIPE, "--node"),
    ("generate", RECIPE),
    ("plan", "recipe=nobody"),
    ("plan",),
    ("plan", RECIPE, "attention=nobody"),
    ("plan", RECIPE, "model=nobody"),
    ("plan", RECIPE, "parallel.tensor=2"),
    ("plan", RECIPE, "cache.block_size=x"),
    ("plan", RECIPE, "cache.memory_fraction=2.5", "parallel.tp=0"),
    ("plan", RECIPE, "env.MY_TOKEN=x"),
    ("plan", RECIPE, "parallel.tp=2,4"),
    ("plan", RECIPE, "parallel.tp=2", "parallel.tp=3"),
    ("plan", RECIPE, "parallel.tp=7"),
    ("plan", RECIPE, "x=[", "y"),
    ("check", RECIPE, "drafter=dspark"),
    ("check", RECIPE, "checkpoint.variant=nobody"),
    ("check", RECIPE, "runtime=vllm_ascend", "runtime.version=9.9.9"),
    ("check", RECIPE, "runtime=vllm_ascend", "extra_args.no_such_thing=1"),
    ("check", RECIPE, "--installed", "/no/such/file"),
    ("serve", RECIPE, "device=npu"),
    ("serve", RECIPE, "--multirun"),
    ("explain", "parallel.tensor", RECIPE),
    ("diff", "deepseek_v4_a3"),
    ("init", "x"),
    ("init", "x", "model=kimi_k3", "hardware=310p"),
    ("import",),
    ("import", "/no/such/file"),
    ("lint",),
    ("lint", "/no/such/file"),
    ("patches", "nobody"),
    ("patches", "show", "nobody"),
    ("schema", "nobody"),
    ("completion", "tcsh"),
    ("status", "nobody"),
    ("fix", "a", "b", RECIPE, "parallel.tp=7", "--write"),
)


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_the_command_line_speaks_chinese(words, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("ASCEND_RECIPES_CACHE", str(tmp_path))
    assert main([*words, "--lang", "zh"]) != 0
    said = capsys.readouterr()
    shown = [line for line in (said.out + said.err).splitlines() if not _cites(line)]
    assert any(map(is_chinese, shown))
    assert english_in("\n".join(shown).replace(os.strerror(errno.ENOENT), "")) == []


def _cites(line: str) -> bool:
    """Evidence is called what it is called."""
    return line.strip().startswith("依据")


def test_a_plan_without_findings_reads_no_texts():
    findings._family.cache_clear()
    planned_launch(["recipe=qwen3_5_27b_a2", "accept_unverified=true"], ())
    assert findings._family.cache_info().currsize == 0


def test_a_finding_reads_the_texts_of_its_family_only():
    findings._family.cache_clear()
    finding("init.exists", path="a.yaml")
    finding("init.no_backend", model="m", hardware="h")
    assert findings._family.cache_info().misses == 1


@pytest.fixture
def damaged(monkeypatch, tmp_path):
    """A checkout whose text table cannot be read."""
    folder = tmp_path / "registry" / "findings"
    folder.mkdir(parents=True)
    (folder / "usage.yaml").write_text("findings: [unclosed", encoding="utf-8")
    (folder / "plan.yaml").write_bytes(b"\xff\xfe")
    (folder / "init.yaml").write_text("nothing", encoding="utf-8")
    monkeypatch.setattr("ascend_recipes.paths.data_root", lambda: tmp_path)
    findings._family.cache_clear()
    yield
    findings._family.cache_clear()


@pytest.mark.parametrize("family", ["usage", "plan", "init", "file"])
def test_findings_survive_a_table_that_cannot_be_read(damaged, family):
    made = finding(f"{family}.something", path="{a}", reason="denied")
    assert made.severity is Severity.ERROR
    for text in (made.message, made.message_zh):
        assert f"{family}.something (path={{a}}; reason=denied)" in text
        assert f"registry/findings/{family}.yaml" in text
    assert "reason=denied" in phrase(f"{family}.part", reason="denied").zh


def test_a_finding_of_another_process_is_told_in_chinese_too():
    said = finding("usage.stray_word", word="it's")
    read = read_back(said.id, said.message)
    assert (read.message, read.message_zh) == (said.message, said.message_zh)
    unknown = read_back("usage.stray_word", "another sentence")
    assert (unknown.message, unknown.message_zh) == ("another sentence", "")
    assert read_back("nobody.knows", "it").message == "it"


@pytest.mark.parametrize(
    ("value", "language"), [("zh", "zh"), ("zh_CN.UTF-8", "zh"), ("en", "en"), ("", "en")]
)
def test_language_is_chosen_by_the_environment(value, language):
    assert chosen_language({"ASCEND_RECIPES_LANG": value}) == language


def test_the_inventory_reads_choices():
    (choice,) = ast.parse("f('a.b' if x else ('c.d' if y else 'e.f'))").body
    assert choices(choice.value.args[0]) == ["a.b", "c.d", "e.f"]
    assert choices(ast.parse("name").body[0].value) == []
