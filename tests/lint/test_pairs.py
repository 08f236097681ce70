"""Prefill and decode commands of one file are judged together, and strangers are not."""

import json

import pytest

from ascend_recipes.lint.files import read_text
from ascend_recipes.lint.judge import judge_reading, lint_paths
from ascend_recipes.surface.load import load_surface

MODEL = "Eco-Tech/Qwen3.5-27B-w8a8-mtp"
OTHER = "Qwen/Qwen3.8-27B"
SIZES = {"dp_size": 1, "tp_size": 4}
UNTRUE = {"prefill": SIZES, "decode": {"dp_size": 1, "tp_size": 2}}


def transfer(role, **changed):
    tree = {
        "kv_connector": "MooncakeHybridConnector",
        "kv_role": f"kv_{role}",
        "kv_port": 30000 if role == "producer" else 30100,
        "engine_id": "0" if role == "producer" else "1",
        "kv_connector_extra_config": {"prefill": SIZES, "decode": SIZES},
    }
    return {key: value for key, value in (tree | changed).items() if value is not None}


def command(role, *flags, model=MODEL, quantization="ascend", **changed):
    """A command of seven lines, the transfer on the last of them, and what is added."""
    sized = any("--tensor-parallel-size" in flag for flag in flags)
    words = [
        f"vllm serve {model}",
        *([f"--quantization {quantization}"] if quantization else []),
        *([] if sized else ["--tensor-parallel-size 4"]),
        "--max-model-len 8192",
        "--max-num-seqs 16",
        "--max-num-batched-tokens 4096",
        f"--kv-transfer-config '{json.dumps(transfer(role, **changed))}'",
        *flags,
    ]
    return " \\\n  ".join(words) + "\n"


def drafting(tokens):
    return f'--speculative-config \'{{"method": "mtp", "num_speculative_tokens": {tokens}}}\''


def found(text, suffix=".sh", version="main-2026-08"):
    reading = read_text("pd", text, suffix)
    return judge_reading("pd", reading, load_surface(version), [])


def alone(text):
    """Ids of findings about the commands one by one."""
    return {item.id for part in text.split("\n\n") for item in found(part)}


def together(text, suffix=".sh", version="main-2026-08"):
    """Findings that only the pair has: id and line."""
    return [
        (item.id, item.source.line)
        for item in found(text, suffix, version)
        if item.id not in alone(text)
    ]


def test_a_pair_that_agrees_has_no_finding():
    assert together(f"{command('producer')}\n{command('consumer')}") == []


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        ({}, {"engine_id": "0"}, ("pd.engine_id", 15)),
        ({}, {"kv_connector": "MooncakeLayerwiseConnector"}, ("pd.connector", 15)),
        ({"kv_connector_extra_config": UNTRUE}, {}, ("pd.tp_conflict", 7)),
    ],
)
def test_what_the_transfers_disagree_about_is_found_at_its_line(prefill, decode, expected):
    text = f"{command('producer', **prefill)}\n{command('consumer', **decode)}"
    assert expected in together(text)


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        (["--block-size 128"], ["--block-size 64"], "pd.block_size"),
        (["--tensor-parallel-size 2"], ["--tensor-parallel-size 4"], "pd.tp_multiple"),
        (["--max-model-len 16384"], ["--max-model-len 8192"], "pd.context"),
        ([drafting(1)], [drafting(3)], "pd.spec_hybrid"),
        (
            ["--additional-config '{\"recompute_scheduler_enable\": true}'"],
            ["--additional-config '{\"recompute_scheduler_enable\": true}'"],
            "pd.recompute",
        ),
    ],
)
def test_what_roles_disagree_about_is_found(prefill, decode, expected):
    text = f"{command('producer', *prefill)}\n{command('consumer', *decode)}"
    assert expected in {id for id, _ in together(text)}


def test_a_fix_is_written_as_the_command_has_it():
    text = f"{command('producer')}\n{command('consumer', engine_id='0')}"
    (item,) = [item for item in found(text) if item.id == "pd.engine_id"]
    assert item.fix == '--kv-transfer-config \'{"engine_id": "1"}\''


def test_a_finding_about_prefill_stands_in_the_prefill_command():
    halves = [command(role, drafting(3), model="/data/mine") for role in ("producer", "consumer")]
    assert ("pd.spec_prefill", 8) in together("\n".join(halves))
    # Models with recurrent states need as many on both sides.
    halves = [command(role, drafting(3)) for role in ("producer", "consumer")]
    assert "pd.spec_prefill" not in {id for id, _ in together("\n".join(halves))}


@pytest.mark.parametrize("order", [("producer", "consumer"), ("consumer", "producer")])
def test_deployments_of_one_file_are_kept_apart(order):
    """Two deployments with block sizes of their own: each agrees with itself only."""
    texts = []
    for size, engine in ((128, 0), (64, 2)):
        for role in order:
            number = str(engine + (role == "consumer"))
            texts.append(command(role, f"--block-size {size}", engine_id=number))
    assert together("\n".join(texts)) == []


def test_a_decode_command_must_disagree_with_every_prefill_command():
    first = command("producer", engine_id="1")
    second = command("producer", engine_id="2")
    decode = command("consumer", engine_id="1")
    assert "pd.engine_id" in {id for id, _ in together(f"{first}\n{decode}")}
    assert "pd.engine_id" not in {id for id, _ in together(f"{first}\n{second}\n{decode}")}


def test_titles_that_name_other_generations_keep_commands_apart():
    page = "## Prefill on {}\n\n```bash\n{}```\n\n## Decode on {}\n\n```bash\n{}```\n"
    prefill, decode = command("producer"), command("consumer", engine_id="0")
    same = page.format("Atlas 800 A3", prefill, "Atlas 800 A3", decode)
    apart = page.format("Atlas 800 A2", prefill, "Atlas 800 A3", decode)
    assert "pd.engine_id" in {id for id, _ in together(same, ".md")}
    assert "pd.engine_id" not in {id for id, _ in together(apart, ".md")}


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        # An engine without a number gets one of its own.
        (command("producer", engine_id=None), command("consumer", engine_id=None)),
        # Another model is another deployment.
        (command("producer"), command("consumer", model=OTHER, quantization="", engine_id="0")),
        # Sizes that a variable holds are not assumed.
        (
            command("producer", "--tensor-parallel-size $TP"),
            command("consumer", "--tensor-parallel-size 4", engine_id="0"),
        ),
        # A default that only one side states.
        (command("producer", "--block-size 64"), command("consumer")),
        # A way of drafting that recipes have no word for.
        (command("producer"), command("consumer", drafting(1).replace("mtp", "eagle3"))),
        # One role alone.
        (command("consumer"), command("consumer")),
    ],
)
def test_what_the_file_does_not_support_is_not_said(prefill, decode):
    assert not [id for id, _ in together(f"{prefill}\n{decode}") if id.startswith("pd.")]


def test_releases_of_vllm_alone_have_no_pairs():
    text = f"{command('producer')}\n{command('consumer', engine_id='0')}"
    assert "pd.engine_id" not in {item.id for item in found(text, version="0.32.0")}
    assert "pd.engine_id" in {item.id for item in found(text, version="0.23.0")}


def beside(tmp_path, **files):
    """What lint says of files in one folder, of each: id and line."""
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        (tmp_path / f"{stem}.{suffix}").write_text(text)
    report = lint_paths([tmp_path], "main-2026-08")
    return {
        (item.source.origin.rpartition("/")[2], item.id, item.source.line)
        for item in report.findings
    }


PREFILL, DECODE = command("producer"), command("consumer")
SAME_ENGINE = command("consumer", engine_id="0")


def test_scripts_of_two_roles_in_one_folder_are_a_pair(tmp_path):
    assert beside(tmp_path, prefill_sh=PREFILL, decode_sh=DECODE) == set()
    found = beside(tmp_path, prefill_sh=PREFILL, decode_sh=SAME_ENGINE)
    assert found == {("decode.sh", "pd.engine_id", 7)}
    # What is about the prefill side stands in its own script, and each thing once.
    drafting_prefill = command("producer", drafting(3), model="/data/mine")
    others = {f"decode{n}_sh": command("consumer", drafting(3), model="/data/mine") for n in (1, 2)}
    found = beside(tmp_path, prefill_sh=drafting_prefill, decode_sh="", **others)
    assert [item for item in found if item[1].startswith("pd.")] == [
        ("prefill.sh", "pd.spec_prefill", 8)
    ]


@pytest.mark.parametrize(
    "files",
    [
        {"prefill_md": f"```bash\n{PREFILL}```\n", "decode_md": f"```bash\n{SAME_ENGINE}```\n"},
        {"prefill_sh": PREFILL, "decode_sh": command("consumer", engine_id="0", model=OTHER)},
        {"prefill_a2_sh": PREFILL, "decode_a3_sh": SAME_ENGINE},
        # One of the two prefill commands is meant: nobody knows which.
        {
            "prefill1_sh": PREFILL,
            "prefill2_sh": command("producer", engine_id="5"),
            "decode_sh": SAME_ENGINE,
        },
        # This file has its own pair.
        {"prefill_sh": PREFILL, "both_sh": f"{command('producer', engine_id='5')}\n{SAME_ENGINE}"},
        # Only a run knows what the second command is.
        {"prefill_sh": PREFILL, "decode_sh": f"{SAME_ENGINE}\n{command('producer')[:-1]} $MORE\n"},
        {"prefill_sh": PREFILL, "decode_sh": command("consumer")},
    ],
    ids=["pages", "models", "generations", "which", "own pair", "unknown", "agreed"],
)
def test_strangers_in_one_folder_are_no_pair(tmp_path, files):
    assert not {item for item in beside(tmp_path, **files) if item[1].startswith("pd.")}


def test_scripts_of_two_folders_are_no_pair(tmp_path):
    for name, text in (("p", PREFILL), ("d", SAME_ENGINE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.sh").write_text(text)
    assert not lint_paths([tmp_path], "main-2026-08").findings
