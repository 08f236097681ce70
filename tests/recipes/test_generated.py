"""Generated pages and schemas are current; the schemas admit our files and refuse mistakes."""

import json
import re
from functools import cache
from pathlib import Path

import jsonschema
import pytest

from ascend_recipes.commands.schema import json_schema, schema_names
from ascend_recipes.docs.files import generated_files
from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.paths import data_root
from ascend_recipes.yaml_files import parse_yaml
from tests.conftest import plan_of

ROOT = data_root()
HINT = re.compile(r"^# yaml-language-server: \$schema=(\S+)$", re.MULTILINE)
HINTED = sorted(
    path
    for pattern in ("recipes/*/*.yaml", "registry/*/*.yaml")
    for path in ROOT.glob(pattern)
    # Hooks belong to the code that they name; the folders of the patch plane have no schema here.
    if path.parent.name in (*schema_names(), "recipe", "scale") and path.parent.name != "hooks"
)
RECIPES = sorted((ROOT / "recipes" / "recipe").glob("*.yaml"))


@pytest.fixture(scope="module")
def generated() -> dict[Path, str]:
    """All files; planning every recipe takes too long for a time when tests are only collected."""
    return dict(generated_files(ROOT, plan_of))


def test_generated_files_are_current(generated: dict[Path, str]):
    stale = [path for path, text in generated.items() if path.read_text("utf-8") != text]
    assert not stale, "run python -m ascend_recipes.docs"


def test_no_generated_schema_is_left_over(generated: dict[Path, str]):
    folders = (ROOT / "recipes" / "schemas", ROOT / "registry" / "schemas")
    assert {path for folder in folders for path in folder.iterdir()} <= set(generated)


@cache
def validator_of(schema_file: Path) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(schema_file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", HINTED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_file_names_its_schema_for_editors_and_fits_it(path: Path):
    text = path.read_text(encoding="utf-8")
    found = HINT.search(text)
    assert found is not None
    schema_file = (path.parent / found[1]).resolve()
    validator_of(schema_file).validate(parse_yaml(path))


@pytest.mark.parametrize("name", schema_names())
def test_schema_is_valid_json_schema(name):
    jsonschema.Draft202012Validator.check_schema(json_schema(name))


@pytest.mark.parametrize(
    "mistake",
    [
        {"schedular": {}},
        {"scheduler": {"max_num_seq": 4}},
        {"parallel": {"tp": "four"}},
        {"graph": {"kind": "half"}},
    ],
)
def test_schema_of_recipe_files_refuses_a_mistake(mistake):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(mistake, json_schema("recipe"))


def test_unknown_schema_lists_those_that_exist():
    with pytest.raises(RecipeError) as caught:
        json_schema("recipes")
    assert caught.value.exit_code is ExitCode.USAGE
    assert "models" in caught.value.findings[0].message


def test_gallery_and_table_claim_no_run_on_hardware(generated: dict[Path, str]):
    text = generated[ROOT / "docs" / "recipe-gallery.md"]
    assert text.count("\n## ") == len(RECIPES)
    assert "Nothing here has been verified on an NPU" in text
