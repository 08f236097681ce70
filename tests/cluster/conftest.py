"""A place for launchers, which must be empty again when a test is over."""

from collections.abc import Iterator

import pytest

from tests.cluster.rig import Place


@pytest.fixture
def place(tmp_path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    assert made.clear() == set(), "processes are left"
