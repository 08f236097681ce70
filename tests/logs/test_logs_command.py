"""`ascend-run logs` says how to read the log of a process that nobody asked to end."""

import os

import pytest

from ascend_recipes.cli.main import main
from ascend_recipes.launch.state import ProcessState, StateFile, identity_of

GONE = identity_of(os.getpid()).model_copy(update={"started": 1})
"""A process of our number that was started at another time."""


@pytest.mark.parametrize(
    ("status", "identity", "told"),
    [
        ("failed", GONE, True),
        ("serving", GONE, True),
        ("serving", identity_of(os.getpid()), False),
        ("ended", GONE, False),
    ],
)
def test_logs_of_the_dead_are_to_be_decoded(tmp_path, monkeypatch, capsys, status, identity, told):
    monkeypatch.setenv("ASCEND_RECIPES_CACHE", str(tmp_path))
    folder = tmp_path / "runs" / "1-run"
    folder.mkdir(parents=True)
    (folder / "vllm.log").write_text("last words\n")
    state = StateFile(folder, recipe="r", digest="d")
    state.add(ProcessState(name="vllm", identity=identity, log="vllm.log"))
    state.change(status=status)
    assert main(["logs", "1-run"]) == 0
    out, err = capsys.readouterr()
    assert "last words" in out
    assert (f"ascend-run doctor --log {folder / 'vllm.log'}" in err) is told
