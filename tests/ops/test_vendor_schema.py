"""Our operator schemas against the vendor's, and our Meta kernels against our CPU kernels."""

from importlib import import_module
from pathlib import Path

import pytest
import torch

from ascend_recipes.emulation import operator_names
from ascend_recipes.emulation.register import load_schemas
from ascend_recipes.ops import attention, norm

pytestmark = [pytest.mark.ops, pytest.mark.vendor]

VENDOR = Path(__file__).with_name("vendor")


def vendor_schemas():
    """Every schema of the vendors' packages, by dispatcher name, as recorded from them."""
    schemas = {}
    for path in sorted(VENDOR.glob("*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                schemas[line.split("(", 1)[0]] = line
    return schemas


def parsed(schema):
    return str(torch._C.parse_schema(schema))


def test_the_recorded_schemas_are_complete():
    names = vendor_schemas()
    assert sum(name.startswith("npu::") for name in names) == 425
    assert sum(name.startswith("_C_ascend::") for name in names) >= 57


@pytest.mark.parametrize("name", operator_names())
def test_snapshot_equals_the_vendor(name):
    assert parsed(load_schemas()[name]) == parsed(vendor_schemas()[name])


def test_the_snapshot_holds_only_what_is_emulated():
    assert set(load_schemas()) == set(operator_names())


@pytest.mark.parametrize("name", operator_names())
def test_the_dispatcher_holds_the_vendor_schema(name):
    defined = [str(item) for item in torch._C._jit_get_schemas_for_operator(name)]
    assert defined == [parsed(vendor_schemas()[name])]


@pytest.mark.parametrize(
    ("change", "into"),
    [
        ("float epsilon=", "float eps="),
        ("Tensor gamma", "Tensor? gamma"),
        ("(Tensor, Tensor)", "Tensor"),
    ],
)
def test_a_changed_schema_is_noticed(change, into):
    schema = vendor_schemas()["npu::npu_rms_norm"]
    assert change in schema
    assert parsed(schema.replace(change, into)) != parsed(load_schemas()["npu::npu_rms_norm"])


def test_a_wrong_argument_name_does_not_bind():
    with pytest.raises(RuntimeError, match="eps"):
        torch.ops.npu.npu_rms_norm(torch.zeros(1, 8), torch.zeros(8), eps=1e-6)


def bfloat(*shape):
    return torch.randn(*shape).bfloat16()


def state():
    return torch.randn(2, 2, 128, 128).bfloat16()


def delta(lengths):
    return {
        "beta": torch.rand(2, 2).bfloat16(),
        "scale": 0.1,
        "g": -torch.rand(2, 2),
        "actual_seq_lengths": torch.tensor(lengths, dtype=torch.int32),
    }


SLOTS = {"ssm_state_indices": torch.tensor([0, 1], dtype=torch.int32)}
HEADS = (bfloat(2, 1, 128), bfloat(2, 1, 128), bfloat(2, 2, 128))
CALLS = {
    "npu::npu_rms_norm": ((bfloat(3, 2, 8), bfloat(8)), {}),
    "npu::npu_gemma_rms_norm": ((bfloat(3, 2, 8), bfloat(8)), {}),
    "npu::npu_add_rms_norm": ((bfloat(3, 8), bfloat(3, 8), bfloat(8)), {}),
    "npu::npu_swiglu": ((bfloat(3, 8),), {}),
    "npu::npu_rotary_mul": ((bfloat(1, 3, 2, 8), bfloat(1, 3, 1, 8), bfloat(1, 3, 1, 8)), {}),
    "npu::npu_mrope": (
        (torch.tensor([0, 1]), bfloat(2, 64), bfloat(2, 32), bfloat(4, 32), 32),
        {},
    ),
    "npu::npu_top_k_top_p": ((bfloat(2, 9),), {"p": torch.tensor([0.5, 1.0]).bfloat16()}),
    "npu::npu_fused_infer_attention_score": (
        (bfloat(3, 4, 32), bfloat(3, 2, 32), bfloat(3, 2, 32)),
        {
            "input_layout": "TND",
            "num_heads": 4,
            "num_key_value_heads": 2,
            "actual_seq_lengths": [3],
            "actual_seq_lengths_kv": [3],
        },
    ),
    "npu::npu_chunk_gated_delta_rule": (HEADS, delta([1, 1]) | {"initial_state": state()}),
    "npu::npu_recurrent_gated_delta_rule": ((*HEADS, state()), delta([1, 1]) | SLOTS),
    "_C_ascend::npu_recurrent_gated_delta_rule": ((*HEADS, state()), delta([0, 1, 1]) | SLOTS),
    "_C_ascend::npu_causal_conv1d_custom": (
        (
            bfloat(3, 16),
            bfloat(3, 16),
            bfloat(4, 16),
            bfloat(2, 3, 16),
            None,
            torch.tensor([0, 3]),
            torch.tensor([1]),
            None,
            None,
            1,
            -1,
            0,
        ),
        {},
    ),
}


WITHOUT_OUTPUT = {"npu::npu_scatter_pa_kv_cache"}

# Further groups keep their calls in `<group>_calls.py`.
for _path in sorted(Path(__file__).parent.glob("*_calls.py")):
    _module = import_module(f"tests.ops.{_path.stem}")
    CALLS |= _module.CALLS
    WITHOUT_OUTPUT |= _module.WITHOUT_OUTPUT


def made(value):
    return value() if callable(value) else value


def on_meta(value):
    if isinstance(value, list):
        return [on_meta(item) for item in value]
    return value.to("meta") if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("name", sorted(CALLS))
def test_meta_kernels_agree_with_cpu_kernels(name):
    namespace, operator = name.split("::")
    function = getattr(getattr(torch.ops, namespace), operator)
    arguments, keywords = CALLS[name]
    keywords = {key: made(item) for key, item in keywords.items()}
    found = function(*arguments, **keywords)
    meta = function(
        *map(on_meta, arguments), **{key: on_meta(item) for key, item in keywords.items()}
    )
    outputs, shapes = (
        [part for part in (item if isinstance(item, tuple | list) else (item,)) if part is not None]
        for item in (found, meta)
    )
    assert [(item.shape, item.dtype) for item in outputs] == [
        (item.shape, item.dtype) for item in shapes
    ]
    assert all(item.device.type == "meta" for item in shapes)


def test_every_emulated_operator_is_compared():
    assert set(CALLS) | WITHOUT_OUTPUT == set(operator_names())


def test_bindings_run_on_meta_tensors():
    """Shapes of a real plan can be checked without its numbers."""
    x = torch.empty(8192, 5120, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(5120, dtype=torch.bfloat16, device="meta")
    assert norm.gemma_rms_norm_npu(x, weight, epsilon=1e-6).shape == x.shape
    query = torch.empty(8192, 24, 256, dtype=torch.bfloat16, device="meta")
    cache = torch.empty(512, 128, 4, 256, dtype=torch.bfloat16, device="meta")
    out = attention.paged_attention_npu(
        query,
        cache,
        cache,
        block_table_RM=torch.empty(1, 64, dtype=torch.int32, device="meta"),
        query_lengths_cumulative=[8192],
        kv_lengths=[8192],
        block_size=128,
        num_kv_heads=4,
        scale=0.0625,
        mask=None,
        causal=False,
    )
    assert out.shape == query.shape
