"""The table of npu-smi, in the formats of four generations."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.doctor.smi import SmiFault, SmiReport, read_smi
from ascend_recipes.registry.load import load_registry
from ascend_recipes.rules.machines import generation_of_chip
from tests.doctor.rig import MACHINES

TABLES = {path.stem: path.read_text() for path in MACHINES.glob("*.txt")}


@pytest.mark.parametrize(
    ("name", "version", "dies", "cards", "generation", "memory"),
    [
        ("a2", "24.1.rc3", 8, 8, "a2", 65536),
        ("a3", "26.0.rc2", 16, 8, "a3", 65536),
        ("a5", "25.7.rc1", 4, 4, "a5", 131072),
        ("310p", "25.2.0", 2, 1, "310p", 44280),
    ],
)
def test_dies_cards_and_chip(name, version, dies, cards, generation, memory):
    report = read_smi(0, TABLES[name])
    assert isinstance(report, SmiReport)
    assert report.version == version
    assert [die.number for die in report.dies] == list(range(dies))
    assert len({die.card for die in report.dies}) == cards
    assert max(die.total_mb for die in report.dies) == memory
    assert generation_of_chip(load_registry().hardware, report.soc) == generation


def test_health_use_and_holders():
    a2 = read_smi(0, TABLES["a2"])
    assert Counter(die.health for die in a2.dies) == {"OK": 7, "Warning": 1}
    assert [die.used_mb for die in a2.dies if die.card == 2] == [58123]
    assert a2.holders == ((2, 692318, "python3"),)
    assert read_smi(0, TABLES["310p"]).dies[1].health == "Alarm"
    assert read_smi(0, TABLES["a3"]).holders == ()


@pytest.mark.parametrize(
    ("status", "output", "said"),
    [
        (255, TABLES["broken"], "-8005"),
        (0, "", "nothing"),
        (0, "no such module\n", "no such module"),
    ],
)
def test_a_tool_that_tells_nothing(status, output, said):
    fault = read_smi(status, output)
    assert isinstance(fault, SmiFault)
    assert fault.status == status
    assert said in fault.said


def test_a_card_of_one_910_die_is_not_an_a3():
    lines = TABLES["a3"].splitlines()
    kept = lines[:9]
    assert read_smi(0, "\n".join(kept)).soc == "ascend910"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(alphabet="|+=- 0123456789:.ABCnpuOK/\n", max_size=300), st.integers(0, 400))
def test_damaged_tables_are_read_as_far_as_they_go(noise, cut):
    table = TABLES["a3"]
    report = read_smi(0, table[:cut] + noise + table[cut:])
    assert isinstance(report, SmiReport | SmiFault)
