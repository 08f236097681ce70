"""Files are written whole, and nobody else's are touched."""

import json
import os

import pytest

from ascend_recipes.cli.main import main
from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.export.layout import ExportFile
from ascend_recipes.export.script import SIGNATURE
from ascend_recipes.export.write import write_files
from tests.documents import conforming
from tests.export.deployments import DISAGGREGATED, ONE_NODE, TWO_NODES, exported

OURS = f"# {SIGNATURE}\n"
FILES = (ExportFile("a.sh", f"{OURS}1\n", is_program=True), ExportFile("sub/b.yaml", f"{OURS}2\n"))


def test_programs_can_be_run_and_folders_are_made(tmp_path):
    paths = write_files(FILES, tmp_path / "new")
    assert [path.read_text() for path in paths] == [item.text for item in FILES]
    assert os.access(paths[0], os.X_OK)
    assert not os.access(paths[1], os.X_OK)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.sh", "sub"]


def test_own_files_are_replaced(tmp_path):
    write_files(FILES, tmp_path)
    write_files((ExportFile("a.sh", f"{OURS}3\n"),), tmp_path)
    assert (tmp_path / "a.sh").read_text() == f"{OURS}3\n"


def test_a_foreign_file_stops_everything_unless_forced(tmp_path):
    foreign = tmp_path / "sub" / "b.yaml"
    foreign.parent.mkdir()
    foreign.write_text("mine\n")
    with pytest.raises(RecipeError) as refused:
        write_files(FILES, tmp_path)
    assert refused.value.exit_code is ExitCode.USAGE
    (item,) = refused.value.findings
    assert item.id == "export.foreign_file"
    assert str(foreign) in item.message
    assert not (tmp_path / "a.sh").exists()
    assert foreign.read_text() == "mine\n"
    write_files(FILES, tmp_path, force=True)
    assert foreign.read_text() == f"{OURS}2\n"


def test_a_folder_that_cannot_be_made_is_a_finding(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError) as refused:
        write_files(FILES, tmp_path / "file" / "below")
    assert [item.id for item in refused.value.findings] == ["export.not_written"]
    assert refused.value.exit_code is ExitCode.ENVIRONMENT


@pytest.mark.parametrize("target", ["shell", "compose", "k8s", "slurm", "argv"])
def test_an_export_may_replace_itself(target, tmp_path):
    files = exported(DISAGGREGATED, target).files
    write_files(files, tmp_path)
    assert write_files(files, tmp_path)


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = main(["export", "runtime=vllm_ascend", "runtime.version=0.23.0", *words])
        return code, *capsys.readouterr()

    return call


def test_one_file_is_printed_as_it_is(run):
    code, out, _ = run(f"recipe={ONE_NODE}", "--target", "argv")
    head, server = map(json.loads, out.splitlines())
    assert (code, head["recipe"], server["name"]) == (0, ONE_NODE, "vllm")
    words = f"runtime=vllm_ascend runtime.version=0.23.0 recipe={ONE_NODE} --target argv"
    assert head["command"] == f"ascend-run export {words}"


def test_several_files_are_printed_with_their_names(run):
    code, out, _ = run(f"recipe={ONE_NODE}", "--target", "shell")
    assert code == 0
    assert [line for line in out.splitlines() if "==>" in line] == [
        "# ==> node0-serve.sh <==",
        "# ==> start.sh <==",
    ]


def test_out_writes_and_names_the_files(run, tmp_path):
    code, out, _ = run(f"recipe={ONE_NODE}", "--target", "compose", "--out", "there")
    assert code == 0
    assert out.splitlines() == ["wrote there/node0-serve.yaml", "wrote there/node0-serve.sh"]
    (tmp_path / "there" / "node0-serve.yaml").write_text("services: {}\n")
    code, out, err = run(f"recipe={ONE_NODE}", "--target", "compose", "--out", "there")
    assert (code, out) == (2, "")
    assert "export.foreign_file" in err
    assert run(f"recipe={ONE_NODE}", "--target", "compose", "--out", "there", "--force")[0] == 0


def test_the_document_has_texts_and_places(run):
    words = (f"recipe={TWO_NODES}", "--target", "k8s", "--placeholders", "--out", "k", "--json")
    tree = conforming(run(*words)[1])
    (file,) = tree["files"]
    assert file["path"] == "k/manifests.yaml"
    assert tree["image"].endswith(":v0.23.0-a3")
    assert [item["id"] for item in tree["findings"]] == ["export.placeholders"]


def test_findings_are_errors_of_the_command(run):
    code, _, err = run(f"recipe={TWO_NODES}", "--target", "shell")
    assert code == 3
    assert "site.too_few_addresses" in err
    code, _, err = run(f"recipe={ONE_NODE}")
    assert code == 2
    assert "export.no_target" in err
    code, _, err = run(f"recipe={ONE_NODE}", "--target", "helm")
    assert code == 2
    assert "--target shell" in err
    code, _, err = run(f"recipe={TWO_NODES}", "--target", "k8s", "--placeholders", "--strict")
    assert code == 3
    assert "export.placeholders" in err
