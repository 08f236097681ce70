"""Every kind of bad checkpoint, in every format that the family is stored in, from its headers."""

import os
from dataclasses import dataclass, field

import pytest

from ascend_recipes.launch.weight_files import WeightsWanted
from ascend_recipes.launch.weight_types import family_storage
from ascend_recipes.models.deepseek_v4.native_format import METHOD, QUANTIZATION
from ascend_recipes.schema.modelslim import DESCRIPTION_FILE
from tests.unit.test_weight_files import CONFIG, SHAPES, described, found, int8_tensors, write

LINEAR, EXPERT = "layers.3.attn.wq_b", "layers.3.ffn.experts.0.w2"
STORAGE = family_storage("deepseek_v4")


@dataclass
class Checkpoint:
    """A good one, to be spoiled before it is written."""

    format: str
    method: str | None
    tensors: dict
    description: dict | None = None
    config: dict = field(default_factory=lambda: dict(CONFIG))

    def findings(self, folder, spoil=None):
        write(folder, self.tensors, self.description, self.config)
        if spoil:
            spoil(folder)
        wanted = WeightsWanted(
            format=self.format, method=self.method, shapes=SHAPES, storage=STORAGE
        )
        return found(folder, wanted, self.config)


def floats():
    return Checkpoint("bf16", None, {name: ("BF16", shape) for name, shape in SHAPES.items()})


def int8():
    tensors = int8_tensors()
    return Checkpoint("w8a8", "ascend", tensors, described(tensors))


def int4():
    """Experts in pairs of outputs, with a bias of scales; of `w2` that has 16 parts."""
    made = int8()
    made.format = "w4a8"
    for name in SHAPES:
        if ".ffn.experts." in name:
            rows, columns = SHAPES[name]
            made.tensors[name] = ("I8", (rows // 2, columns))
            parts = 16 if name.endswith(".w2.weight") else 1
            made.tensors[name.replace(".weight", ".scale_bias")] = ("F32", (rows, parts))
            made.description[name] = "W4A8_DYNAMIC"
    return made


def native():
    tensors = {}
    for name, shape in SHAPES.items():
        scale, kind = name.replace(".weight", ".scale"), STORAGE(name)
        tensors[name] = ("I64" if kind == "int64" else "BF16", shape)
        if kind == "float8":
            tensors[name] = ("F8_E4M3", shape)
            tensors[scale] = ("F8_E8M0", tuple(size // 128 for size in shape))
        elif kind == "float4":
            tensors[name] = ("I8", (shape[0], shape[1] // 2))
            tensors[scale] = ("F8_E8M0", (shape[0], shape[1] // 32))
    config = CONFIG | {"quantization_config": dict(QUANTIZATION)}
    return Checkpoint("fp8_fp4", METHOD, tensors, config=config)


FORMATS = {"bf16": floats, "w8a8": int8, "w4a8": int4, "fp8_fp4": native}


@pytest.fixture(params=FORMATS)
def checkpoint(request):
    return FORMATS[request.param]()


def test_good_checkpoint(checkpoint, tmp_path):
    assert checkpoint.findings(tmp_path) == {}


def test_missing_shard(checkpoint, tmp_path):
    shard = "model-00002-of-00003.safetensors"
    told = checkpoint.findings(tmp_path, lambda folder: (folder / shard).unlink())
    assert set(told) == {"checkpoint.missing_shards"}
    assert shard in told["checkpoint.missing_shards"]


def test_truncated_file(checkpoint, tmp_path):
    shard = "model-00003-of-00003.safetensors"

    def cut(folder):
        os.truncate(folder / shard, (folder / shard).stat().st_size - 1)

    told = checkpoint.findings(tmp_path, cut)
    assert set(told) == {"checkpoint.broken_files"}
    assert shard in told["checkpoint.broken_files"]
    assert "the file is cut short" in told["checkpoint.broken_files"]


@pytest.mark.parametrize("layer", [LINEAR, EXPERT])
def test_wrong_shape(checkpoint, tmp_path, layer):
    kind, (rows, columns) = checkpoint.tensors[f"{layer}.weight"]
    checkpoint.tensors[f"{layer}.weight"] = (kind, (rows, columns + 32))
    told = checkpoint.findings(tmp_path)
    assert set(told) == {"checkpoint.shapes"}
    assert (
        f"{layer}.weight is [{rows}, {columns + 32}], not [{rows}, {columns}]"
        in told["checkpoint.shapes"]
    )


def test_unknown_format(checkpoint, tmp_path):
    checkpoint.config["quantization_config"] = {"quant_method": "gptq"}
    told = checkpoint.findings(tmp_path)
    assert "method gptq" in told["checkpoint.unknown_format"]
    assert f"{checkpoint.format} weights" in told["checkpoint.unknown_format"]


@pytest.mark.parametrize("format", ["w8a8", "w4a8"])
def test_missing_description(tmp_path, format):
    checkpoint = FORMATS[format]()
    told = checkpoint.findings(tmp_path, lambda folder: (folder / DESCRIPTION_FILE).unlink())
    assert set(told) == {"quant.no_description"}


def test_missing_section_of_the_published_format(tmp_path):
    checkpoint = native()
    del checkpoint.config["quantization_config"]
    told = checkpoint.findings(tmp_path)["checkpoint.unknown_format"]
    assert "says quantization method none" in told


@pytest.mark.parametrize("layer", [LINEAR, EXPERT])
@pytest.mark.parametrize("format", ["w8a8", "w4a8"])
def test_description_that_contradicts_the_tensors(tmp_path, format, layer):
    checkpoint = FORMATS[format]()
    checkpoint.description[f"{layer}.weight"] = "FLOAT"
    told = checkpoint.findings(tmp_path)["checkpoint.description_contradicts"]
    assert f"{layer}.weight is described as FLOAT, but stored as I8" in told


@pytest.mark.parametrize(
    ("make", "stored", "text"),
    [
        (native, "BF16", "not F8_E4M3"),
        (floats, "I8", "not BF16"),
        (floats, "F8_E4M3", "not BF16"),
    ],
)
def test_tensors_that_contradict_the_format(tmp_path, make, stored, text):
    """Where no file describes them: other weights under the names of the right ones."""
    checkpoint = make()
    checkpoint.tensors[f"{LINEAR}.weight"] = (stored, SHAPES[f"{LINEAR}.weight"])
    told = checkpoint.findings(tmp_path)["checkpoint.types"]
    assert told.startswith("1 weights have other element types")
    assert f"{LINEAR}.weight is {stored}, {text}" in told


@pytest.mark.parametrize("leaf", ["weight_scale", "scale_bias"])
def test_what_stands_beside_int4_weights(tmp_path, leaf):
    checkpoint = int4()
    rows = SHAPES[f"{EXPERT}.weight"][0]
    checkpoint.tensors[f"{EXPERT}.{leaf}"] = ("F32", (7, 1))
    del checkpoint.tensors[f"layers.3.ffn.experts.1.w2.{leaf}"]
    told = checkpoint.findings(tmp_path)["checkpoint.description_contradicts"]
    assert "in 2 places" in told
    assert f"{EXPERT}.weight has {rows} rows, {EXPERT}.{leaf} is [7, 1]" in told
    assert f"layers.3.ffn.experts.1.w2.weight has no layers.3.ffn.experts.1.w2.{leaf}" in told
