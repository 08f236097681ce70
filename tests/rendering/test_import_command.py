"""`ascend-run import`: scripts in, one recipe out, findings at lines of the text that was made."""

import json
import shlex
import subprocess

import pytest
import yaml

from ascend_recipes.cli.main import main

GRAPHS = """--compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}' """
COMMON = (
    "--quantization ascend --max-model-len 65536 --max-num-batched-tokens 4096 --max-num-seqs 16 "
    "--block-size 128 --gpu-memory-utilization 0.9 --enable-expert-parallel "
    "--no-enable-prefix-caching "
    f"{GRAPHS}"
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


def test_path_that_is_not_there(capsys):
    assert main(["import", "nowhere.sh", "--json"]) == 2
    (item,) = json.loads(capsys.readouterr().out)["findings"]
    assert (item["id"], item["severity"]) == ("lint.no_such_path", "error")
    assert "nowhere.sh" in item["message"]


def test_next_step_plans_a_recipe_that_was_written_anywhere(script, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = script("run.sh", serve())
    assert main(["import", str(source), "hardware=a3", "--output", "mine.yaml"]) == 0
    step = capsys.readouterr().err.rpartition("next: ")[2]
    moved, _, planned = step.strip().rpartition(" && ")
    subprocess.run(moved, shell=True, check=True)
    assert main(shlex.split(planned)[1:]) == 0


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


TRANSFER = """--kv-transfer-config '{"kv_connector": "MooncakeConnectorV1", "kv_role": "%s"%s}'"""


@pytest.mark.parametrize(
    ("producers", "consumers", "first"),
    [
        ((None,), (None,), (0, 1)),
        ((3,), (None,), (3, 0)),
        ((None,), (0,), (1, 0)),
        ((0, 1), (None,), (0, 2)),
        ((1, 2), (None,), (1, 0)),
    ],
)
def test_engines_without_numbers_get_free_ones(script, capsys, producers, consumers, first):
    scripts = []
    for role, kind, ids in (
        ("prefill", "kv_producer", producers),
        ("decode", "kv_consumer", consumers),
    ):
        for number, engine in enumerate(ids):
            stated = "" if engine is None else f', "engine_id": "{engine}"'
            scripts.append(script(f"{role}{number}.sh", serve(more=TRANSFER % (kind, stated))))
    main(["import", *map(str, scripts), "hardware=a3", "--json"])
    document = json.loads(capsys.readouterr().out)
    roles = document["recipe"]["roles"]
    got = tuple(roles[role]["transfer"]["engine_id"] for role in ("prefill", "decode"))
    assert got == first
    assert "pd.engine_id" not in {item["id"] for item in document["findings"]}


@pytest.mark.parametrize("eager_first", [True, False])
def test_keys_of_graphs_stay_keys_where_prefill_is_eager(script, capsys, eager_first):
    compiler = (
        """--additional-config '{"ascend_compilation_config":{"enable_npugraph_ex":false}}'"""
    )
    words = ["--enforce-eager", compiler] if eager_first else [compiler, "--enforce-eager"]
    more = " ".join(words) + " " + TRANSFER
    prefill = script("p.sh", serve(more=more % ("kv_producer", "")).replace(GRAPHS, ""))
    decode = script("d.sh", serve(more=f"{compiler} {TRANSFER}" % ("kv_consumer", "")))
    main(["import", str(prefill), str(decode), "hardware=a3", "--json"])
    recipe = json.loads(capsys.readouterr().out)["recipe"]
    assert recipe["graph"] == {"kind": "none"}
    assert recipe["roles"]["decode"]["graph"]["kind"] == "full_decode"
    assert recipe["roles"]["decode"]["graph"]["compiler_fusion"] is False


@pytest.mark.parametrize("eager_first", [True, False])
def test_an_eager_server_captures_no_graphs(script, capsys, eager_first):
    told = f"--enforce-eager {GRAPHS}" if eager_first else f"{GRAPHS}--enforce-eager "
    main(["import", str(script("s.sh", serve().replace(GRAPHS, told))), "hardware=a3", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["recipe"]["graph"] == {"kind": "none"}
    assert "cudagraph_mode" in json.dumps(document["unmapped"])


KEYS = """--additional-config '{"fuse_muls_add": false, "no_such": 1, "refresh": false,
 "eplb_config": {"no_such": 2}}'"""


def test_a_key_that_nobody_reads_is_left_out_and_its_place_is_offered(script, tmp_path, capsys):
    """vllm-ascend never looks at the first two; blocks may refuse what they do not know."""
    source, target = script("run.sh", serve(more=KEYS)), tmp_path / "recipe" / "mine.yaml"
    assert main(["import", str(source), "hardware=a3", "--output", str(target), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    kept = document["recipe"]["runtime"]["additional_config"]
    assert kept == {"refresh": False, "eplb_config": {"no_such": 2}}
    said = {item["at"].rpartition(".")[2]: item for item in document["findings"]}
    assert said["no_such"]["id"] == "config.unknown_key"
    assert said["fuse_muls_add"]["id"] == "import.unread_key"
    place = "runtime.additional_config.ascend_compilation_config.fuse_muls_add"
    assert said["fuse_muls_add"]["fix"] == f"{place}=false"
    left = [item["target"] for item in document["unmapped"]]
    assert left == ["--additional-config.fuse_muls_add", "--additional-config.no_such"]
    # Without the block that may stop the server, what is left plans, and so does the fix.
    typed = ["~runtime.additional_config.eplb_config", said["fuse_muls_add"]["fix"]]
    words = ["check", "recipe=mine", "--config-dir", str(tmp_path)]
    assert main([*words, typed[0]]) == 0
    assert main([*words, *typed]) == 0


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
