"""The page of the surface tables counts and names what the tables hold."""

import json
import re
from itertools import pairwise

import pytest

from ascend_recipes.docs.surface import surface_page
from ascend_recipes.paths import data_root
from ascend_recipes.registry.load import load_registry
from ascend_recipes.yaml_files import load_yaml

FOLDER = data_root() / "registry" / "surface"
RELEASES = json.loads((FOLDER / "releases.json").read_bytes())
PAIRS = load_registry().runtimes["vllm_ascend"].vllm
PAGE = surface_page()


def names(file: str, owner: str, release: str, **wanted: str) -> set[str]:
    """Names that a release has, read without the package's own reader."""
    order = RELEASES[owner]
    here = order.index(release)
    rows = json.loads((FOLDER / f"{file}.json").read_bytes())
    return {
        row["name"]
        for row in rows
        if all(row[key] == value for key, value in wanted.items())
        and order.index(row["since"]) <= here <= order.index(row.get("until", order[-1]))
    }


def by_version(version: str) -> list[set[str]]:
    vllm = PAIRS[version]
    return [
        names("flags", "vllm", vllm),
        names("config_keys", "vllm_ascend", version),
        names("variables", "vllm_ascend", version, reader="vllm_ascend"),
        names("variables", "vllm", vllm, reader="vllm"),
        names("architectures", "vllm", vllm, registrar="vllm"),
        names("architectures", "vllm_ascend", version, registrar="vllm_ascend"),
        names("resets", "vllm_ascend", version),
    ]


def table(heading: str) -> list[list[str]]:
    """Cells of the first table after a heading, without its heads."""
    after = PAGE.partition(heading)[2]
    lines = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert lines
    return [line.strip("| ").split(" | ") for line in lines[0].splitlines()[2:]]


def test_counts_are_those_of_the_rows():
    columns = [by_version(version) for version in PAIRS]
    wanted = [[str(len(column[row])) for column in columns] for row in range(7)]
    assert [cells[1:] for cells in table("# What vllm-ascend takes")] == wanted


@pytest.mark.parametrize(("older", "newer"), list(pairwise(PAIRS)), ids=list(PAIRS)[1:])
def test_what_appeared_and_went_is_named(older: str, newer: str):
    for cells, before, after in zip(
        table(f"## {newer}, after {older}"), by_version(older), by_version(newer), strict=True
    ):
        for cell, expected in ((cells[1], after - before), (cells[2], before - after)):
            heads = set(re.findall(r"`([^`]+)`", cell))
            inside = sum(map(int, re.findall(r"and (\d+) in it", cell)))
            assert heads <= expected
            assert len(heads) + inside == len(expected)
            assert all(
                any(name == h or name.startswith(f"{h}.") for h in heads) for name in expected
            )


def test_notes_resets_and_external_variables_have_a_line_each():
    written = load_yaml(FOLDER / "notes.yaml")
    moved = {name for part in ("flags", "keys", "variables") for name in written[part]}
    assert {cells[0].strip("`") for cells in table("## Where names went")} == moved
    newest = next(reversed(PAIRS))
    resets = {cells[0].strip("`") for cells in table("## Overwritten fields")}
    assert resets == by_version(newest)[-1]
    outside = {cells[0].strip("`") for cells in table("## Variables of the software below")}
    assert outside == set(written["external"])
