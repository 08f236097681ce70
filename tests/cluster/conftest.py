"""A place for launchers, which must be empty again when a test is over."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.cluster.rig import Place


@pytest.fixture
def place(tmp_path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    left = made.left_over()
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, "processes are left"
