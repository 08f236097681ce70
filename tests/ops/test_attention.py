"""Attention and cache writes, paged and dense."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.emulation import OperatorRefusedError, install
from ascend_recipes.ops import attention
from ascend_recipes.ops.reference import attention as reference_attention

pytestmark = pytest.mark.ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BLOCK = 128


def paged_case(queries, keys, *, heads, kv_heads, head, dtype):
    """Caches full of NaN but for the keys of each request, in shuffled blocks."""
    blocks_of = [-(-length // BLOCK) for length in keys]
    order = torch.randperm(sum(blocks_of) + 2).tolist()
    shape = (len(order), BLOCK, kv_heads, head)
    key_cache, value_cache = (torch.full(shape, torch.nan, dtype=dtype) for _ in range(2))
    block_table = torch.full((len(keys), max(blocks_of) + 1), -7, dtype=torch.int32)
    dense_keys, dense_values = [], []
    for request, length in enumerate(keys):
        numbers = [order.pop() for _ in range(blocks_of[request])]
        block_table[request, : len(numbers)] = torch.tensor(numbers, dtype=torch.int32)
        key, value = (torch.randn(length, kv_heads, head).to(dtype) for _ in range(2))
        for place in range(length):
            slot = (numbers[place // BLOCK], place % BLOCK)
            key_cache[slot], value_cache[slot] = key[place], value[place]
        dense_keys.append(key)
        dense_values.append(value)
    return {
        "query": torch.randn(sum(queries), heads, head).to(dtype),
        "caches": (key_cache, value_cache),
        "dense": (torch.cat(dense_keys), torch.cat(dense_values)),
        "paged": {
            "block_table_RM": block_table,
            "query_lengths_cumulative": torch.tensor(queries).cumsum(0).tolist(),
            "kv_lengths": list(keys),
            "block_size": BLOCK,
            "num_kv_heads": kv_heads,
            "scale": head**-0.5,
            "mask": attention.causal_mask(torch.device("cpu")),
        },
    }


BATCHES = [
    pytest.param([1], [1], 1, 1, 16, id="one-token"),
    pytest.param([1] * 9, [1, 2, 127, 128, 129, 300, 64, 5, 257], 12, 2, 256, id="decode"),
    pytest.param([7], [7], 12, 2, 256, id="prefill"),
    pytest.param([1, 130, 1, 5], [200, 130, 1, 133], 6, 1, 64, id="mixed-chunked"),
    pytest.param([3, 3, 3], [3, 130, 40], 8, 8, 48, id="verify-multi-head"),
    pytest.param([300], [300], 4, 2, 32, id="long-prefill"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("queries", "keys", "heads", "kv_heads", "head"), BATCHES)
def test_paged_binding_equals_reference(
    queries, keys, heads, kv_heads, head, dtype, relaxed, agree
):
    relaxed(dtype)
    case = paged_case(queries, keys, heads=heads, kv_heads=kv_heads, head=head, dtype=dtype)
    expected = reference_attention.paged_attention(case["query"], *case["caches"], **case["paged"])
    actual = attention.paged_attention_npu(case["query"], *case["caches"], **case["paged"])
    agree("paged_attention", actual, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("queries", "keys", "heads", "kv_heads", "head"), BATCHES)
@pytest.mark.parametrize("causal", [True, False])
def test_dense_binding_equals_reference(
    queries, keys, heads, kv_heads, head, dtype, causal, relaxed, agree
):
    relaxed(dtype)
    case = paged_case(queries, keys, heads=heads, kv_heads=kv_heads, head=head, dtype=dtype)
    arguments = {
        "query_lengths_cumulative": case["paged"]["query_lengths_cumulative"],
        "kv_lengths_cumulative": torch.tensor(keys).cumsum(0).tolist(),
        "num_kv_heads": kv_heads,
        "scale": head**-0.5,
        "mask": case["paged"]["mask"],
        "causal": causal,
    }
    expected = reference_attention.dense_attention(case["query"], *case["dense"], **arguments)
    actual = attention.dense_attention_npu(case["query"], *case["dense"], **arguments)
    agree("dense_attention", actual, expected)


@pytest.mark.parametrize("queries", [[1, 1], [3, 130]])
def test_both_cache_layouts_agree(queries, relaxed):
    relaxed(torch.float32)
    case = paged_case(queries, [200, 131], heads=4, kv_heads=2, head=32, dtype=torch.float32)
    keywords = {
        "input_layout": "TND",
        "num_heads": 4,
        "num_key_value_heads": 2,
        "block_table": case["paged"]["block_table_RM"],
        "block_size": BLOCK,
        "actual_seq_lengths": case["paged"]["query_lengths_cumulative"],
        "actual_seq_lengths_kv": case["paged"]["kv_lengths"],
        "sparse_mode": 3,
        "atten_mask": case["paged"]["mask"],
    }
    flat = [cache.flatten(2) for cache in case["caches"]]
    by_head = [cache.transpose(1, 2).contiguous() for cache in case["caches"]]
    results = [
        torch.ops.npu.npu_fused_infer_attention_score(case["query"], *caches, **keywords)[0]
        for caches in (flat, by_head)
    ]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (1, 33), (70, 70), (64, 200), (3, 4)])
def test_reference_equals_scaled_dot_product_attention(queries, keys, causal):
    query, key, value = torch.randn(queries, 6, 32), torch.randn(keys, 2, 32), None
    value = torch.randn(keys, 2, 32)
    visible = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    expected = F.scaled_dot_product_attention(
        query.transpose(0, 1),
        key.transpose(0, 1),
        value.transpose(0, 1),
        attn_mask=visible if causal else None,
        enable_gqa=True,
    ).transpose(0, 1)
    actual = reference_attention.dense_attention(
        query,
        key,
        value,
        query_lengths_cumulative=[queries],
        kv_lengths_cumulative=[keys],
        num_kv_heads=2,
        scale=32**-0.5,
        mask=None,
        causal=causal,
    )
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [1, 4, 128, 500])
def test_window_equals_reference(window, relaxed, agree):
    relaxed(torch.float32)
    case = paged_case([1, 40, 2], [200, 40, 131], heads=4, kv_heads=2, head=32, dtype=torch.float32)
    arguments = case["paged"] | {"window": window}
    expected = reference_attention.paged_attention(case["query"], *case["caches"], **arguments)
    actual = attention.paged_attention_npu(case["query"], *case["caches"], **arguments)
    agree("paged_attention", actual, expected)


def test_log_sum_exp_equals_its_definition(relaxed):
    relaxed(torch.float32)
    query, key = torch.randn(4, 2, 16), torch.randn(6, 1, 16)
    _, lse = torch.ops.npu.npu_fused_infer_attention_score(
        query,
        key,
        key,
        input_layout="TND",
        num_heads=2,
        num_key_value_heads=1,
        actual_seq_lengths=[4],
        actual_seq_lengths_kv=[6],
        scale=0.25,
        softmax_lse_flag=True,
    )
    expected = (query @ key[:, 0].T * 0.25).logsumexp(dim=-1, keepdim=True)
    torch.testing.assert_close(lse, expected)


def small_case():
    install({"dtype.float32"})
    return paged_case([2, 3], [130, 3], heads=4, kv_heads=2, head=32, dtype=torch.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_lengths_cumulative": [2, 3]}, r"actual_seq_lengths.*cumulative"),
        ({"query_lengths_cumulative": [3, 2]}, r"actual_seq_lengths.*never falling"),
        ({"kv_lengths": [130, 133]}, r"block_table.*does not exist|block_table.*columns"),
        ({"kv_lengths": [130]}, r"actual_seq_lengths_kv.*2 lengths"),
        ({"kv_lengths": [1, 3]}, r"as many keys as queries"),
        ({"block_size": 64}, r"block_size.*multiple of 128"),
        ({"block_size": 1024}, r"block_size.*512"),
        ({"mask": None}, r"atten_mask.*required"),
        ({"mask": torch.ones(64, 64, dtype=torch.int8).triu(1)}, r"atten_mask.*2048"),
        ({"mask": torch.ones(2048, 2048, dtype=torch.int8).tril()}, r"not triangular"),
        ({"mask": torch.ones(2048, 2048).triu(1)}, r"atten_mask.*bool, int8, uint8"),
        ({"num_kv_heads": 3}, r"num_key_value_heads"),
    ],
)
def test_wrong_conventions_are_refused(change, message):
    case = small_case()
    with pytest.raises(OperatorRefusedError, match=message):
        attention.paged_attention_npu(case["query"], *case["caches"], **(case["paged"] | change))


def test_wrong_block_order_changes_the_result():
    case = small_case()
    right = attention.paged_attention_npu(case["query"], *case["caches"], **case["paged"])
    table = case["paged"]["block_table_RM"]
    flipped = torch.cat((table[:, :2].flip(1), table[:, 2:]), dim=1).clamp(min=0)
    wrong = attention.paged_attention_npu(
        case["query"], *case["caches"], **(case["paged"] | {"block_table_RM": flipped})
    )
    assert not torch.allclose(right, wrong, atol=0.01)


def test_a_changed_mask_is_checked_again():
    case = small_case()
    mask = case["paged"]["mask"]
    attention.paged_attention_npu(case["query"], *case["caches"], **case["paged"])
    mask[0, 1] = 0
    with pytest.raises(OperatorRefusedError, match="not triangular"):
        attention.paged_attention_npu(case["query"], *case["caches"], **case["paged"])


def raw_call(**change):
    tensors = {name: torch.randn(3, 2, 32).bfloat16() for name in ("query", "key", "value")}
    arguments = {
        "input_layout": "TND",
        "num_heads": 2,
        "num_key_value_heads": 2,
        "actual_seq_lengths": [3],
        "actual_seq_lengths_kv": [3],
    }
    merged = tensors | arguments | change
    return torch.ops.npu.npu_fused_infer_attention_score(
        merged.pop("query"), merged.pop("key"), merged.pop("value"), **merged
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.randn(3, 2, 32)}, r"query.*float32.*bfloat16, float16"),
        ({"key": torch.randn(3, 2, 32).half()}, r"'key'"),
        ({"key": torch.randn(3, 2, 32).bfloat16()[:2]}, r"'value' has shape"),
        ({"query": torch.randn(3, 32, 2).bfloat16().transpose(1, 2)}, r"not contiguous"),
        ({"input_layout": "SBH"}, r"input_layout.*TND"),
        ({"sparse_mode": 7}, r"sparse_mode.*0, 3, 4"),
        ({"inner_precise": 4}, r"inner_precise"),
        ({"actual_seq_lengths": None}, r"actual_seq_lengths.*required"),
        ({"actual_seq_lengths_kv": None}, r"actual_seq_lengths_kv.*required"),
        ({"actual_seq_lengths_kv": [2]}, r"end at 3"),
        ({"antiquant_mode": 1}, r"antiquant_mode"),
        ({"pse_shift": torch.zeros(1)}, r"pse_shift"),
        (
            {
                "sparse_mode": 4,
                "atten_mask": attention.causal_mask("cpu"),
                "pre_tokens": -3,
                "next_tokens": 1,
            },
            r"pre_tokens.*band",
        ),
    ],
)
def test_vendor_limits_of_attention_are_refused(change, message):
    with pytest.raises(OperatorRefusedError, match=message):
        raw_call(**change)


@pytest.mark.parametrize(("head", "message"), [(40, "multiple of 16"), (528, "1 to 512")])
def test_head_dim_limits_are_refused(head, message):
    tensors = {name: torch.randn(3, 2, head).bfloat16() for name in ("query", "key", "value")}
    with pytest.raises(OperatorRefusedError, match=message):
        raw_call(**tensors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("blocks", "size", "heads", "head", "tokens"),
    [
        (1, 128, 1, 16, 1),
        (3, 16, 2, 256, 20),
        (5, 128, 4, 48, 130),
        (2, 32, 3, 80, 64),
        (4, 1, 1, 8, 4),
    ],
)
def test_cache_write_equals_reference(blocks, size, heads, head, tokens, dtype):
    key, value = (torch.randn(tokens, heads, head).to(dtype) for _ in range(2))
    slots = torch.randperm(blocks * size)[:tokens].to(torch.int32)
    slots[::5] = -1
    caches = [torch.full((blocks, size, heads, head), torch.nan).to(dtype) for _ in range(4)]
    attention.write_kv_cache_npu(key, value, *caches[:2], slots)
    reference_attention.write_kv_cache(key, value, *caches[2:], slots)
    for written, expected in zip(caches[:2], caches[2:], strict=True):
        torch.testing.assert_close(written, expected, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_written_tokens_are_read_back(data):
    """What is written through any slot mapping is what attention reads through the block table."""
    install({"dtype.float32"})
    length = data.draw(st.integers(1, 300))
    blocks = -(-length // BLOCK)
    spare = data.draw(st.integers(0, 3))
    order = data.draw(st.permutations(range(blocks + spare)))[:blocks]
    chunk = data.draw(st.integers(1, length))
    torch.manual_seed(length)
    key, value = torch.randn(length, 1, 16), torch.randn(length, 1, 16)
    caches = [torch.full((blocks + spare, BLOCK, 1, 16), torch.nan) for _ in range(2)]
    slots = torch.tensor([order[i // BLOCK] * BLOCK + i % BLOCK for i in range(length)])
    for first in range(0, length, chunk):
        part = slice(first, first + chunk)
        attention.write_kv_cache_npu(key[part], value[part], *caches, slots[part])
    query = torch.randn(1, 2, 16)
    paged = attention.paged_attention_npu(
        query,
        *caches,
        block_table_RM=torch.tensor([order], dtype=torch.int32),
        query_lengths_cumulative=[1],
        kv_lengths=[length],
        block_size=BLOCK,
        num_kv_heads=1,
        scale=0.25,
        mask=attention.causal_mask("cpu"),
    )
    weights = (query[0] @ key[:, 0].T * 0.25).softmax(dim=-1)
    torch.testing.assert_close(paged[0], weights @ value[:, 0], rtol=1e-4, atol=1e-5)
    untouched = torch.ones((blocks + spare) * BLOCK, dtype=torch.bool)
    untouched[slots] = False
    assert caches[0].view(-1, 16)[untouched].isnan().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": [0, 0, 1]}, "twice"),
        ({"slots": [0, 1, 999]}, r"0|slot_mapping.*num_blocks"),
        ({"slots": [0, 1, -2]}, "slot_mapping"),
        ({"slots": [0, 1]}, r"slot_mapping.*\[tokens\]"),
        ({"value": torch.zeros(3, 2, 8, dtype=torch.float64)}, "value"),
        ({"cache_mode": "PA_NZ"}, "cache_mode.*Norm"),
        ({"slot_dtype": torch.int16}, "slot_mapping.*int32, int64"),
        ({"strided": True}, "not contiguous"),
        ({"compress_lens": torch.zeros(1)}, "compress_lens"),
    ],
)
def test_vendor_limits_of_cache_writes_are_refused(change, message):
    key = torch.zeros(3, 2, 8)
    value = change.get("value", torch.zeros(3, 2, 8))
    cache = torch.zeros(4, 16, 2, 16)[..., ::2] if "strided" in change else torch.zeros(4, 16, 2, 8)
    slots = torch.tensor(
        change.get("slots", [0, 1, 2]), dtype=change.get("slot_dtype", torch.int32)
    )
    with pytest.raises(OperatorRefusedError, match=message):
        torch.ops.npu.npu_scatter_pa_kv_cache(
            key,
            value,
            cache,
            torch.zeros(4, 16, 2, 8),
            slots,
            compress_lens=change.get("compress_lens"),
            cache_mode=change.get("cache_mode", "Norm"),
        )
