"""What `--json` prints is what `ascend-run schema output` says, for every command."""

import ast
import json
import shutil
from pathlib import Path

import pytest

import ascend_recipes
from ascend_recipes.cli.commands import COMMANDS
from ascend_recipes.cli.main import main
from ascend_recipes.commands.documents import document_types, output_schema
from ascend_recipes.paths import data_root
from tests.documents import conforming, kinds_of

RECIPE = "recipe=qwen3_5_27b_a2"
SCRIPT = "export HCCL_OP_EXPANSION_MODE=AIV\nvllm serve Qwen/Qwen3.5-27B --max-num-seqs 8 --nope\n"

LIGHT = {
    "PlanDocument": ("plan", "recipe=deepseek_v4_a3"),
    "CheckDocument": ("check", RECIPE),
    "SweepDocument": ("plan", "-m", RECIPE, "parallel.tp=2,3"),
    "CheckAllDocument": ("check", "--all"),
    "ListDocument": ("list",),
    "ShowDocument": ("show", "deepseek_v4_a3", "runtime=vllm_ascend"),
    "ExplainDocument": ("explain", "cache", RECIPE),
    "DiffDocument": ("diff", "deepseek_v4_a3", "qwen3_5_27b_a2"),
    "SchemaDocument": ("schema", "cache"),
    "CompletionDocument": ("completion", "bash"),
    "WordsDocument": ("completion", "words", "recipe=deep"),
    "InitDocument": ("init", "model=qwen3_5_27b", "hardware=a2"),
    "ExportDocument": ("export", RECIPE, "runtime=vllm_ascend", "--target", "argv"),
    "FixDocument": ("fix", RECIPE, "parallel.tp=3"),
    "TransposeDocument": ("transpose", RECIPE, "--to", "a3"),
    "ImportDocument": ("import", "run.sh", "hardware=a2"),
    "LintDocument": ("lint", "run.sh"),
    "DoctorDocument": ("doctor", RECIPE),
    "DecodedLogDocument": ("doctor", "--log", "run.sh"),
    "OpsDocument": ("ops", RECIPE),
    "PatchesCheckDocument": ("patches", "check", "--vllm", "0.31.0"),
    "PeerChangesDocument": ("patches", "check", "--targets", "vllm-ascend", "--vllm", "0.31.0"),
    "PatchesListDocument": ("patches", "list"),
    "PatchesShowDocument": ("patches", "show", "kernel_draft_step_slots"),
    "PatchesDiffDocument": ("patches", "diff", "0.31.0", "0.32.0"),
    "StatusDocument": ("status",),
    "StoppedDocument": ("plan", RECIPE, "parallel.tpp=3"),
}
"""Document -> a command line that prints it."""

RUNS = {"GenerateDocument", "ServeDocument", "LogsDocument", "StopDocument"}
"""Documents of runs: tests/serve and tests/cluster read them through `conforming` too."""


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """Prints the document of a command line in a folder with a script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASCEND_RECIPES_CACHE", str(tmp_path / "cache"))
    (tmp_path / "run.sh").write_text(SCRIPT)

    def call(*words: str) -> str:
        main([*words, "--json"])
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize(("kind", "words"), LIGHT.items(), ids=list(LIGHT))
def test_each_command_prints_its_document(printed, kind, words):
    text = printed(*words)
    conforming(text)
    assert kind in kinds_of(text)


def test_every_document_is_printed_by_somebody():
    assert {kind.__name__ for kind in document_types()} == {*LIGHT, *RUNS}


def test_a_wrong_field_is_found(printed):
    tree = json.loads(printed("list"))
    tree["recipes"][0]["shape"] = 1
    with pytest.raises(AssertionError, match="recipes"):
        conforming(json.dumps(tree))
    with pytest.raises(AssertionError, match="no document is published"):
        conforming(json.dumps({**tree, "command": "nothing"}))


def test_every_command_that_prints_is_published():
    published = {
        word
        for kind in document_types()
        for word in getattr(kind.model_fields["command"].annotation, "__args__", ())
    }
    assert {word.partition(" ")[0] for word in published} == set(COMMANDS)
    for path in Path(ascend_recipes.__file__).parent.joinpath("cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="document"), args=[ast.Constant(value=name), *_]
                ):
                    assert name in published, f"{path.name}:{node.lineno}"


def test_the_schema_is_committed_and_every_document_explains_itself():
    committed = json.loads((data_root() / "docs" / "output.schema.json").read_text())
    built = output_schema()
    assert committed["$defs"] == json.loads(json.dumps(built["$defs"]))
    assert all(item.get("description") for item in built["$defs"].values() if item)


def test_lint_names_file_and_line(printed):
    shutil.copy("run.sh", "other.sh")
    found = conforming(printed("lint", "other.sh"))["findings"]
    assert {(item["file"], item["line"]) for item in found} == {("other.sh", 2)}
