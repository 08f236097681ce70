"""A toy package to patch, so that every failure can be made on purpose."""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ascend_recipes.patching.sources import FolderSources
from ascend_recipes.patching.tree import SourceTree
from ascend_recipes.patching.verify import fingerprint_of
from ascend_recipes.schema.patch import PatchRow

CORE = '''"""What is patched."""
LIMIT = 4
TABLE = {"a": 1}


def scale(value, factor=2):
    """Docstring."""
    return value * factor  # a comment


class Runner:
    @staticmethod
    def kind():
        return "plain"

    @property
    def width(self):
        return LIMIT

    def run(self, value):
        return scale(value)


class Child(Runner):
    pass
'''
OURS = """
def scale_by_ten(value, factor=2):
    return value * factor * 10


def scale_and_one(original, value, factor=2):
    return original(value, factor) + 1


def other_kind():
    return "ours"


def wide(original, self):
    return original(self) + 100


def run_twice(original, self, value):
    return original(self, original(self, value))


def needs_more(value, factor, extra):
    return value
"""


@dataclass
class Toy:
    """A package `toy_engine` of version 1.0 and ours, `toy_fixes`, beside it."""

    root: Path

    def write(self, name: str, text: str) -> None:
        path = self.root / "toy_engine" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def tree(self) -> SourceTree:
        return SourceTree(FolderSources("toy_engine", self.root / "toy_engine"))

    def load(self, name: str):
        return importlib.import_module(f"toy_engine.{name}")

    def row(self, **changes) -> PatchRow:
        """A verified row; the fingerprint is that of the unchanged package."""
        values = {
            "target": "toy_engine.core:scale",
            "action": "replace",
            "implementation": "toy_fixes:scale_by_ten",
            "phases": ["worker"],
            "versions": ">=1,<2",
            "because": "toy",
            "upstream": "none: toy",
            "remove_when": {"version_at_least": "2"},
            "test": "tests/patching",
            "needs": {"traits": ["toy"]},
        } | changes
        if "fingerprints" not in values:
            symbol = self.tree().find(values["target"])
            values["fingerprints"] = {"1.0": fingerprint_of(symbol).model_dump()}
        return PatchRow.model_validate(values, strict=False)


@pytest.fixture
def toy(tmp_path, monkeypatch) -> Iterator[Toy]:
    package = Toy(tmp_path)
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    package.write("__init__", "")
    package.write("core", CORE)
    (tmp_path / "toy_fixes").mkdir()
    (tmp_path / "toy_fixes" / "__init__.py").write_text(OURS)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Bytecode of an earlier version of a file written in the same second would be believed.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield package
    for name in [name for name in sys.modules if name.startswith(("toy_engine", "toy_fixes"))]:
        del sys.modules[name]


@pytest.fixture
def refusal() -> Callable[..., dict[str, str]]:
    """Apply rows that must be refused and give finding id -> message."""
    from ascend_recipes.errors import RecipeError
    from ascend_recipes.patching.patcher import apply_rows

    def refused(rows: dict[str, PatchRow]) -> dict[str, str]:
        with pytest.raises(RecipeError) as caught:
            apply_rows(rows, "worker")
        return {item.id: f"{item.message} | {item.fix}" for item in caught.value.findings}

    return refused
