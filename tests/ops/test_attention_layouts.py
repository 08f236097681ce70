"""Attention of padded requests (BSND), alignment of the causal mask, log-sum-exp."""

import pytest
import torch
import torch.nn.functional as F

from ascend_recipes.emulation import OperatorRefusedError
from ascend_recipes.ops import attention
from ascend_recipes.ops.reference import attention as reference_attention

pytestmark = pytest.mark.ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BLOCK = 128
MASK = attention.causal_mask(torch.device("cpu"))
FORMS = {
    "full": {"causal": False},
    "lower_right": {},
    "upper_left": {"alignment": "upper_left"},
    "band": {"window": 3},
    "band-ahead": {"window": 3, "causal": False},
}
BATCHES = [
    pytest.param([1], [1], 1, 1, 16, id="one-token"),
    pytest.param([7, 2], [7, 31], 12, 2, 256, id="grouped"),
    pytest.param([3, 0, 17], [130, 5, 17], 6, 1, 64, id="an-empty-request"),
    pytest.param([5, 5, 5], [300, 129, 128], 8, 8, 48, id="page-edges"),
    pytest.param([290, 1], [291, 200], 4, 2, 32, id="long"),
]


def cumulative(lengths):
    return torch.tensor(lengths).cumsum(0).tolist()


def padded(parts, longest):
    """[B, longest, ...] of the parts, with NaN behind each."""
    out = torch.full((len(parts), longest, *parts[0].shape[1:]), torch.nan, dtype=parts[0].dtype)
    for rows, part in zip(out, parts, strict=True):
        rows[: len(part)] = part
    return out


def make(queries, keys, *, heads, kv_heads, head, dtype):
    """Random requests as parts, and the arguments that both operations share."""
    draw = [torch.randn(length, heads, head).to(dtype) for length in queries]
    key, value = ([torch.randn(n, kv_heads, head).to(dtype) for n in keys] for _ in range(2))
    common = {
        "query_lengths_cumulative": cumulative(queries),
        "num_kv_heads": kv_heads,
        "scale": head**-0.5,
        "mask": MASK,
    }
    return draw, key, value, common


def dense(case, *, spare=1):
    """Tensors and arguments of dense attention in layout BSND, padded by more than needed."""
    query, key, value, common = case
    widths = [max(map(len, parts)) + spare for parts in (query, key, value)]
    tensors = [padded(*item) for item in zip((query, key, value), widths, strict=True)]
    ends = cumulative([len(part) for part in key])
    return tensors, common | {"kv_lengths_cumulative": ends, "layout": "BSND"}


def paged(case, *, spare=1):
    """The same over a cache of shuffled blocks that is NaN wherever no key stands."""
    query, key, value, common = case
    blocks_of = [-(-len(part) // BLOCK) for part in key]
    order = torch.randperm(sum(blocks_of) + 2).tolist()
    shape = (len(order), BLOCK, *key[0].shape[1:])
    caches = [torch.full(shape, torch.nan, dtype=key[0].dtype) for _ in range(2)]
    table = torch.full((len(key), max(blocks_of) + 1), -7, dtype=torch.int32)
    for request, count in enumerate(blocks_of):
        numbers = torch.tensor([order.pop() for _ in range(count)])
        table[request, :count] = numbers
        for cache, parts in zip(caches, (key, value), strict=True):
            rows = cache[numbers].flatten(0, 1)
            rows[: len(parts[request])] = parts[request]
            cache[numbers] = rows.view(count, *shape[1:])
    arguments = common | {
        "block_table_RM": table,
        "kv_lengths": [len(part) for part in key],
        "block_size": BLOCK,
        "layout": "BSND",
    }
    return [padded(query, max(map(len, query)) + spare), *caches], arguments


OPERATIONS = {"dense_attention": dense, "paged_attention": paged}


def suits(form, queries, keys):
    """Modes 3 and 4 want as many keys as queries; the rest takes anything."""
    return form in ("full", "upper_left") or all(
        many >= few for few, many in zip(queries, keys, strict=True)
    )


def rows_of(padded_rows, lengths):
    return torch.cat([rows[:n] for rows, n in zip(padded_rows, lengths, strict=True)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(("queries", "keys", "heads", "kv_heads", "head"), BATCHES)
def test_padded_binding_equals_reference(
    queries, keys, heads, kv_heads, head, name, form, dtype, relaxed, agree
):
    relaxed(dtype)
    case = make(queries, keys, heads=heads, kv_heads=kv_heads, head=head, dtype=dtype)
    tensors, arguments = OPERATIONS[name](case)
    results = []
    shape = (len(queries), heads, tensors[0].shape[1], 1)
    for function in (
        getattr(reference_attention, name),
        getattr(attention, f"{name}_npu"),
    ):
        lse = torch.full(shape, torch.nan)
        out = function(*tensors, **arguments, **FORMS[form], log_sum_exp=lse)
        assert out.shape == tensors[0].shape
        results.append((rows_of(out, queries), rows_of(lse.transpose(1, 2), queries)))
    (expected, expected_lse), (actual, actual_lse) = results
    assert not actual.isnan().any()
    agree(name, actual, expected)
    torch.testing.assert_close(actual_lse, expected_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["full", "lower_right", "upper_left"])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (2, 33), (70, 70), (64, 200), (40, 9)])
def test_reference_equals_scaled_dot_product_attention(queries, keys, form):
    """The oracle is PyTorch's own, with its own bias objects for the two alignments."""
    if not suits(form, [queries], [keys]):
        form = "upper_left"
    case = make([queries], [keys], heads=6, kv_heads=2, head=32, dtype=torch.float32)
    tensors, arguments = dense(case, spare=0)
    lse = torch.empty(1, 6, queries, 1)
    actual = reference_attention.dense_attention(
        *tensors, **arguments, **FORMS[form], log_sum_exp=lse
    )
    shift = {"full": keys, "lower_right": keys - queries, "upper_left": 0}[form]
    visible = torch.ones(queries, keys, dtype=torch.bool).tril(shift)
    query, key, value = (tensor.transpose(1, 2) for tensor in tensors)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, enable_gqa=True)
    torch.testing.assert_close(actual.transpose(1, 2), expected, rtol=1e-5, atol=1e-5)
    scores = query @ key.repeat_interleave(3, dim=1).transpose(2, 3) * 32**-0.5
    largest = scores.masked_fill(~visible, -torch.inf).amax(-1, keepdim=True)
    total = ((scores - largest).exp() * visible).sum(-1, keepdim=True)
    torch.testing.assert_close(lse, largest + total.log(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OPERATIONS)
def test_layouts_agree(name, relaxed):
    """The same requests, packed and padded."""
    relaxed(torch.float32)
    case = make([3, 9, 1], [40, 9, 130], heads=4, kv_heads=2, head=32, dtype=torch.float32)
    tensors, arguments = OPERATIONS[name](case)
    function = getattr(attention, f"{name}_npu")
    padded_lse, packed_lse = torch.empty(3, 4, 10, 1), torch.empty(13, 4, 1)
    out = function(*tensors, **arguments, log_sum_exp=padded_lse)
    query, key, value, _ = case
    packed = [torch.cat(query), torch.cat(key), torch.cat(value)]
    if name == "paged_attention":
        packed[1:] = tensors[1:]
    arguments |= {"layout": "TND", "log_sum_exp": packed_lse}
    torch.testing.assert_close(rows_of(out, [3, 9, 1]), function(*packed, **arguments))
    torch.testing.assert_close(rows_of(padded_lse.transpose(1, 2), [3, 9, 1]), packed_lse)


def test_padding_of_the_result_is_poisoned(relaxed):
    relaxed(torch.float32)
    case = make([3, 5], [3, 5], heads=2, kv_heads=2, head=16, dtype=torch.float32)
    tensors, arguments = dense(case)
    lse = torch.empty(2, 2, 6, 1)
    out = attention.dense_attention_npu(*tensors, **arguments, log_sum_exp=lse)
    assert out[0, 3:].isnan().all()
    assert out[1, 5:].isnan().all()
    assert lse[0, :, 3:].isnan().all()


@pytest.mark.parametrize("name", OPERATIONS)
def test_alignments_differ_unless_lengths_are_equal(name, relaxed):
    relaxed(torch.float32)
    case = make([4, 6], [9, 6], heads=2, kv_heads=2, head=16, dtype=torch.float32)
    tensors, arguments = OPERATIONS[name](case)
    function = getattr(attention, f"{name}_npu")
    lower, upper = (
        function(*tensors, **arguments, alignment=alignment) for alignment in attention.ALIGNMENTS
    )
    assert not torch.allclose(lower[0, :4], upper[0, :4], atol=0.01)
    torch.testing.assert_close(lower[1, :6], upper[1, :6])


@pytest.mark.parametrize(
    "function", [attention.dense_attention_npu, reference_attention.dense_attention]
)
def test_upper_left_takes_no_window_and_is_causal(function):
    case = make([4], [9], heads=2, kv_heads=2, head=16, dtype=torch.bfloat16)
    tensors, arguments = dense(case)
    for change in ({"window": 2}, {"causal": False}):
        with pytest.raises((ValueError, AssertionError)):
            function(*tensors, **arguments, alignment="upper_left", **change)


def test_unknown_words_name_the_allowed_ones():
    case = make([4], [9], heads=2, kv_heads=2, head=16, dtype=torch.bfloat16)
    tensors, arguments = dense(case)
    with pytest.raises(ValueError, match=r"'middle'; allowed: lower_right, upper_left"):
        attention.dense_attention_npu(*tensors, **arguments, alignment="middle")
    with pytest.raises(ValueError, match=r"layout 'BNSD'; allowed: TND, BSND"):
        attention.dense_attention_npu(*tensors, **(arguments | {"layout": "BNSD"}))


def raw_tensors(**change):
    shape = {"query": (2, 4, 2, 32), "key": (2, 6, 2, 32)}
    shape |= {"value": shape["key"]} | change
    return [torch.randn(shape[name]).bfloat16() for name in ("query", "key", "value")]


def raw_call(tensors=None, **change):
    arguments = {
        "input_layout": "BSND",
        "num_heads": 2,
        "num_key_value_heads": 2,
        "actual_seq_lengths": [3, 4],
        "actual_seq_lengths_kv": [4, 6],
    }
    return torch.ops.npu.npu_fused_infer_attention_score(
        *(tensors or raw_tensors()), **(arguments | change)
    )


PAGED = {
    "block_table": torch.tensor([[0], [1]], dtype=torch.int32),
    "block_size": BLOCK,
}


def raw_paged(shape=(3, BLOCK, 64), **change):
    return raw_call(raw_tensors(key=shape, value=shape), **(PAGED | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actual_seq_lengths": [3, 7]}, r"'actual_seq_lengths'.*0 to 4 \(not cumulative"),
        ({"actual_seq_lengths_kv": [4, 10]}, r"'actual_seq_lengths_kv'.*0 to 6 \(not cumulative"),
        ({"actual_seq_lengths": [3, -1]}, r"'actual_seq_lengths'.*0 to 4"),
        ({"actual_seq_lengths": []}, r"'actual_seq_lengths' has 0 lengths"),
        ({"sparse_mode": 2}, r"atten_mask.*required"),
        ({"sparse_mode": 9}, r"sparse_mode.*0, 1, 2, 3, 4 in layout BSND"),
        ({"sparse_mode": 3, "atten_mask": MASK[:64, :64].contiguous()}, r"atten_mask.*2048"),
        (
            {"sparse_mode": 3, "atten_mask": MASK, "actual_seq_lengths_kv": [2, 6]},
            r"as many keys as queries",
        ),
        ({"num_heads": 1, "num_key_value_heads": 1}, r"query.*num_heads"),
        ({"num_key_value_heads": 1}, r"'key' has shape.*kv heads"),
        ({"block_table": PAGED["block_table"]}, r"block_size"),
    ],
)
def test_wrong_conventions_of_padded_requests_are_refused(change, message):
    with pytest.raises(OperatorRefusedError, match=message):
        raw_call(**change)


@pytest.mark.parametrize(
    ("tensors", "heads", "message"),
    [
        ({"query": (8, 2, 32)}, 2, r"'query'.*\[batch, queries"),
        ({"key": (3, 6, 2, 32)}, 2, r"'key'.*\[batch, keys"),
        ({"key": (2, 6, 2, 16)}, 2, r"'key'.*\[batch, keys"),
        ({"query": (2, 4, 128, 512), "key": (2, 6, 128, 512)}, 128, r"fewer than 65535"),
        ({"query": (2, 4, 2, 40), "key": (2, 6, 2, 40)}, 2, r"multiple of 16"),
    ],
)
def test_wrong_shapes_of_padded_requests_are_refused(tensors, heads, message):
    tensors = tensors | {"value": tensors.get("key", (2, 6, 2, 32))}
    with pytest.raises(OperatorRefusedError, match=message):
        raw_call(raw_tensors(**tensors), num_heads=heads, num_key_value_heads=heads)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (3, 2, BLOCK, 32)}, r"'key'.*\[blocks, block size, kv heads \* head dim\]"),
        ({"actual_seq_lengths_kv": None}, r"actual_seq_lengths_kv.*required with a block_table"),
        ({"actual_seq_lengths_kv": [100, 200]}, r"block_table.*1 columns"),
        ({"block_table": torch.zeros(1, 1, dtype=torch.int32)}, r"block_table.*requests"),
        ({"shape": (3, 64, 64), "block_size": 64}, r"block_size.*multiple of 128"),
    ],
)
def test_wrong_paging_of_padded_requests_is_refused(change, message):
    with pytest.raises(OperatorRefusedError, match=message):
        raw_paged(**change)


def test_cumulative_key_lengths_change_a_paged_result():
    """Within the block table nothing can refuse them: keys of nobody are read."""
    shape = (3, BLOCK, 64)
    tensors = raw_tensors(key=shape, value=shape)
    right = raw_call(tensors, **PAGED)[0]
    wrong = raw_call(tensors, **(PAGED | {"actual_seq_lengths_kv": [4, 10]}))[0]
    torch.testing.assert_close(right[0, :3], wrong[0, :3])
    assert not torch.allclose(right[1], wrong[1], atol=0.01)


def test_plain_lengths_are_refused_by_the_operations():
    """The operations take cumulative lengths in both layouts."""
    case = make([4, 3], [6, 6], heads=2, kv_heads=2, head=16, dtype=torch.bfloat16)
    tensors, arguments = dense(case)
    with pytest.raises(OperatorRefusedError, match=r"'actual_seq_lengths' .*\[4, -1\]"):
        attention.dense_attention_npu(
            *tensors, **(arguments | {"query_lengths_cumulative": [4, 3]})
        )


def test_packed_requests_have_no_upper_left_mode():
    case = make([4], [9], heads=2, kv_heads=2, head=16, dtype=torch.bfloat16)
    query, key, value, common = case
    arguments = common | {"kv_lengths_cumulative": [9], "alignment": "upper_left"}
    with pytest.raises(OperatorRefusedError, match=r"sparse_mode.*is 2.*0, 3, 4 in layout TND"):
        attention.dense_attention_npu(query[0], key[0], value[0], **arguments)


def test_upper_left_needs_more_than_one_query():
    tensors = raw_tensors(query=(2, 1, 2, 32))
    with pytest.raises(OperatorRefusedError, match=r"sparse_mode.*more than one query"):
        raw_call(tensors, sparse_mode=2, atten_mask=MASK)


def test_length_lists_may_be_absent_single_or_longer():
    tensors = raw_tensors()
    spelled = raw_call(tensors, actual_seq_lengths=[4, 4], actual_seq_lengths_kv=[6, 6])[0]
    for lengths, lengths_kv in ((None, None), ([4], [6]), ([4, 4, 9], [6, 6, 9])):
        found = raw_call(tensors, actual_seq_lengths=lengths, actual_seq_lengths_kv=lengths_kv)[0]
        torch.testing.assert_close(found, spelled, rtol=0, atol=0)


def test_one_query_ignores_its_lengths_and_takes_small_blocks():
    shape = (3, 16, 64)
    tensors = raw_tensors(query=(2, 1, 2, 32), key=shape, value=shape)
    small = PAGED | {"block_size": 16}
    ignored = raw_call(tensors, **small, actual_seq_lengths=[0, 7])[0]
    torch.testing.assert_close(ignored, raw_call(tensors, **small, actual_seq_lengths=None)[0])


def test_without_keys_the_result_is_zero():
    out = raw_call(actual_seq_lengths_kv=[0, 6])[0]
    assert (out[0, :3] == 0).all()
    assert (out[1] != 0).all()


@pytest.mark.parametrize("layout", ["TND", "BSND"])
@pytest.mark.parametrize("asked", [True, False])
def test_meta_kernel_agrees(layout, asked):
    tensors = raw_tensors(key=(2, 4, 2, 32), value=(2, 4, 2, 32))
    change = {"input_layout": layout, "softmax_lse_flag": asked, "actual_seq_lengths_kv": [4, 4]}
    if layout == "TND":
        tensors = [tensor.flatten(0, 1) for tensor in tensors]
        change |= {"actual_seq_lengths": [4, 8], "actual_seq_lengths_kv": [4, 8]}
    found = raw_call(tensors, **change)
    meta = raw_call([tensor.to("meta") for tensor in tensors], **change)
    assert [(item.shape, item.dtype) for item in found] == [
        (item.shape, item.dtype) for item in meta
    ]
    wanted = (2, 2, 4, 1) if layout == "BSND" else (8, 2, 1)
    assert found[1].shape == (wanted if asked else (1,))
