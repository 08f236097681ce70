"""Words of shell text: quotes, continuations, variables, and never an exception."""

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.lint.lexer import Kind, Lexer
from ascend_recipes.lint.shell import ShellReader
from ascend_recipes.lint.source import Place, joined, joined_lines, whole_text
from ascend_recipes.lint.variables import Variables


def words(text, **values):
    reader = ShellReader("x.sh", whole_text(text))
    variables = Variables()
    for name, value in values.items():
        variables.assign(name, tuple(words_of(value)), conditional=False)
    reader.variables = variables
    return [word.text for word in reader.words()]


def words_of(text):
    return ShellReader("x.sh", whole_text(text)).words()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b\tc", ["a", "b", "c"]),
        ("a 'b c' \"d e\"", ["a", "b c", "d e"]),
        ("a'b'\"c\"d", ["abcd"]),
        ("'{\"a\": 1}'", ['{"a": 1}']),
        ('"{\\"a\\": 1}"', ['{"a": 1}']),
        ("a \\\n  b", ["a", "b"]),
        ("a\\\nb", ["ab"]),
        ("'a\\\nb'", ["a\\\nb"]),
        ('"a\\\nb"', ["ab"]),
        ('"a\\nb"', ["a\\nb"]),
        ("a\\ b", ["a b"]),
        ("''", [""]),
        ('"" x', ["", "x"]),
        ("a # comment 'with a quote\nb", ["a", "b"]),
        ("a#b", ["a#b"]),
        ("$'a\\tb\\'c'", ["a\tb'c"]),
        ('$"a b"', ["a b"]),
        ("--a=b --c='d e'", ["--a=b", "--c=d e"]),
        ("a $", ["a", "$"]),
        ("中文 '引号'", ["中文", "引号"]),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$A", ["one"]),
        ("${A}x", ["onex"]),
        ("'$A'", ["$A"]),
        ('"$A $B"', ["one two three"]),
        ("$B", ["two", "three"]),
        ("$B$A", ["two", "threeone"]),
        ("${Z:-d}", ["d"]),
        ("${A:-d}", ["one"]),
        ("${Z:-a b}", ["a b"]),
        ('"${Z:-${A}}"', ["one"]),
        ("'{\"p\": \"'$A'\"}'", ['{"p": "one"}']),
    ],
)
def test_variables(text, expected):
    reader = ShellReader("x.sh", whole_text("A=one\nB='two three'\n"))
    reader.read()
    after = ShellReader("x.sh", whole_text(text), reader.variables)
    assert [word.text for word in after.words()] == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("$Z", "Z"),
        ("${Z}", "Z"),
        ("${Z%x}", "Z"),
        ("${#Z}", "Z"),
        ("$(date)", "$(date)"),
        ("$((1 + 2))", "$((1 + 2))"),
        ("`date`", "`date`"),
        ("$1", "1"),
        ("<model path>", "<model path>"),
    ],
)
def test_unknown_parts_keep_their_text_and_are_marked(text, name):
    (word,) = words_of(f"--x={text}")
    assert word.text == f"--x={text}"
    assert [(hole.name, hole.start, hole.end) for hole in word.holes] == [(name, 4, len(word.text))]


def test_every_character_knows_its_place():
    (word,) = words_of("\n\n  'ab\n cd'\"e\"")
    assert word.text == "ab\n cde"
    places = [(word.place(i).line, word.place(i).column) for i in range(len(word.text))]
    assert places == [(3, 4), (3, 5), (3, 6), (4, 1), (4, 2), (4, 3), (4, 6)]
    assert word.line == 3


def test_places_survive_cutting_and_joining():
    text = joined_lines([("ab\n", Place(7, 5)), ("cd\n", Place(9, 2))])
    assert text.slice(1, 5).place(0) == Place(7, 6)
    assert text.slice(1, 5).place(2) == Place(9, 2)
    both = joined([text.slice(3, 4), text.slice(0, 1)])
    assert (both.text, both.place(0), both.place(1)) == ("ca", Place(9, 2), Place(7, 5))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a 'b\nc", "the quote ' never ends"),
        ('a "b\nc', 'the quote " never ends'),
        ("a `b\nc", "the quote ` never ends"),
        ("a $'b\nc", "the quote $' never ends"),
        ("a $(b\nc", "the bracket ( is never closed"),
        ("a ${b\nc", "the bracket { is never closed"),
        ("a=(b\nc", "the array is never closed"),
        ("cat <<E\nb\nc", "the here-document never meets E"),
    ],
)
def test_what_never_ends_is_a_problem_and_not_an_exception(text, what):
    lexer = Lexer(text)
    list(lexer.tokens())
    assert [problem.what for problem in lexer.problems] == [what]


def test_here_documents_follow_their_line():
    lexer = Lexer("cat <<A <<-'B'; x\n1\nA\n\t2\n\tB\ny")
    tokens = list(lexer.tokens())
    bodies = [(lexer.text[t.begin : t.end], t.text) for t in tokens if t.kind is Kind.HERE_DOCUMENT]
    assert bodies == [("1\n", ""), ("\t2\n", "quoted")]
    assert lexer.problems == []
    assert lexer.text[tokens[-1].begin : tokens[-1].end] == "y"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"))))
@settings(max_examples=300, deadline=None)
def test_quoted_words_come_back_equal(argv):
    assert words(" ".join(map(shlex.quote, argv))) == argv


@given(
    st.lists(
        st.text(st.sampled_from("ab=-{}[]:,.\"' \n\\$#"), max_size=12).filter(
            lambda text: "\n" not in text
        )
    )
)
@settings(max_examples=300, deadline=None)
def test_quoted_words_come_back_over_continued_lines(argv):
    assert words(" \\\n  ".join(map(shlex.quote, argv))) == argv


SHELL_SIGNS = st.text(st.sampled_from("ab 'vllm\"\\\n$(){}[]<>|&;#`=-+*?!~@:%/0"), max_size=60)


@given(SHELL_SIGNS)
@settings(max_examples=1000, deadline=None)
def test_any_text_is_read_without_an_exception(text):
    reading = ShellReader("x.sh", whole_text(f"A=1\n{text}\nvllm serve m {text}")).read()
    for command in reading.commands:
        for word in command.argv:
            assert word.place().line >= 1


@given(SHELL_SIGNS)
@settings(max_examples=500, deadline=None)
def test_tokens_lie_in_order_inside_the_text(text):
    end = 0
    for token in Lexer(text).tokens():
        assert end <= token.begin <= token.end <= len(text)
        end = token.begin
