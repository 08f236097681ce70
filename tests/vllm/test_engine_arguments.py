"""Golden plans against vLLM's own parser: an argument that it rejects never worked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_recipes.launch.arguments import serve_arguments
from ascend_recipes.launch.environment import child_environment
from ascend_recipes.schema.plan import load_plan
from ascend_recipes.surface.load import load_surface

pytestmark = pytest.mark.vllm

GOLDEN = {
    path.name.partition(".")[0]: path
    for path in sorted((Path(__file__).parents[1] / "golden").glob("*.plan.json"))
}
CHILD = Path(__file__).with_name("parse_arguments.py")


@pytest.fixture(scope="module")
def parsed(plan, tmp_path_factory):
    """What vLLM makes of the arguments of every golden plan, in one child process."""
    own = plan("scale=tiny", "device=emulated").plan
    path = tmp_path_factory.mktemp("run") / "plan.json"
    path.write_text(own.to_json(), encoding="utf-8")
    words = {name: serve_arguments(load_plan(file))[1:] for name, file in GOLDEN.items()}
    words["unknown"] = ["model", "--no-such-argument=1"]
    done = subprocess.run(
        [sys.executable, str(CHILD)],
        input=json.dumps(words),
        env=child_environment(own, path, os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", GOLDEN)
def test_vllm_parses_every_argument_to_the_planned_value(name, parsed):
    plan, actual = load_plan(GOLDEN[name]), parsed[name]
    for key, value in {**plan.engine, **plan.server}.items():
        if key == "model":
            assert actual["model_tag"] == value
        elif key == "compilation_config":
            assert actual[key]["cudagraph_mode"] == value["cudagraph_mode"]
            assert actual[key]["cudagraph_capture_sizes"] == value.get("cudagraph_capture_sizes")
        elif key == "served_model_name":
            assert actual[key] == [value]
        else:
            assert actual[key] == value, key


def test_an_unknown_argument_is_rejected(parsed):
    assert parsed["unknown"] == {"exit": 2}


def test_the_recorded_flags_are_those_of_vllms_own_parser(parsed):
    """The table was read off the sources without importing them; the parser is the oracle."""
    recorded = set()
    for name, row in load_surface("0.32.0").flags.items():
        if "." in name:
            continue
        recorded |= {name, *row.aliases}
        if row.kind == "switch":
            long = (word for word in (name, *row.aliases) if word.startswith("--"))
            recorded |= {f"--no-{word[2:]}" for word in long}
    assert set(parsed["options"]) - recorded == {"--help", "-h"}
    assert recorded - set(parsed["options"]) == set()


def test_the_recorded_choices_are_those_of_vllms_own_parser(parsed):
    flags = load_surface("0.32.0").flags
    checked = 0
    for name, choices in parsed["options"].items():
        # Two lists are computed when vLLM starts: the sources alone do not tell them.
        if name not in flags or name in ("--log-level", "--mm-processor-device"):
            continue
        row = flags[name]
        stated = None if choices is None else {item for item in choices if item != "None"}
        assert stated == (None if row.choices is None else set(map(str, row.choices))), name
        checked += stated is not None
    assert checked > 20
