"""`ascend-run import`: scripts in, one recipe out, findings at lines of the text that was made."""

import json

import pytest
import yaml

from ascend_recipes.cli.main import main

COMMON = (
    "--quantization ascend --max-model-len 65536 --max-num-batched-tokens 4096 --max-num-seqs 16 "
    "--block-size 128 --gpu-memory-utilization 0.9 --enable-expert-parallel "
    "--no-enable-prefix-caching "
    """--compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}' """
)
MODEL = "Eco-Tech/DeepSeek-V4-Flash-w8a8-mtp"


@pytest.fixture
def script(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def serve(tp=4, dp=4, more=""):
    sizes = f"--tensor-parallel-size {tp} --data-parallel-size {dp} "
    return f"export HCCL_BUFFSIZE=1024\nvllm serve {MODEL} {COMMON}{sizes}{more}\n"


def test_a_script_becomes_a_recipe_that_plans(script, tmp_path, capsys):
    source = script("run.sh", serve())
    target = tmp_path / "recipe" / "mine.yaml"
    assert main(["import", str(source), "hardware=a3", "--output", str(target)]) == 0
    assert "wrote" in capsys.readouterr().out
    tree = yaml.safe_load(target.read_text(encoding="utf-8"))
    assert tree["model"] == "deepseek_v4_flash"
    assert (tree["parallel"]["tp"], tree["parallel"]["dp"]) == (4, 4)
    assert tree["env"] == {"HCCL_BUFFSIZE": "1024"}
    assert main(["check", "recipe=mine", "--config-dir", str(tmp_path)]) == 0
    assert [path.name for path in target.parent.iterdir()] == ["mine.yaml"]


def test_findings_name_lines_of_the_text_not_of_a_folder_that_is_gone(script, capsys):
    source = script("run.sh", serve(tp=7, dp=1))
    assert main(["import", str(source), "hardware=a3", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    wrong = [item for item in document["findings"] if item["at"] == "parallel.tp"]
    assert wrong
    lines = document["text"].splitlines()
    for item in wrong:
        file, _, line = item["source"].partition(":")
        assert file == "imported.yaml"
        assert "tp: 7" in lines[int(line) - 1]


def test_scripts_of_two_roles_become_one_recipe(script, capsys):
    transfer = (
        """--kv-transfer-config '{"kv_connector": "MooncakeConnectorV1", "kv_role": "%s", """
        """"kv_port": "36000", "engine_id": "%d"}'"""
    )
    prefill = script("prefill.sh", serve(more=transfer % ("kv_producer", 0)))
    decode = script("decode.sh", serve(tp=1, dp=16, more=transfer % ("kv_consumer", 1)))
    main(["import", str(prefill), str(decode), "hardware=a3", "--json"])
    recipe = json.loads(capsys.readouterr().out)["recipe"]
    assert set(recipe["roles"]) == {"prefill", "decode"}
    merged = {
        role: {**recipe.get("parallel", {}), **recipe["roles"][role].get("parallel", {})}
        for role in ("prefill", "decode")
    }
    assert (merged["prefill"]["tp"], merged["prefill"]["dp"]) == (4, 4)
    assert (merged["decode"]["tp"], merged["decode"]["dp"]) == (1, 16)


@pytest.mark.parametrize("words", [[], ["nowhere.sh", "hardware=a3"]])
def test_what_cannot_be_read_is_said(words, capsys):
    code = main(["import", *words])
    assert code in (2, 3)
    said = capsys.readouterr()
    assert "Traceback" not in said.err + said.out
    assert said.err


def test_a_file_without_a_command_gives_no_recipe(script, tmp_path, capsys):
    source = script("notes.sh", "echo hello\n")
    target = tmp_path / "recipe" / "none.yaml"
    assert main(["import", str(source), "hardware=a3", "--output", str(target)]) != 0
    assert not target.exists()
