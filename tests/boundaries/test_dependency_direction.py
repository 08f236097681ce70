"""Imports point downwards, and the run-time side reads the plan instead of asking the stages."""

import ast
from pathlib import Path

from tests.boundaries.source_tree import (
    ENTRY_POINTS,
    HEAVY,
    LAYERS,
    PACKAGE,
    imported_names,
    part_of,
    python_files,
)

RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}
ASKING = {name for names in LAYERS[3:] for name in names} - {"memory"}
"""Stages that decide; what runs inside vLLM reads their plan."""


def wrong_imports(package: Path) -> list[str]:
    found = []
    for path in python_files(package):
        part = part_of(path, package)
        for name in imported_names(ast.parse(path.read_text(encoding="utf-8"))):
            target = name.split(".")[1] if name.startswith("ascend_recipes.") else part
            if target != part and not _is_allowed(part, target):
                found.append(f"{path.relative_to(package)} imports {name}")
    return found


def _is_allowed(part: str, target: str) -> bool:
    if part in HEAVY or part in ENTRY_POINTS:
        return target not in ASKING
    if part not in RANKS:
        return part == "__init__"
    # A name that is no part is an attribute of the package itself, such as its version.
    return target not in HEAVY | ENTRY_POINTS and RANKS.get(target, 0) <= RANKS[part]


def test_imports_point_downwards():
    assert wrong_imports(PACKAGE) == []


def test_every_part_has_a_layer():
    parts = {part_of(path) for path in python_files()} - {"__init__"}
    assert parts <= set(RANKS) | HEAVY | ENTRY_POINTS


def test_the_check_can_fail(tmp_path):
    package = tmp_path / "ascend_recipes"
    for name, text in {
        "schema/plan.py": "from ascend_recipes.registry.load import load_registry\n",
        "worker/runner.py": "def f():\n    from ascend_recipes.resolve import resolve_recipe\n",
        "rules/memory.py": "from ascend_recipes import ops\n",
        "registry/load.py": "from ascend_recipes.schema.plan import LaunchPlan\n",
    }.items():
        path = package / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    wrong = {line.partition(" ")[0] for line in wrong_imports(package)}
    assert wrong == {"schema/plan.py", "worker/runner.py", "rules/memory.py"}
