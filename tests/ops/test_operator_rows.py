"""What operators demand is data, and each demand has a call that violates it and is refused."""

import pytest

from ascend_recipes.emulation import OperatorRefusedError, install
from tests.ops.written_calls import (
    generation_of,
    make,
    operator_rows,
    written_arguments,
)

pytestmark = pytest.mark.ops

ROWS = operator_rows()
CALLS = [(key, call) for key, row in ROWS.items() for call in row.calls]
VIOLATIONS = [
    pytest.param(key, entry, change, id=f"{key}-{entry.argument}-{number}")
    for key, row in ROWS.items()
    for entry in (*row.constraints, *row.not_emulated)
    for number, change in enumerate(entry.violated_by)
]


@pytest.mark.parametrize(("key", "name"), CALLS)
def test_the_written_calls_are_legal(key, name):
    row = ROWS[key]
    install(hardware=generation_of(row, name))
    make(row, written_arguments(row, name))


@pytest.mark.parametrize(("key", "entry", "change"), VIOLATIONS)
def test_a_violating_call_is_refused(key, entry, change):
    row = ROWS[key]
    install(hardware=generation_of(row, entry.call, entry))
    arguments = written_arguments(row, entry.call)
    with pytest.raises(OperatorRefusedError) as caught:
        make(row, arguments | change)
    assert caught.value.argument == entry.argument, str(caught.value)
    assert caught.value.allowed
