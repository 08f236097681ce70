"""Dtypes that a contract lists for a side input (scales, biases, indices, flags, masks).

The tests of each group draw these in one dtype; here every other one meets the reference, which
widens what it gets. What the vendor's operator lacks, the binding converts.
"""

import pytest
import torch

from ascend_recipes.emulation import install
from ascend_recipes.ops import (
    attention,
    compressor,
    grouped,
    latent_cache,
    load_function,
    moe_gating,
    moe_routing,
    quantization,
    recurrent,
    rotary,
)
from ascend_recipes.registry.load import load_registry

pytestmark = pytest.mark.ops

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32")
INTEGERS = ("int32", "int64")


def of(dtype, *shape):
    return torch.randn(shape).to(getattr(torch, dtype))


def whole(low, high, *shape):
    return torch.randint(low, high, shape)


def gate(function, dtype, **more):
    return function, (of(dtype, 5, 16),), {"bias_G": of(dtype, 16) * 0.1, "top_k": 3, **more}


def int8_product(scale="float32", bias=None):
    x, weight = (whole(-9, 9, *shape).to(torch.int8) for shape in ((3, 32), (32, 16)))
    options = {
        "token_scale_T": torch.rand(3),
        "bias_N": None if bias is None else of(bias, 16),
        "output_dtype": torch.bfloat16 if "bfloat16" in (scale, bias) else torch.float16,
    }
    return quantization.quant_matmul_npu, (x, weight, of(scale, 16)), options


def int8_groups(scale):
    x, weight = (whole(-9, 9, *shape).to(torch.int8) for shape in ((5, 32), (2, 32, 16)))
    arguments = (x, weight, of(scale, 2, 16), torch.rand(5), torch.tensor([2, 3]))
    options = {"cumulative": False, "output_dtype": torch.bfloat16}
    return grouped.grouped_quant_matmul_npu, arguments, options


def int8_swiglu(function, scale):
    x, weight = (whole(-9, 9, *shape).to(torch.int8) for shape in ((5, 64), (2, 64, 32)))
    arguments = (x, weight, of(scale, 2, 32) * 0.01, torch.rand(5), torch.tensor([2, 5]))
    return function, arguments, {"cumulative": True, "limit": 0.0}


def convolution(dtype, *, initial="bool", accepted=None, indices="int32"):
    kind = getattr(torch, indices)
    options = {
        "query_start_R1": torch.tensor([0, 2, 5], dtype=kind),
        "cache_indices_R": torch.tensor([2, 0], dtype=kind),
        "has_initial_state_R": None
        if accepted
        else torch.tensor([1, 0]).to(getattr(torch, initial)),
        "bias": of(dtype, 32),
        "activation": "silu",
        "num_accepted": torch.tensor([1, 2], dtype=getattr(torch, accepted)) if accepted else None,
        "decode": accepted is not None,
    }
    arguments = (of(dtype, 5, 32), of(dtype, 4, 32), of(dtype, 3, 6, 32))
    return recurrent.causal_conv1d_custom, arguments, options


def delta_rule(state):
    query, key = (
        torch.nn.functional.normalize(torch.randn(7, 2, 128), dim=-1).bfloat16() for _ in "qk"
    )
    arguments = (
        query,
        key,
        of("bfloat16", 7, 4, 128),
        -torch.rand(7, 4),
        torch.rand(7, 4).bfloat16(),
        of(state, 2, 4, 128, 128) * 0.1,
    )
    options = {"lengths_R": torch.tensor([3, 4], dtype=torch.int32), "scale": 0.1}
    return recurrent.chunk_gated_delta_rule_npu, arguments, options


def rotation(function, positions):
    arguments = (
        whole(0, 32, 5).to(getattr(torch, positions)),
        of("bfloat16", 5, 4 * 64),
        of("bfloat16", 5, 2 * 64),
        of("bfloat16", 32, 64),
    )
    options = {"head_size": 64, "rotary_dim": 64, "neox": True}
    return function, arguments, options


def key_cache_write(slots):
    arguments = (
        of("bfloat16", 3, 2, 16),
        of("bfloat16", 3, 2, 16),
        torch.zeros(2, 16, 2, 16).bfloat16(),
        torch.zeros(2, 16, 2, 16).bfloat16(),
        torch.tensor([4, 31, 0]).to(getattr(torch, slots)),
    )
    return attention.write_kv_cache_npu, arguments, {}


def indexer_write(function, keys, slots, cache, scale):
    arguments = (
        of(keys, 3, 128),
        *latent_cache.indexer_views(
            torch.zeros(2, 16, 128 + getattr(torch, scale).itemsize, dtype=torch.uint8), cache
        ),
        torch.tensor([4, 31, 0]).to(getattr(torch, slots)),
    )
    return function, arguments, {}


def permutation(ids):
    chosen = torch.tensor([[0, 3], [1, 2], [3, 1]]).to(getattr(torch, ids))
    return moe_routing.moe_permute_npu, (of("bfloat16", 3, 16), chosen), {}


def masked(mask):
    options = {
        "block_table_RM": torch.tensor([[1], [0]], dtype=torch.int32),
        "query_lengths_cumulative": [2, 3],
        "kv_lengths": [9, 4],
        "block_size": 128,
        "num_kv_heads": 2,
        "scale": 0.25,
        "mask": torch.ones(2048, 2048).triu(1).to(getattr(torch, mask)),
        "causal": True,
    }
    cache = of("bfloat16", 2, 128, 2, 16)
    return attention.paged_attention_npu, (of("bfloat16", 3, 4, 16), cache, cache), options


def rope_tables(dtype):
    options = {
        "block_table_RV": torch.tensor([[1]], dtype=torch.int32),
        "query_start_R1": torch.tensor([0, 8], dtype=torch.int32),
        "start_R": torch.tensor([0], dtype=torch.int32),
        "ratio": 4,
        "epsilon": 1e-6,
    }
    arguments = (
        of("bfloat16", 8, 1024),
        of("bfloat16", 1024, 1024) * 0.03,
        of("bfloat16", 1024, 1024) * 0.03,
        torch.randn(4, 1024),
        of("bfloat16", 512),
        torch.zeros(3, 8, 2048),
        *(of(dtype, 3, 32).repeat_interleave(2, dim=-1) for _ in range(2)),
    )
    return compressor.compressor_custom, arguments, options


def quantized_norm(function, count):
    rows = [of("float32", 3, 64) for _ in range(count)]
    return function, (*rows, of("float32", 64)), {"epsilon": 1e-6}


CALLS = {
    **{
        f"moe_gate_sigmoid bias {dtype} {function.__name__}": (
            lambda d=dtype, f=function: gate(f, d, groups=1, top_groups=1, scaling=1.5)
        )
        for dtype in FLOATS
        for function in (moe_gating.moe_gate_sigmoid_npu, moe_gating.moe_gate_sigmoid_custom)
    },
    **{
        f"moe_gate_sqrt_softplus bias {dtype}": (
            lambda d=dtype: gate(moe_gating.moe_gate_sqrt_softplus_npu, d, scaling=1.5)
        )
        for dtype in FLOATS
    },
    "quant_matmul scale bfloat16": lambda: int8_product("bfloat16"),
    "quant_matmul bias float16": lambda: int8_product(bias="float16"),
    "quant_matmul bias bfloat16": lambda: int8_product("bfloat16", "bfloat16"),
    "grouped_quant_matmul scale bfloat16": lambda: int8_groups("bfloat16"),
    **{
        f"grouped_matmul_swiglu_quant scale {dtype} {function.__name__}": (
            lambda d=dtype, f=function: int8_swiglu(f, d)
        )
        for dtype in HALVES
        for function in (
            grouped.grouped_matmul_swiglu_quant_npu,
            grouped.grouped_matmul_swiglu_quant_list_npu,
        )
    },
    **{f"causal_conv1d bias {dtype}": lambda d=dtype: convolution(d) for dtype in HALVES},
    **{
        f"causal_conv1d initial {dtype}": lambda d=dtype: convolution("bfloat16", initial=d)
        for dtype in INTEGERS
    },
    **{
        f"causal_conv1d accepted {dtype}": (
            lambda d=dtype: convolution("bfloat16", accepted=d, indices=d)
        )
        for dtype in INTEGERS
    },
    **{
        f"chunk_gated_delta_rule state {dtype}": lambda d=dtype: delta_rule(d)
        for dtype in ("bfloat16", "float32")
    },
    **{
        f"rotary_embedding positions {dtype} {function.__name__}": (
            lambda d=dtype, f=function: rotation(f, d)
        )
        for dtype in INTEGERS
        for function in (rotary.rotary_embedding_mrope, rotary.rotary_embedding_rotary_mul)
    },
    **{f"write_kv_cache slots {dtype}": lambda d=dtype: key_cache_write(d) for dtype in INTEGERS},
    **{
        f"write_indexer_keys keys {keys} slots {slots} int8": (
            lambda k=keys, s=slots: indexer_write(
                latent_cache.write_indexer_keys_scatter, k, s, torch.int8, "float16"
            )
        )
        for keys in HALVES
        for slots in INTEGERS
    },
    **{
        f"write_indexer_keys keys {keys} slots {slots} fp8": (
            lambda k=keys, s=slots: indexer_write(
                latent_cache.write_indexer_keys_epilog, k, s, torch.float8_e4m3fn, "float32"
            )
        )
        for keys in HALVES
        for slots in INTEGERS
    },
    **{f"moe_permute ids {dtype}": lambda d=dtype: permutation(d) for dtype in INTEGERS},
    **{f"paged_attention mask {d}": lambda d=d: masked(d) for d in ("bool", "int8", "uint8")},
    **{f"compressor tables {dtype}": lambda d=dtype: rope_tables(d) for dtype in ("bfloat16",)},
    "rms_norm_dynamic_quant x float32": lambda: quantized_norm(
        quantization.rms_norm_dynamic_quant_npu, 1
    ),
    "add_rms_norm_dynamic_quant x float32": lambda: quantized_norm(
        quantization.add_rms_norm_dynamic_quant_npu, 2
    ),
}


DEFINED = {"compressor": slice(2)}
"""Rows of a result that are defined, where the last ones are not."""


def outcome(name, function=None):
    """Results of the binding, or of another function, and the arguments as it left them."""
    torch.manual_seed(11)
    binding, arguments, options = CALLS[name]()
    results = (binding if function is None else function)(*arguments, **options)
    results = results if isinstance(results, tuple) else (results,)
    defined = DEFINED.get(name.split()[0], slice(None))
    results = [item[defined] for item in results if item is not None]
    return [*results, *arguments]


@pytest.mark.parametrize("name", CALLS)
def test_side_inputs_may_have_every_listed_dtype(name):
    contract = load_registry().operations[name.split()[0]]
    if "x float32" in name:
        # The vendor takes float32 nowhere: such a plan is a relaxed one.
        install({"dtype.float32"})
    expected = outcome(name, load_function(contract.reference))
    for actual, wanted in zip(outcome(name), expected, strict=True):
        assert actual.dtype == wanted.dtype and actual.shape == wanted.shape
        actual, wanted = actual.float(), wanted.float()
        tolerance = max(1e-6, *contract.tolerance.values()) * max(float(wanted.abs().max()), 1e-6)
        torch.testing.assert_close(actual, wanted, rtol=0.0, atol=tolerance, equal_nan=True)


def test_the_table_covers_what_its_contracts_list():
    """A dtype that a contract gains for one of these inputs needs a call here."""
    listed = load_registry().operations
    for operation, argument in (
        ("moe_gate_sqrt_softplus", "bias_G"),
        ("write_kv_cache", "slots_T"),
        ("moe_permute", "ids_TK"),
        ("paged_attention", "mask"),
    ):
        word = argument.split("_")[0]
        calls = [name for name in CALLS if name.startswith(f"{operation} {word}")]
        assert len(calls) == len(listed[operation].inputs[argument].dtypes)
