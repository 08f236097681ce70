"""Attention over a window and compressed blocks, plain and packed caches."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.emulation import OperatorRefusedError, install
from ascend_recipes.ops import compressed_attention as bindings
from ascend_recipes.ops.latent_cache import write_latent_rows_epilog, write_latent_rows_scatter
from ascend_recipes.ops.reference import compressed_attention as reference

pytestmark = pytest.mark.ops

CUSTOM = torch.ops._C_ascend
E4M3 = torch.float8_e4m3fn
SMALL = {"shape.small", "dtype.float32"}
BATCHES = [
    [(1, 1)],
    [(3, 3), (1, 150)],
    [(5, 133), (0, 9), (9, 300)],
    [(1, 515), (1, 4), (1, 129), (1, 260)],
    [(33, 160), (40, 40)],
]
"""Tokens and keys of each request."""
LAYERS = [(1, None), (4, 8), (4, None), (128, None)]
"""Ratio and selected blocks; none for all."""


class Case:
    """A batch with window and compressed pages, all else NaN (or junk bytes where packed)."""

    def __init__(
        self,
        requests,
        *,
        ratio=1,
        top_k=None,
        heads=4,
        dim=32,
        rows=16,
        window=128,
        dtype=torch.float32,
        packed=False,
    ):
        self.ratio, self.window, self.dim = ratio, window, dim
        self.lengths = torch.tensor([keys for _, keys in requests], dtype=torch.int32)
        counts = torch.tensor([0, *[tokens for tokens, _ in requests]])
        self.bounds = counts.cumsum(0).to(torch.int32)
        self.query = torch.randn(int(self.bounds[-1]), heads, dim).to(dtype)
        self.sinks = torch.randn(heads)
        keys = [torch.randn(length, dim).to(dtype) for _, length in requests]
        first = [max(0, length - tokens - window + 1) for tokens, length in requests]
        self.cache, self.table = self.pages(keys, rows, dtype, packed, first)
        self.compressed = self.compressed_table = self.indices = None
        if ratio > 1:
            blocks = [torch.randn(len(part) // ratio, dim).to(dtype) for part in keys]
            self.compressed, self.compressed_table = self.pages(blocks, rows, dtype, packed)
            if top_k:
                self.indices = self.choose(top_k)

    def pages(self, parts, rows, dtype, packed, first=None):
        """Cache [B, P, W] and its table; what lies before `first` is not in memory any more."""
        columns = max(1, *[-(-len(part) // rows) for part in parts])
        table = (torch.randperm(columns * len(parts)) + 1).view(len(parts), -1).int()
        width = self.packed_width if packed else self.dim
        memory = torch.full((table.numel() + 1, rows * width + 3 * width), torch.nan)
        memory = memory.to(dtype)
        if packed:
            memory = torch.full(memory.shape, 255, dtype=torch.uint8)
        cache = memory.as_strided((len(memory), rows, width), (memory.stride(0), width, 1))
        write = write_latent_rows_epilog if packed else write_latent_rows_scatter
        for request, part in enumerate(parts):
            start = first[request] if first else 0
            place = torch.arange(start, len(part))
            slots = table[request, place // rows].long() * rows + place % rows
            if len(place):
                write(part[start:], cache, slots)
            table[request, : start // rows] = 0
        return cache, table

    @property
    def packed_width(self):
        used = 128 + (self.dim - 64) + (self.dim - 64) // 64
        return -(-used // 128) * 128

    def choose(self, top_k):
        """Random visible blocks of every token, -1 after them."""
        indices = torch.full((self.query.shape[0], top_k), -1, dtype=torch.int32)
        for token, _, position in reference._tokens(self.bounds, self.lengths):
            visible = (position + 1) // self.ratio
            chosen = torch.randperm(visible)[:top_k]
            indices[token, : len(chosen)] = chosen.int()
        return indices

    def attend(self, function=bindings.sparse_attention_shared_kv_custom, **change):
        top_k = 0 if self.indices is None else self.indices.shape[1]
        packed = function is bindings.sparse_attention_shared_kv_kv_quant
        split = bindings.sparse_attention_metadata_custom
        if packed:
            split = bindings.sparse_attention_metadata_kv_quant
        metadata = split(
            query_start_R1=self.bounds,
            kv_lengths_R=self.lengths,
            num_heads=self.query.shape[1],
            head_dim=self.dim,
            window=self.window,
            ratio=self.ratio,
            top_k=top_k,
        )
        given = {
            "window_table_RV": self.table,
            "query_start_R1": self.bounds,
            "kv_lengths_R": self.lengths,
            "sinks_N": self.sinks,
            "metadata": metadata,
            "scale": self.dim**-0.5,
            "window": self.window,
            "compressed_cache_BPW": self.compressed,
            "compressed_table_RV": self.compressed_table,
            "ratio": self.ratio,
            "indices_TK": self.indices,
        }
        return function(self.query, self.cache, **{**given, **change})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("ratio", "top_k"), LAYERS)
@pytest.mark.parametrize("requests", BATCHES)
def test_binding_agrees(agree, requests, ratio, top_k, dtype):
    install(SMALL)
    case = Case(requests, ratio=ratio, top_k=top_k, dtype=dtype)
    expected = case.attend(reference.sparse_attention_shared_kv)
    agree("sparse_attention_shared_kv", case.attend(), expected)


@pytest.mark.parametrize(("ratio", "top_k"), LAYERS)
@pytest.mark.parametrize("requests", BATCHES)
def test_packed_binding_agrees(agree, requests, ratio, top_k):
    install({"shape.small"})
    options = {"dim": 128, "dtype": torch.bfloat16, "packed": True}
    case = Case(requests, ratio=ratio, top_k=top_k, **options)
    expected = case.attend(reference.sparse_attention_shared_kv)
    found = case.attend(bindings.sparse_attention_shared_kv_kv_quant)
    agree("sparse_attention_shared_kv", found, expected)
    case.cache = case.cache.view(E4M3)
    same = case.attend(bindings.sparse_attention_shared_kv_kv_quant)
    assert torch.equal(same, found)


@pytest.mark.parametrize(("ratio", "top_k"), LAYERS)
def test_packed_binding_takes_float_caches_when_relaxed(agree, ratio, top_k):
    install({*SMALL, "cache.float32"})
    case = Case(BATCHES[2], ratio=ratio, top_k=top_k)
    expected = case.attend()
    found = case.attend(bindings.sparse_attention_shared_kv_kv_quant)
    assert torch.equal(found, expected)
    install(SMALL)
    with pytest.raises(OperatorRefusedError, match=r"ori_kv.*float32"):
        case.attend(bindings.sparse_attention_shared_kv_kv_quant)


@pytest.mark.parametrize("packed", [False, True])
def test_the_models_sizes_without_relaxation(agree, packed):
    """64 heads of 512, 512 selected blocks, blocks of 128 rows, a window of 128."""
    options = {"ratio": 4, "top_k": 512, "heads": 64, "dim": 512, "rows": 128}
    case = Case([(1, 700), (2, 90)], **options, dtype=torch.bfloat16, packed=packed)
    function = bindings.sparse_attention_shared_kv_custom
    if packed:
        function = bindings.sparse_attention_shared_kv_kv_quant
    expected = case.attend(reference.sparse_attention_shared_kv)
    agree("sparse_attention_shared_kv", case.attend(function), expected)


@pytest.mark.parametrize("length", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("ratio", [1, 4, 128])
def test_reference_equals_transformers(transformers_deepseek_v4, ratio, length):
    """A whole sequence with eager attention, window mask and block bias."""
    install(SMALL)
    case = Case([(length, length)], ratio=ratio, dtype=torch.float32, window=128)
    module = torch.nn.Module()
    module.num_key_value_groups, module.sinks = 4, case.sinks
    module.eval()
    key = reference.cached_rows(case.cache, case.table[0], length)
    place = torch.arange(length)
    mask = (place > place[:, None]) | (place[:, None] - place >= case.window)
    if ratio > 1:
        blocks = reference.cached_rows(case.compressed, case.compressed_table[0], length // ratio)
        key = torch.cat((key, blocks))
        hidden = torch.arange(length // ratio) >= ((place + 1) // ratio)[:, None]
        mask = torch.cat((mask, hidden), dim=1)
    bias = torch.zeros(mask.shape).masked_fill(mask, -torch.inf)
    expected, _ = transformers_deepseek_v4.eager_attention_forward(
        module,
        case.query.transpose(0, 1)[None],
        key[None, None],
        key[None, None],
        bias[None, None],
        scaling=case.dim**-0.5,
    )
    found = case.attend(reference.sparse_attention_shared_kv)
    torch.testing.assert_close(found, expected[0], rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(data=st.data(), ratio=st.sampled_from([1, 4, 128]), rows=st.sampled_from([16, 32, 48]))
def test_pages_and_chunks_do_not_matter(data, ratio, rows):
    """The last tokens of a longer call, in other pages, one at a time."""
    install(SMALL)
    torch.manual_seed(data.draw(st.integers(0, 99)))
    requests = []
    for _ in range(data.draw(st.integers(1, 3))):
        keys = data.draw(st.integers(1, 300))
        requests.append((data.draw(st.integers(1, min(keys, 24))), keys))
    top_k = data.draw(st.sampled_from([None, 8])) if ratio == 4 else None
    case = Case(requests, ratio=ratio, top_k=top_k, rows=rows)
    whole = case.attend()
    order = torch.randperm(len(case.cache))
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    case.cache, case.table = case.cache[order], place[case.table.long()].int()
    last = case.bounds[1:].long() - 1
    case.query, case.bounds = case.query[last], torch.arange(len(requests) + 1).int()
    if case.indices is not None:
        case.indices = case.indices[last]
    torch.testing.assert_close(case.attend(), whole[last], rtol=1e-5, atol=1e-5)


def test_tokens_after_the_last_request_are_not_written():
    install(SMALL)
    case = Case([(2, 5), (1, 9)])
    expected = case.attend()
    case.query = torch.cat((case.query, torch.randn(3, 4, 32)))
    found = case.attend()
    assert torch.equal(found[:3], expected)
    assert found[3:].isnan().all()


def test_a_block_that_sees_itself_whole_is_one_request_a_token():
    """Drafted tokens that see each other: every one with the block's last key as its own."""
    install(SMALL)
    keys, block = 150, 5
    case = Case([(block, keys)], window=16 + block)
    case.bounds = torch.arange(block + 1).int()
    case.lengths = torch.full((block,), keys, dtype=torch.int32)
    case.table = case.table.repeat(block, 1)
    found = case.attend()
    seen = reference.cached_rows(case.cache, case.table[0], keys)[-case.window :]
    score = case.query @ seen.T * case.dim**-0.5
    sinks = case.sinks.expand(block, -1)[..., None]
    expected = torch.cat((score, sinks), dim=-1).softmax(-1)[..., :-1] @ seen
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_sinks_take_weight():
    install(SMALL)
    case = Case([(1, 5)])
    before = case.attend()
    case.sinks = torch.full((4,), 100.0)
    assert case.attend().abs().max() < 1e-3 < before.abs().max()


def test_blocks_that_are_not_complete_yet_do_not_count():
    """A selected block beyond the causal limit of its token has no effect."""
    install(SMALL)
    case = Case([(3, 16)], ratio=4, top_k=4)
    case.indices[:] = torch.tensor([0, 1, 3, -1])
    found = case.attend()
    torch.testing.assert_close(found, case.attend(reference.sparse_attention_shared_kv))
    case.indices[:] = torch.tensor([0, 1, -1, -1])
    fewer = case.attend()
    torch.testing.assert_close(fewer[:2], found[:2])
    assert (fewer[2] - found[2]).abs().max() > 1e-3


@pytest.mark.parametrize(
    "change",
    [
        {"kv_lengths_R": torch.tensor([29, 45], dtype=torch.int32)},
        {"query_start_R1": torch.tensor([0, 3, 5], dtype=torch.int32)},
        {"ratio": 128},
        {"window": 64},
        {"indices_TK": torch.zeros(5, 4, dtype=torch.int32)},
    ],
)
def test_the_split_of_another_call_is_refused(change):
    install(SMALL)
    case = Case([(2, 30), (3, 50)], ratio=4, top_k=8)
    with pytest.raises(OperatorRefusedError, match="made for another call"):
        case.attend(**change)


def test_wrong_conventions_change_the_result():
    install(SMALL)
    case = Case([(2, 30), (3, 50)], ratio=4, top_k=8)
    right = case.attend()
    case.window = 16
    assert (case.attend() - right).abs().max() > 1e-3
    case.window, case.indices = 128, case.indices.roll(1, dims=0).contiguous()
    assert (case.attend() - right).abs().max() > 1e-3


def legal(quant=False, **change):
    """A legal call of one of the operators, but for the changes."""
    bounds = torch.tensor([0, 2], dtype=torch.int32)
    lengths = torch.tensor([40], dtype=torch.int32)
    width, dtype = (640, torch.uint8) if quant else (512, torch.bfloat16)
    cache = torch.zeros(4, 64, 1, width, dtype=dtype)
    cache = cache.view(E4M3) if quant else cache
    given = {
        "q": torch.zeros(2, 64, 512).bfloat16(),
        "ori_kv": cache,
        "cmp_kv": cache,
        "cmp_sparse_indices": torch.full((2, 1, 512), -1, dtype=torch.int32),
        "ori_block_table": torch.ones(1, 1, dtype=torch.int32),
        "cmp_block_table": torch.ones(1, 1, dtype=torch.int32),
        "cu_seqlens_q": bounds,
        "seqused_kv": lengths,
        "sinks": torch.zeros(64),
        "softmax_scale": 0.1,
        "cmp_ratio": 4,
        "ori_win_left": 127,
        "layout_q": "TND",
        "layout_kv": "PA_ND",
    }
    name, extra, mode = "npu_sparse_attn_sharedkv", {}, ()
    if quant:
        name, mode = "npu_kv_quant_sparse_attn_sharedkv", (1,)
        extra = {"kv_quant_mode": 1, "tile_size": 64, "rope_head_dim": 64}
    given["metadata"] = getattr(CUSTOM, f"{name}_metadata")(
        64,
        1,
        512,
        *mode,
        cu_seqlens_q=bounds,
        seqused_kv=lengths,
        batch_size=1,
        cmp_topk=512,
        cmp_ratio=4,
        ori_win_left=127,
        layout_q="TND",
    )
    return getattr(CUSTOM, name)(**{**given, **extra, **change})


@pytest.mark.parametrize("quant", [False, True])
def test_the_call_is_legal(quant):
    out, lse = legal(quant)
    assert out.shape == (2, 64, 512) and lse.numel() == 0


def ints(*shape, value=0):
    return torch.full(shape, value, dtype=torch.int32)


SHARED = [
    ({"q": torch.zeros(2, 64, 512)}, r"q.*float32"),
    ({"q": torch.zeros(1, 2, 64, 512).bfloat16()}, r"q.*tokens, heads, head dim"),
    ({"q": torch.zeros(64, 2, 512).bfloat16().transpose(0, 1)}, r"not contiguous"),
    ({"q": torch.zeros(0, 64, 512).bfloat16()}, r"empty"),
    ({"q": torch.zeros(2, 64, 256).bfloat16()}, r"512"),
    ({"ori_kv": None}, r"ori_kv.*None"),
    ({"ori_block_table": None}, r"or its table"),
    ({"cu_seqlens_q": None}, r"a length is None"),
    ({"seqused_kv": None}, r"a length is None"),
    ({"cu_seqlens_q": torch.tensor([0, 2])}, r"cu_seqlens_q.*int32"),
    ({"cu_seqlens_q": torch.tensor([0, 3], dtype=torch.int32)}, r"within the packed tokens"),
    ({"seqused_kv": torch.tensor([40])}, r"seqused_kv.*int64"),
    ({"seqused_kv": ints(1, value=1)}, r"current tokens included"),
    ({"seqused_kv": ints(1, value=65)}, r"ori_block_table.*at least 2"),
    ({"ori_block_table": torch.ones(1, 1)}, r"ori_block_table"),
    ({"ori_block_table": ints(2, 1)}, r"ori_block_table"),
    ({"cmp_block_table": None}, r"cmp_block_table"),
    ({"cmp_block_table": ints(2, 1)}, r"cmp_block_table"),
    ({"cmp_kv": None}, r"cmp_sparse_indices.*is set"),
    ({"ori_sparse_indices": ints(2, 1, 128)}, r"ori_sparse_indices"),
    ({"seqused_q": ints(1)}, r"seqused_q"),
    ({"cmp_sparse_indices": torch.zeros(2, 1, 512)}, r"cmp_sparse_indices.*float32"),
    ({"cmp_sparse_indices": ints(1, 1, 512)}, r"cmp_sparse_indices"),
    ({"cmp_sparse_indices": ints(2, 512, 1).transpose(1, 2)[:, :, ::2]}, r"cmp_sparse_indices"),
    ({"cmp_sparse_indices": torch.arange(-1, 511).int().repeat(2, 1, 1)}, r"-1 before a block"),
    ({"sinks": torch.zeros(64).half()}, r"sinks.*float16"),
    ({"sinks": torch.zeros(32)}, r"sinks"),
    ({"metadata": None}, r"metadata.*None"),
    ({"metadata": ints(512)}, r"int32 \[1024\]"),
    ({"metadata": ints(1024)}, r"another call"),
    ({"cmp_ratio": 8}, r"cmp_ratio"),
    ({"cmp_ratio": 1}, r"cmp_ratio"),
    ({"ori_mask_mode": 3}, r"ori_mask_mode"),
    ({"cmp_mask_mode": 4}, r"cmp_mask_mode"),
    ({"ori_win_left": 128}, r"ori_win_left.*127"),
    ({"ori_win_right": 1}, r"ori_win_right"),
    ({"layout_q": "BSND"}, r"layout_q"),
    ({"layout_kv": "BSND"}, r"layout_kv"),
    ({"return_softmax_lse": True}, r"return_softmax_lse"),
]


@pytest.mark.parametrize("quant", [False, True])
@pytest.mark.parametrize(("change", "message"), SHARED)
def test_limits(quant, change, message):
    with pytest.raises(OperatorRefusedError, match=message):
        legal(quant, **change)


HALF = torch.zeros(4, 64, 1, 512).bfloat16()
BYTES = torch.zeros(4, 64, 1, 640, dtype=torch.uint8).view(E4M3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 62, 512).bfloat16()}, r"multiple of 4"),
        ({"ori_kv": HALF.half()}, r"ori_kv.*as the first"),
        ({"cmp_kv": HALF.half()}, r"cmp_kv.*as the first"),
        ({"ori_kv": HALF[..., :256]}, r"ori_kv"),
        ({"ori_kv": HALF.repeat(1, 1, 2, 1)}, r"ori_kv"),
        ({"ori_kv": HALF[:, :24]}, r"blocks of 24 rows|contiguous"),
        ({"ori_kv": torch.zeros(4, 24, 1, 512).bfloat16()}, r"blocks of 24 rows"),
        ({"ori_kv": HALF.transpose(0, 1)}, r"contiguous on every dimension but"),
    ],
)
def test_limits_of_plain_caches(change, message):
    with pytest.raises(OperatorRefusedError, match=message):
        legal(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 64, 512).half()}, r"q.*float16"),
        ({"q": torch.zeros(2, 32, 512).bfloat16()}, r"64 or 128"),
        ({"kv_quant_mode": 2}, r"kv_quant_mode"),
        ({"tile_size": 128}, r"tile_size"),
        ({"rope_head_dim": 32}, r"rope_head_dim"),
        ({"sinks": None}, r"sinks.*None"),
        ({"cu_seqlens_ori_kv": ints(2)}, r"cu_seqlens_ori_kv"),
        ({"cu_seqlens_cmp_kv": ints(2)}, r"cu_seqlens_cmp_kv"),
        ({"ori_kv": HALF}, r"ori_kv.*bfloat16"),
        ({"ori_kv": BYTES.view(torch.uint8)}, r"ori_kv.*uint8"),
        ({"ori_kv": BYTES[..., :576]}, r"ori_kv"),
        ({"cmp_kv": HALF}, r"cmp_kv"),
        ({"cmp_sparse_indices": ints(2, 1, 256, value=-1)}, r"512 or 1024"),
    ],
)
def test_limits_of_packed_caches(change, message):
    with pytest.raises(OperatorRefusedError, match=message):
        legal(quant=True, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads_kv": 2}, r"num_heads_kv"),
        ({"head_dim": 256}, r"512"),
        ({"has_ori_kv": False}, r"has_ori_kv"),
        ({"ori_topk": 128}, r"ori_topk"),
        ({"ori_win_left": 64}, r"127"),
        ({"cmp_ratio": 2}, r"cmp_ratio"),
        ({"cu_seqlens_q": None}, r"cu_seqlens_q"),
        ({"seqused_kv": None}, r"seqused_kv"),
        ({"batch_size": 2}, r"cu_seqlens_q"),
        ({"layout_q": "BSND"}, r"layout_q"),
    ],
)
def test_metadata_limits(change, message):
    given = {
        "num_heads_q": 64,
        "num_heads_kv": 1,
        "head_dim": 512,
        "cu_seqlens_q": ints(2),
        "seqused_kv": ints(1),
        "batch_size": 1,
        "layout_q": "TND",
        "ori_win_left": 127,
        **change,
    }
    with pytest.raises(OperatorRefusedError, match=message):
        CUSTOM.npu_sparse_attn_sharedkv_metadata(**given)
    with pytest.raises(OperatorRefusedError, match=message):
        CUSTOM.npu_kv_quant_sparse_attn_sharedkv_metadata(
            **{"cmp_ratio": 4, **given, "kv_quant_mode": 1}
        )


def test_packed_metadata_wants_its_mode():
    with pytest.raises(OperatorRefusedError, match="kv_quant_mode"):
        CUSTOM.npu_kv_quant_sparse_attn_sharedkv_metadata(
            64, 1, 512, 0, ints(2), seqused_kv=ints(1), batch_size=1, layout_q="TND"
        )
