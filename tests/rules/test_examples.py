"""Every rule fires where it should, at the right field, is silent elsewhere, and its fix works."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from ascend_recipes.paths import PACKAGE
from ascend_recipes.registry.load import load_registry
from ascend_recipes.trial import override_words
from tests.rules.configurations import Configuration, errors_of, judge

FOLDER = Path(__file__).parent / "examples"
EXAMPLES = [
    example
    for path in sorted(FOLDER.glob("*.yaml"))
    for example in yaml.safe_load(path.read_text(encoding="utf-8"))
]
FIRING = [(e["id"], e.get("at"), given) for e in EXAMPLES for given in e.get("fires", ())]
SILENT = [(e["id"], given) for e in EXAMPLES for given in e.get("silent", ())]
OF_LINT = {"cli.duplicate_flag", "cli.same_flag_twice", "version.unrecorded"}
"""What is said of a command or of lint's own words, not of a recipe: tests/lint has them."""


def shown(value: object) -> str:
    return re.sub(r"\s+", " ", str(value))[:90]


@pytest.mark.parametrize(("id", "at", "given"), FIRING, ids=shown)
def test_rule_fires_at_the_field_and_its_fix_removes_the_finding(id, at, given):
    configuration = Configuration.of(given)
    before = judge(configuration)
    matching = [item for item in before if item.id == id]
    assert matching, f"{id} is not among {[(item.id, item.at) for item in before]}"
    assert at is None or at in {item.at for item in matching}
    assert all(item.message and item.message_zh for item in matching)
    words = override_words(matching[0].fix)
    if words:
        after = judge(configuration, fix=matching[0].fix)
        assert (id, matching[0].at) not in {(item.id, item.at) for item in after}
        assert errors_of(after) <= errors_of(before)


@pytest.mark.parametrize(("id", "given"), SILENT, ids=shown)
def test_rule_is_silent_where_all_is_well(id, given):
    assert id not in {item.id for item in judge(Configuration.of(given))}


def named_by_rules() -> set[str]:
    """Every text that the rules, and what they resolve and ask, mention."""
    files = [PACKAGE / "resolve.py", *(PACKAGE / "rules").glob("*.py")]
    files += (PACKAGE / "surface").glob("*.py")
    return {
        node.value
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_every_finding_of_the_rules_has_firing_and_silent_examples():
    """Findings of other stages (lint, weights on disk, launch) have tests of their own."""
    fires = {id for id, _, _ in FIRING}
    silent = {id for id, _ in SILENT}
    families = {id.partition(".")[0] for id in fires}
    rows = load_registry().findings
    texts = {
        f"{family}.{name}" for family in families & set(rows) for name in rows[family].findings
    }
    known = (texts & named_by_rules()) - OF_LINT
    assert len(known) > 200
    assert known - fires == set()
    assert known - silent == set()
