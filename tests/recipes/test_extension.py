"""A variant touches one file, a new model of a known architecture two: from outside, by a user."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_recipes.paths import data_root

ROOT = data_root()


def run(*words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`ascend-run` in a fresh process, where installed packages are looked up anew."""
    code = "import sys\nfrom ascend_recipes.cli.main import main\nsys.exit(main())"
    paths = [str(ROOT), *([str(path)] if path else [])]
    return subprocess.run(
        [sys.executable, "-c", code, *words, "--json"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def document(*words: str, path: Path | None = None) -> dict:
    done = run(*words, path=path)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def added_files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml"))


@pytest.fixture
def user(tmp_path: Path) -> Path:
    (tmp_path / "recipe").mkdir()
    return tmp_path


def test_variant_of_a_recipe_is_one_file(user: Path):
    (user / "recipe" / "glm_5_2_w4a8_a3_short.yaml").write_text(
        "# @package _global_\n"
        "defaults:\n  - glm_5_2_w4a8_a3\n  - override /drafter: mtp5\n"
        "about: short prompts, longer drafts\n"
        "source: [our own measurements]\n"
        "scheduler: {max_model_len: 16384, max_num_seqs: 24}\n"
    )
    assert added_files(user) == ["recipe/glm_5_2_w4a8_a3_short.yaml"]
    tree = document("plan", "recipe=glm_5_2_w4a8_a3_short", "--config-dir", str(user))
    assert tree["plan"]["engine"]["max_num_seqs"] == 24
    assert tree["plan"]["drafter"]["num_draft_tokens"] == 5
    assert tree["plan"]["model"]["key"] == "glm_5_2"
    assert tree["reasons"]["engine.max_num_seqs"]["source"].endswith("_short.yaml:7")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An installed package that offers rows and recipes by entry points."""
    site = tmp_path / "site"
    info = site / "house_models-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: house-models\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ascend_recipes.registry]\nhouse = house_models\n"
        "[ascend_recipes.recipes]\nhouse = house_models.recipes\n"
    )
    for folder in ("house_models", "house_models/recipes"):
        (site / folder).mkdir()
        (site / folder / "__init__.py").write_text("")
    return site


def test_new_model_of_a_known_architecture_is_two_files(package: Path):
    """A model row and a recipe, in a package that names its folders by two entry points."""
    models = package / "house_models" / "registry" / "models"
    recipes = package / "house_models" / "recipes" / "recipe"
    models.mkdir(parents=True)
    recipes.mkdir()
    row = (ROOT / "registry" / "models" / "qwen3_6_27b.yaml").read_text(encoding="utf-8")
    row = row.replace("num_hidden_layers: 64", "num_hidden_layers: 32")
    row = row.replace("linear_attention, count: 48", "linear_attention, count: 24")
    row = row.replace("full_attention, count: 16", "full_attention, count: 8")
    (models / "house_14b.yaml").write_text(row, encoding="utf-8")
    (recipes / "house_14b_a3.yaml").write_text(
        "# @package _global_\n"
        "defaults:\n  - override /attention: hybrid\n  - override /cache: hybrid_prefix\n"
        "  - override /parallel: tp2\n"
        "about: our own half-sized model\n"
        "source: [our own measurements]\n"
        "model: house_14b\nhardware: a3\n"
    )
    assert added_files(package) == [
        "house_models/recipes/recipe/house_14b_a3.yaml",
        "house_models/registry/models/house_14b.yaml",
    ]
    plan = document("plan", "recipe=house_14b_a3", path=package)["plan"]
    assert plan["model"]["key"] == "house_14b"
    assert [layer["count"] for layer in plan["layers"]] == [24, 8]
    assert [layer["backend"] for layer in plan["layers"]] == [
        "gated_delta_net",
        "fused_infer_attention",
    ]
    tiny = document("check", "recipe=house_14b_a3", "device=emulated", "scale=tiny", path=package)
    assert tiny["blockers"] == []
    names = {entry["name"] for entry in document("list", path=package)["recipes"]}
    assert {"house_14b_a3", "deepseek_v4_a3"} <= names


def test_without_the_package_its_recipe_is_unknown():
    done = run("plan", "recipe=house_14b_a3")
    assert done.returncode == 2
    assert json.loads(done.stdout)["findings"][0]["id"] == "recipe.unknown"
