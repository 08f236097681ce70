"""Bad checkpoints are told from their headers; the files here hold no data, only holes."""

import json
import math
import os
import struct
import time

import pytest

from ascend_recipes.cli.main import main
from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.launch.preflight import check_machine
from ascend_recipes.launch.weight_files import WeightsWanted, family_shapes, weight_findings
from ascend_recipes.models.deepseek_v4.tiny import is_quantized, tiny_config
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.modelslim import DESCRIPTION_FILE

WIDTHS = {"BF16": 2, "F32": 4, "I64": 8, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
CONFIG = tiny_config(dict(load_registry().models["deepseek_v4_flash"].config), dtype="bfloat16")
SHAPES = family_shapes("deepseek_v4", CONFIG, drafter="mtp")
WANTED = WeightsWanted(format="w8a8", method="ascend", shapes=SHAPES)
FILES = 3


def int8_tensors():
    """Name -> (type, shape) of a tiny W8A8 checkpoint."""
    tensors = {}
    for name, shape in SHAPES.items():
        if name.endswith(".weight") and is_quantized(name):
            tensors[name] = ("I8", shape)
            tensors[f"{name}_scale"] = tensors[f"{name}_offset"] = ("F32", (shape[0], 1))
        else:
            tensors[name] = ("BF16", shape)
    return tensors


def described(tensors):
    return {
        name: "W8A8_DYNAMIC" if kind == "I8" else "FLOAT"
        for name, (kind, _) in tensors.items()
        if name.endswith(".weight")
    }


def write_file(path, tensors):
    """A header that is right and a hole in place of the data."""
    header, end = {}, 0
    for name, (kind, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * WIDTHS[kind]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def write(folder, tensors, description=None, config=CONFIG):
    names = list(tensors)
    weight_map = {}
    for number in range(FILES):
        file = f"model-{number + 1:05d}-of-{FILES:05d}.safetensors"
        own = names[number::FILES]
        write_file(folder / file, {name: tensors[name] for name in own})
        weight_map |= dict.fromkeys(own, file)
    index = json.dumps({"weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    if description is not None:
        (folder / DESCRIPTION_FILE).write_text(json.dumps(description))
    return weight_map


def found(folder, wanted=WANTED, config=CONFIG):
    return {item.id: item.message for item in weight_findings(folder, config, wanted)}


@pytest.fixture
def good(tmp_path):
    tensors = int8_tensors()
    write(tmp_path, tensors, described(tensors))
    return tmp_path


def test_good_checkpoint(good):
    assert found(good) == {}


def test_missing_shard(good):
    (good / "model-00002-of-00003.safetensors").unlink()
    assert found(good) == {
        "checkpoint.missing_shards": "1 of 3 weight files are missing: "
        "model-00002-of-00003.safetensors"
    }


def test_files_cut_short_are_told_together(good):
    for number in (1, 3):
        path = good / f"model-0000{number}-of-00003.safetensors"
        os.truncate(path, path.stat().st_size - 1)
    (good / "model-00002-of-00003.safetensors").write_bytes(b"<html>")
    (message,) = found(good).values()
    assert message.count("cut short") == 2
    assert "model-00002-of-00003.safetensors is no complete safetensors file" in message


def test_wrong_shape(tmp_path):
    tensors = int8_tensors()
    kind, (rows, columns) = tensors["layers.2.attn.wq_b.weight"]
    tensors["layers.2.attn.wq_b.weight"] = (kind, (rows, columns + 8))
    tensors["layers.2.attn.compressor.ape"] = ("BF16", (4, 512))
    write(tmp_path, tensors, described(tensors))
    (message,) = found(tmp_path).values()
    assert message.startswith("2 tensors have other shapes")
    assert (
        f"layers.2.attn.wq_b.weight is [{rows}, {columns + 8}], not [{rows}, {columns}]" in message
    )
    assert "layers.2.attn.compressor.ape is [4, 512], not [4, 1024]" in message


def test_missing_tensor(tmp_path):
    tensors = int8_tensors()
    del tensors["layers.4.hc_attn_fn"]
    write(tmp_path, tensors, described(tensors))
    assert "1 tensors that config.json calls for: layers.4.hc_attn_fn" in found(tmp_path).pop(
        "checkpoint.lacks_tensors"
    )


def test_index_of_another_download(good):
    path = good / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["layers.0.extra.weight"] = "model-00001-of-00003.safetensors"
    path.write_text(json.dumps(index))
    assert "layers.0.extra.weight" in found(good)["checkpoint.index_differs"]


def test_missing_description(good):
    (good / DESCRIPTION_FILE).unlink()
    (message,) = found(good).values()
    assert DESCRIPTION_FILE in message


@pytest.mark.parametrize(
    ("name", "scheme", "text"),
    [
        ("layers.0.attn.wq_a.weight", "FLOAT", "described as FLOAT, but stored as I8"),
        ("layers.0.attn.wo_a.weight", "W8A8_DYNAMIC", "as W8A8_DYNAMIC, but stored as BF16"),
        ("layers.0.attn.wq_a.weight", None, "is stored as I8, but not described"),
        ("layers.99.attn.wq_a.weight", "FLOAT", "is described, but not stored"),
    ],
)
def test_description_that_contradicts_the_tensors(tmp_path, name, scheme, text):
    tensors = int8_tensors()
    description = described(tensors) | {name: scheme}
    if scheme is None:
        del description[name]
    write(tmp_path, tensors, description)
    message = found(tmp_path)["checkpoint.description_contradicts"]
    assert "in 1 places" in message
    assert f"{name}" in message
    assert text in message


def test_scales_belong_to_their_weights(tmp_path):
    tensors = int8_tensors()
    del tensors["layers.1.attn.wkv.weight_scale"]
    tensors["layers.1.attn.wq_b.weight_scale"] = ("F32", (7, 1))
    tensors["layers.2.attn.wq_b.weight_offset"] = ("F32", (8, 1))
    write(tmp_path, tensors, described(tensors))
    message = found(tmp_path)["checkpoint.description_contradicts"]
    assert "layers.1.attn.wkv.weight has no layers.1.attn.wkv.weight_scale" in message
    assert "layers.1.attn.wq_b.weight_scale is [7, 1]" in message
    assert "layers.2.attn.wq_b.weight_offset is [8, 1]" in message


def test_unknown_scheme(tmp_path):
    tensors = int8_tensors()
    write(tmp_path, tensors, described(tensors) | {"layers.0.attn.wq_a.weight": "W3A5"})
    message = found(tmp_path)["checkpoint.unknown_scheme"]
    assert "as W3A5" in message
    assert "W8A8_DYNAMIC" in message


def test_scheme_that_only_the_other_runtime_reads(tmp_path):
    tensors = int8_tensors()
    write(tmp_path, tensors, described(tensors) | {"layers.0.attn.wq_a.weight": "W8A8"})
    assert "checkpoint.unknown_scheme" in found(tmp_path)
    other = WeightsWanted(format="w8a8", method="ascend", runtime="vllm_ascend", shapes=SHAPES)
    assert found(tmp_path, other) == {}


def test_config_of_another_format(good):
    config = CONFIG | {"quantization_config": {"quant_method": "gptq"}}
    floats = WeightsWanted(format="bf16", method=None)
    message = found(good, floats, config)["checkpoint.unknown_format"]
    assert message == (
        "config.json says quantization method gptq; bf16 weights are read by no method"
    )
    native = WeightsWanted(format="fp8_fp4", method="deepseek_v4_fp8")
    assert "says quantization method none" in found(good, native)["checkpoint.unknown_format"]
    fp8 = CONFIG | {"quantization_config": {"quant_method": "fp8"}}
    assert found(good, native, fp8) == {}


def test_pickled_weights(tmp_path):
    (tmp_path / "pytorch_model.bin").touch()
    (message,) = found(tmp_path).values()
    assert ".bin" in message


def test_family_without_shapes_is_checked_for_the_rest(good):
    assert family_shapes("no_such_family", CONFIG) == {}
    (good / "model-00001-of-00003.safetensors").unlink()
    wanted = WeightsWanted(format="w8a8", method="ascend")
    assert set(found(good, wanted)) == {"checkpoint.missing_shards"}


TINY = ("recipe=deepseek_v4_a3", "device=emulated", "scale=tiny")


def test_launch_is_refused_with_the_exit_code_of_findings(plan, good):
    mine = plan(*TINY, f"checkpoint.path={good}").plan
    check_machine(mine, serving=False)
    (good / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(RecipeError) as caught:
        check_machine(mine, serving=False)
    assert [item.id for item in caught.value.findings] == ["checkpoint.missing_shards"]
    assert caught.value.exit_code is ExitCode.FINDINGS


def test_folder_without_a_tokenizer(plan, good):
    (good / "tokenizer.json").unlink()
    words = (*TINY, f"checkpoint.path={good}")
    with pytest.raises(RecipeError) as caught:
        check_machine(plan(*words).plan, serving=False)
    (item,) = caught.value.findings
    assert item.id == "checkpoint.no_tokenizer"
    assert str(good) in item.message
    check_machine(plan(*words, "extra_args.tokenizer=/elsewhere").plan, serving=False)


def test_nobody_writes_tiny_weights_beside_a_folder_that_was_named(plan, tmp_path):
    mine = plan(*TINY, f"checkpoint.path={tmp_path / 'nowhere'}").plan
    assert mine.model.tiny_seed is None
    assert plan(*TINY).plan.model.tiny_seed == 0
    with pytest.raises(RecipeError) as caught:
        check_machine(mine, serving=False)
    assert [item.id for item in caught.value.findings] == ["checkpoint.missing"]
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


UNTRIED = ["runtime.replicated_experts", "runtime.unverified"]


def test_plan_says_what_is_wrong_with_weights_that_are_here(good, capsys):
    words = ["plan", "recipe=deepseek_v4_a3", f"checkpoint.path={good}", "--json"]
    assert main(words) == ExitCode.OK
    assert blockers(capsys) == UNTRIED
    (good / "model-00003-of-00003.safetensors").unlink()
    assert main(words) == ExitCode.OK
    assert blockers(capsys) == [*UNTRIED, "checkpoint.missing_shards"]
    assert main([*words[:2], f"checkpoint.path={good / 'elsewhere'}", "--json"]) == ExitCode.OK
    assert blockers(capsys) == UNTRIED


def blockers(capsys):
    return [item["id"] for item in json.loads(capsys.readouterr().out)["blockers"]]


def test_a_published_checkpoint_is_judged_in_seconds(tmp_path, plan):
    config = dict(load_registry().models["deepseek_v4_flash"].config)
    shapes = family_shapes("deepseek_v4", config, drafter="mtp")
    assert len(shapes) > 30_000
    # One file of which nothing but the header takes room on the disk.
    write_file(tmp_path / "model.safetensors", {n: ("BF16", s) for n, s in shapes.items()})
    start = time.perf_counter()
    wanted = WeightsWanted(format="bf16", method=None, shapes=shapes)
    assert list(weight_findings(tmp_path, config, wanted)) == []
    assert time.perf_counter() - start < 5
