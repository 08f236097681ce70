"""What README and quickstart show is what the commands print, and both languages show the same."""

import re
import shlex
from collections.abc import Iterator

import pytest

from ascend_recipes.cli.main import main
from ascend_recipes.compose import recipe_names
from ascend_recipes.paths import data_root
from tests.conftest import plan_of

PAGES = ("README.md", "README.zh.md", "docs/quickstart.md", "docs/quickstart.zh.md")
PAIRS = (PAGES[:2], PAGES[2:])
_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
_PRINTED = ("check", "explain")
"""Commands whose whole output stands in the pages, where any of it does."""


def text_of(page: str) -> str:
    return (data_root() / page).read_text(encoding="utf-8")


def transcripts(page: str) -> Iterator[tuple[str, str]]:
    """Command and output, without remarks behind the command."""
    for block in _BLOCK.findall(text_of(page)):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield re.sub(r"\s+# .*", "", command), output.strip()


def printed(page: str) -> list[tuple[str, str]]:
    found = [(command.split(), output) for command, output in transcripts(page)]
    return [
        (shlex.join(words), output)
        for words, output in found
        if output and words[0] == "ascend-run" and words[1] in _PRINTED
    ]


@pytest.mark.parametrize("page", PAGES)
def test_output_is_what_the_command_prints(page, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = printed(page)
    assert shown
    for command, output in shown:
        main(shlex.split(command)[1:])
        said = capsys.readouterr().out
        assert [line.rstrip() for line in said.strip().splitlines()] == output.splitlines(), command


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_languages_show_the_same(english, chinese):
    assert list(transcripts(english)) == list(transcripts(chinese))


@pytest.mark.parametrize("page", PAGES[:2])
def test_readme_counts_what_there_is(page):
    planned = plan_of("recipe=deepseek_v4_a3", "device=emulated", "scale=tiny")
    plan, text = planned.plan, text_of(page)
    assert f"{len(plan.operations)} operations bound, {len(plan.hooks)} hooks, " in text
    assert re.findall(r"\b(\d+) (?:recipes plan|个配方可以)", text) == [str(len(recipe_names()))]
