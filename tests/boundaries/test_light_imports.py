"""Planning needs neither torch nor vLLM; seen from outside, in a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.boundaries.source_tree import (
    HEAVY,
    HEAVY_LIBRARIES,
    ROOT,
    module_name,
    part_of,
    python_files,
)

LIGHT_MODULES = [module_name(path) for path in python_files() if part_of(path) not in HEAVY]


def modules_after(code: str, *, path: Path = ROOT) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running `code`."""
    report = "import sys; print('loaded:', *sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        cwd=path,
        env={"PYTHONPATH": str(path), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.rpartition("loaded:")[2].split())


def test_light_modules_import_nothing_heavy():
    assert "ascend_recipes.plan" in LIGHT_MODULES
    loaded = modules_after("import " + ", ".join(LIGHT_MODULES))
    assert loaded.isdisjoint(HEAVY_LIBRARIES)


def test_planning_a_recipe_loads_nothing_heavy():
    words = ["plan", "--json", "recipe=qwen3_5_27b_a2", "device=emulated", "scale=tiny"]
    loaded = modules_after(f"from ascend_recipes.cli.main import main\nassert main({words}) == 0")
    assert loaded.isdisjoint(HEAVY_LIBRARIES)
    assert "hydra" in loaded


@pytest.mark.parametrize(
    ("words", "code", "unused"),
    [
        (["--help"], 0, {"pydantic", "hydra", "yaml"}),
        # Its text stands in YAML.
        (["plan", "--nonsense"], 2, {"pydantic", "hydra"}),
    ],
)
def test_listing_and_usage_errors_need_no_schema(words, code, unused):
    loaded = modules_after(
        f"from ascend_recipes.cli.main import main\nassert main({words}) == {code}"
    )
    assert loaded.isdisjoint(unused)


def test_the_check_can_fail(tmp_path):
    package = tmp_path / "ascend_recipes"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (tmp_path / "torch.py").write_text("")
    (package / "plan.py").write_text("import torch\n")
    loaded = modules_after("import ascend_recipes.plan", path=tmp_path)
    assert not loaded.isdisjoint(HEAVY_LIBRARIES)
