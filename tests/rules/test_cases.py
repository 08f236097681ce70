"""Public misconfigurations: each gives its finding before launch, and each fix removes it."""

from pathlib import Path

import pytest
import yaml

from ascend_recipes.trial import override_words
from tests.rules.configurations import (
    SEVERITIES,
    Configuration,
    errors_of,
    judge,
)

FOLDER = Path(__file__).parent / "cases"
CASES = [
    case
    for path in sorted(FOLDER.glob("*.yaml"))
    for case in yaml.safe_load(path.read_text(encoding="utf-8"))["cases"]
]
REASONS = {"needs a running device", "needs a log", "needs an artefact we cannot read"}
JUDGED = [case for case in CASES if "expect" in case]
RANK = {severity.value: rank for rank, severity in enumerate(SEVERITIES)}


@pytest.mark.parametrize("case", JUDGED, ids=lambda case: case["id"])
def test_case_is_found_and_its_fix_removes_it(case):
    given, expected = Configuration.of(case["given"]), case["expect"]
    before = judge(given)
    said = [(item.id, item.severity.value, item.at) for item in before]
    fitting = [
        item
        for item in before
        if item.id == expected["id"]
        and item.at == expected["at"]
        and RANK[item.severity.value] >= RANK[expected["severity"]]
    ]
    assert fitting, f"{expected} is not among {said}"
    words = override_words(fitting[0].fix)
    if words:
        after = judge(given, fix=fitting[0].fix)
        assert (expected["id"], expected["at"]) not in {(item.id, item.at) for item in after}
        assert errors_of(after) <= errors_of(before)


def test_cases_are_complete_and_few_are_not_judged():
    ids = [case["id"] for case in CASES]
    assert len(ids) == len(set(ids)) == 114
    unjudged = [case for case in CASES if "expect" not in case]
    assert all(case["not_judgeable"] in REASONS for case in unjudged)
    assert len(unjudged) <= 12


def test_table_of_cases(capsys):
    with capsys.disabled():
        for case in CASES:
            expected = case.get("expect", {"id": f"({case.get('not_judgeable')})"})
            line = f"{case['id']:<5} {expected.get('severity', ''):<6} {expected['id']:<32}"
            print(f"\n{line} {expected.get('at', '')}", end="")
        print()
