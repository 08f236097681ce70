"""Published float8 and float4 checkpoints are judged from their headers too."""

import pytest

from ascend_recipes.launch.weight_files import WeightsWanted
from ascend_recipes.models.deepseek_v4.native_format import METHOD, QUANTIZATION, storage
from tests.unit.test_weight_files import CONFIG, SHAPES, found, write

PUBLISHED = CONFIG | {"quantization_config": dict(QUANTIZATION)}
WANTED = WeightsWanted(format="fp8_fp4", method=METHOD, shapes=SHAPES)

LINEAR, EXPERT = "layers.3.attn.wq_b", "layers.3.ffn.experts.0.w2"


@pytest.fixture
def tensors():
    """Name -> (type, shape), sizes written out by hand from the format."""
    stored = {}
    for name, shape in SHAPES.items():
        layer, kind = name.removesuffix(".weight"), storage(name)
        if kind == "float8":
            stored[name] = ("F8_E4M3", shape)
            stored[f"{layer}.scale"] = ("F8_E8M0", tuple(size // 128 for size in shape))
        elif kind == "float4":
            stored[name] = ("I8", (shape[0], shape[1] // 2))
            stored[f"{layer}.scale"] = ("F8_E8M0", (shape[0], shape[1] // 32))
        else:
            stored[name] = ("I64" if kind else "BF16", shape)
    return stored


def told(folder, tensors):
    write(folder, tensors, config=PUBLISHED)
    return found(folder, WANTED, PUBLISHED)


def test_good_checkpoint(tmp_path, tensors):
    kinds = {tensors[f"{layer}.weight"][0] for layer in (LINEAR, EXPERT)}
    assert kinds == {"F8_E4M3", "I8"}
    assert told(tmp_path, tensors) == {}


@pytest.mark.parametrize("layer", [LINEAR, EXPERT])
def test_missing_scale(tmp_path, tensors, layer):
    del tensors[f"{layer}.scale"]
    message = told(tmp_path, tensors)["checkpoint.lacks_tensors"]
    assert f"{layer}.scale" in message


@pytest.mark.parametrize(
    ("name", "shape", "text"),
    [
        (f"{LINEAR}.scale", (64, 2), f"{LINEAR}.scale is [64, 2], not [64, 1]"),
        (f"{LINEAR}.weight", (128, 8192), f"{LINEAR}.weight is [128, 8192], not [8192, 128]"),
        (f"{EXPERT}.weight", (256, 128), f"{EXPERT}.weight is [256, 128], not [256, 64]"),
        (f"{EXPERT}.scale", (256, 8), f"{EXPERT}.scale is [256, 8], not [256, 4]"),
    ],
)
def test_wrong_shape(tmp_path, tensors, name, shape, text):
    tensors[name] = (tensors[name][0], shape)
    assert text in told(tmp_path, tensors)["checkpoint.shapes"]
