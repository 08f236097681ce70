"""The compressor: whole sequences against transformers, any split of them against itself."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.emulation import OperatorRefusedError, install
from ascend_recipes.ops import compressor as bindings
from ascend_recipes.ops.reference import compressor as reference

pytestmark = pytest.mark.ops

SMALL = {"shape.small", "dtype.float32"}
EPSILON = 1e-6
CUSTOM = torch.ops._C_ascend
KINDS = [(4, 16), (4, 12), (128, 16)]
LENGTHS = [(1,), (3, 9), (127, 4, 130), (260, 1, 128), (13, 515)]


@dataclass(frozen=True)
class Layer:
    """Weights of a compressor and the rope of its layer."""

    ratio: int
    wkv: torch.Tensor
    wgate: torch.Tensor
    ape: torch.Tensor
    norm: torch.Tensor
    cosine: torch.Tensor
    sine: torch.Tensor
    dtype: torch.dtype

    @property
    def width(self):
        return 2 * self.wkv.shape[0]


def layer(ratio, dim, dtype=torch.float32, *, hidden=24, rotated=8, positions=1024):
    coff = 2 if ratio == 4 else 1
    angle = torch.arange(positions)[:, None] * torch.logspace(0, -3, rotated // 2)
    return Layer(
        ratio=ratio,
        wkv=torch.randn(coff * dim, hidden).to(dtype),
        wgate=torch.randn(coff * dim, hidden).to(dtype),
        ape=torch.randn(ratio, coff * dim),
        norm=torch.rand(dim).to(dtype) + 0.5,
        cosine=angle.cos().repeat_interleave(2, dim=-1),
        sine=angle.sin().repeat_interleave(2, dim=-1),
        dtype=dtype,
    )


class Pages:
    """State and block tables of some requests, in shuffled pages that are apart in memory."""

    def __init__(self, lengths, block, width):
        columns = max(-(-length // block) for length in lengths)
        order = torch.randperm(columns * len(lengths)) + 1
        self.table = order.view(len(lengths), columns).to(torch.int32)
        whole = torch.full((len(order) + 1, block * width + 40), torch.nan)
        self.state = whole.as_strided((len(order) + 1, block, width), (whole.stride(0), width, 1))


def step(functions, made, pages, tokens, starts, *, kv_table=None, kv_block=8, flat=False):
    """One call for the tokens of each request: emitted rows, their slots."""
    metadata, compress = functions
    lengths = [part.shape[0] for part in tokens]
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    start = torch.tensor(starts, dtype=torch.int32)
    if kv_table is None:
        kv_table = torch.arange(len(lengths) * 40, dtype=torch.int32).view(len(lengths), -1)
    rows = bindings.compressed_rows(sum(lengths), len(lengths), made.ratio)
    cosine, sine, slots = metadata(
        made.cosine,
        made.sine,
        bounds,
        start,
        kv_table,
        block_size=kv_block,
        ratio=made.ratio,
        num_rows=rows,
        flat=flat,
    )
    out = compress(
        torch.cat(tokens),
        made.wkv,
        made.wgate,
        made.ape,
        made.norm,
        pages.state,
        cosine,
        sine,
        block_table_RV=pages.table,
        query_start_R1=bounds,
        start_R=start,
        ratio=made.ratio,
        epsilon=EPSILON,
    )
    return out, slots


REFERENCE = (reference.compressor_metadata, reference.compressor)
BINDING = (bindings.compressor_metadata_custom, bindings.compressor_custom)


@pytest.fixture
def oracle(transformers_deepseek_v4):
    """Rows of a whole sequence from transformers' compressor with our weights and rope."""

    def rows(made, tokens):
        kinds = {4: "CSA", 128: "HCA"}
        config = transformers_deepseek_v4.DeepseekV4Config(
            hidden_size=tokens.shape[1], head_dim=made.norm.shape[0], rms_norm_eps=EPSILON
        )
        kind = getattr(transformers_deepseek_v4, f"DeepseekV4{kinds[made.ratio]}Compressor")
        module = kind(config)
        for name in set(dict(module.named_children())) & {"indexer", "rotary_emb"}:
            delattr(module, name)
        module.indexer = lambda *_: torch.zeros(1, tokens.shape[0], 1, dtype=torch.long)
        module.kv_proj.weight.data, module.gate_proj.weight.data = made.wkv, made.wgate
        module.position_bias.data, module.kv_norm.weight.data = made.ape, made.norm
        module.rotary_emb = lambda _, position_ids, layer_type: [
            part[position_ids][..., ::2] for part in (made.cosine, made.sine)
        ]
        position = torch.arange(tokens.shape[0])[None]
        return module(tokens[None], None, position, None, 0)[0][0, 0]

    return rows


@pytest.mark.parametrize("length", [3, 4, 9, 128, 131, 515])
@pytest.mark.parametrize(("ratio", "dim"), KINDS)
def test_reference_equals_transformers(oracle, ratio, dim, length):
    made, tokens = layer(ratio, dim), torch.randn(length, 24)
    found, _ = step(REFERENCE, made, Pages([length], 8, made.width), [tokens], [0])
    count = length // ratio
    torch.testing.assert_close(found[:count], oracle(made, tokens).view(count, dim))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("ratio", "dim"), KINDS)
def test_binding_agrees(agree, ratio, dim, lengths, dtype):
    install(SMALL)
    made = layer(ratio, dim, dtype)
    tokens = [torch.randn(length, 24).to(dtype) for length in lengths]
    pages = Pages(lengths, 8, made.width)
    found, slots = step(BINDING, made, pages, tokens, [0] * len(lengths))
    twin = Pages(lengths, 8, made.width)
    twin.table = pages.table
    expected, wanted = step(REFERENCE, made, twin, tokens, [0] * len(lengths))
    assert torch.equal(slots, wanted)
    count = sum(length // ratio for length in lengths)
    agree("compressor", found[:count], expected[:count])
    assert found[count:].isnan().all()
    torch.testing.assert_close(pages.state, twin.state, equal_nan=True, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=25)
@given(data=st.data(), ratio=st.sampled_from([4, 128]), block=st.sampled_from([2, 8, 32]))
def test_any_split_of_a_sequence_gives_the_same_rows(data, ratio, block):
    """Prefill in chunks, decode token by token, several requests at different places."""
    install(SMALL)
    torch.manual_seed(data.draw(st.integers(0, 99)))
    made = layer(ratio, 8)
    limit = 3 * ratio if ratio == 128 else 40
    lengths = [data.draw(st.integers(1, limit)) for _ in range(data.draw(st.integers(1, 3)))]
    tokens = [torch.randn(length, 24) for length in lengths]
    whole, _ = step(BINDING, made, Pages(lengths, block, made.width), tokens, [0] * len(lengths))
    expected = whole[: sum(length // ratio for length in lengths)].split(
        [length // ratio for length in lengths]
    )
    pages = Pages(lengths, block, made.width)
    done, rows = [0] * len(lengths), [[] for _ in lengths]
    while done != lengths:
        sizes = [
            data.draw(st.integers(0, min(left, ratio + 3)))
            for left in (length - at for length, at in zip(lengths, done, strict=True))
        ]
        if not sum(sizes):
            sizes = [length - at for length, at in zip(lengths, done, strict=True)]
        chunks = [part[at : at + size] for part, at, size in zip(tokens, done, sizes, strict=True)]
        out, _ = step(BINDING, made, pages, chunks, done)
        counts = [(at + size) // ratio - at // ratio for at, size in zip(done, sizes, strict=True)]
        for collected, part in zip(rows, out[: sum(counts)].split(counts), strict=True):
            collected.append(part)
        done = [at + size for at, size in zip(done, sizes, strict=True)]
    for collected, wanted in zip(rows, expected, strict=True):
        torch.testing.assert_close(torch.cat(collected), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ratio", [4, 128])
def test_rejected_tokens_leave_no_trace(ratio):
    """Drafts are computed, refused, and their positions computed again with other tokens."""
    install(SMALL)
    made, length = layer(ratio, 8), 3 * ratio
    tokens = torch.randn(length, 24)
    whole, _ = step(BINDING, made, Pages([length], 8, made.width), [tokens], [0])
    pages, rows = Pages([length + 4], 8, made.width), {}
    done = 0
    while done < length:
        drafted = torch.cat((tokens[done : done + 1], torch.randn(3, 24)))
        step(BINDING, made, pages, [drafted], [done])
        kept = tokens[done : done + 2]
        out, _ = step(BINDING, made, pages, [kept], [done])
        for block in range(done // ratio, (done + len(kept)) // ratio):
            rows[block] = out[block - done // ratio]
        done += len(kept)
    found = torch.stack([rows[block] for block in range(3)])
    torch.testing.assert_close(found, whole[:3], rtol=1e-4, atol=1e-4)


def test_block_0_is_neither_written_nor_needed_when_its_tokens_are_here():
    install(SMALL)
    made, tokens = layer(4, 8), torch.randn(12, 24)
    pages = Pages([12], 8, made.width)
    expected, _ = step(BINDING, made, pages, [tokens], [0])
    other = Pages([12], 8, made.width)
    other.table[:] = 0
    found, _ = step(BINDING, made, other, [tokens], [0])
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert other.state.isnan().all()
    with pytest.raises(OperatorRefusedError, match="block 0 where a state is still needed"):
        step(BINDING, made, other, [torch.randn(4, 24)], [12 - 4])


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("num_rows", [43, 47, 48, 60, 91])
@pytest.mark.parametrize(("ratio", "dim"), KINDS)
def test_metadata_agrees(ratio, dim, num_rows, flat):
    made = layer(ratio, dim)
    bounds = torch.tensor([0, 131, 131, 151, 178], dtype=torch.int32)
    start = torch.tensor([0, 7, 125, 508], dtype=torch.int32)
    table = torch.randperm(400).view(4, 100).to(torch.int32)
    options = {"block_size": 16, "ratio": ratio, "num_rows": num_rows, "flat": flat}
    found = bindings.compressor_metadata_custom(
        made.cosine, made.sine, bounds, start, table, **options
    )
    expected = reference.compressor_metadata(
        made.cosine, made.sine, bounds, start, table, **options
    )
    for value, wanted in zip(found, expected, strict=True):
        assert torch.equal(value, wanted)
    assert found[2].dtype == torch.int32
    if num_rows > 43:
        last = [-1] if flat else [-1, 15]
        assert found[2][-1].flatten().tolist() == last


def test_metadata_of_the_vendors_own_case():
    """131 tokens at ratio 4 in blocks of 128: 32 rows of block 1, then rows without a block."""
    made = layer(4, 16)
    bounds = torch.tensor([0, 131, 262], dtype=torch.int32)
    table = torch.tensor([[1, 0, 0], [3, 0, 0]], dtype=torch.int32)
    *_, slots = bindings.compressor_metadata_custom(
        made.cosine,
        made.sine,
        bounds,
        torch.zeros(2, dtype=torch.int32),
        table,
        block_size=128,
        ratio=4,
        num_rows=67,
        flat=False,
    )
    rows = [[block, row] for block in (1, 3) for row in range(32)] + [[-1, 127]] * 3
    assert slots.tolist() == rows


def test_rows_beyond_the_table_have_no_block():
    made = layer(4, 16)
    arguments = (torch.tensor([0, 8], dtype=torch.int32), torch.zeros(1, dtype=torch.int32))
    options = {"block_size": 1, "ratio": 4, "num_rows": 3, "flat": True}
    for table in ([[5]], [[5, -1]]):
        blocks = torch.tensor(table, dtype=torch.int32)
        cosine, sine, slots = bindings.compressor_metadata_custom(
            made.cosine, made.sine, *arguments, blocks, **options
        )
        assert slots.tolist() == [5, -1, -1]
        assert (cosine[1:] == 1).all() and (sine[1:] == 0).all()


def call(**change):
    """A legal call of the operator, but for the changes."""
    tokens, hidden, dim = 8, 1024, 512
    given = {
        "x": torch.zeros(tokens, hidden).bfloat16(),
        "wkv": torch.zeros(2 * dim, hidden).bfloat16(),
        "wgate": torch.zeros(2 * dim, hidden).bfloat16(),
        "state_cache": torch.zeros(3, 8, 4 * dim),
        "ape": torch.zeros(4, 2 * dim),
        "norm_weight": torch.zeros(dim).bfloat16(),
        "rope_sin": torch.zeros(3, 64),
        "rope_cos": torch.zeros(3, 64),
        "state_block_table": torch.ones(1, 1, dtype=torch.int32),
        "cu_seqlens": torch.tensor([0, tokens], dtype=torch.int32),
        "seqused": None,
        "start_pos": torch.zeros(1, dtype=torch.int32),
        "rope_head_dim": 64,
        "cmp_ratio": 4,
        "coff": 2,
        "norm_eps": 1e-6,
        "rotary_mode": 2,
        "cache_mode": 1,
    }
    return CUSTOM.compressor(**{**given, **change})


def test_the_call_is_legal():
    assert call().shape == (3, 512)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(1, 8, 1024).bfloat16()}, r"x.*not emulated"),
        ({"x": torch.zeros(8, 1024)}, r"x.*float32"),
        ({"x": torch.zeros(8, 1000).bfloat16()}, r"1024 to 10240"),
        ({"wkv": torch.zeros(1024, 1024)}, r"wkv"),
        ({"wkv": torch.zeros(512, 1024).bfloat16()}, r"wkv"),
        ({"wgate": torch.zeros(1024, 1024).half()}, r"wgate"),
        ({"state_cache": torch.zeros(3, 8, 2048).bfloat16()}, r"state_cache.*bfloat16"),
        ({"state_cache": torch.zeros(3, 8, 1024)}, r"state_cache"),
        ({"state_cache": torch.zeros(3, 2048, 8).mT}, r"contiguous on every dimension but"),
        ({"ape": torch.zeros(4, 1024).bfloat16()}, r"ape.*bfloat16"),
        ({"ape": torch.zeros(128, 1024)}, r"ape"),
        ({"norm_weight": torch.zeros(512).half()}, r"norm_weight.*float16"),
        ({"norm_weight": torch.zeros(256).bfloat16()}, r"\(4, 2, 512\)"),
        ({"rope_sin": torch.zeros(2, 64)}, r"rope_sin"),
        ({"rope_cos": torch.zeros(3, 64).half()}, r"rope_cos.*float16"),
        ({"rope_cos": torch.zeros(3, 64).bfloat16()}, r"rope_cos.*as the first"),
        ({"cu_seqlens": None}, r"cu_seqlens"),
        ({"start_pos": None}, r"start_pos"),
        ({"state_block_table": None}, r"state_block_table"),
        ({"cu_seqlens": torch.tensor([0, 8])}, r"cu_seqlens.*int32"),
        ({"cu_seqlens": torch.tensor([8], dtype=torch.int32)}, r"no request"),
        ({"cu_seqlens": torch.tensor([1, 8], dtype=torch.int32)}, r"begin with 0"),
        ({"cu_seqlens": torch.tensor([0, 9], dtype=torch.int32)}, r"within the packed tokens"),
        ({"start_pos": torch.zeros(2, dtype=torch.int32)}, r"start_pos"),
        ({"start_pos": torch.tensor([-1], dtype=torch.int32)}, r"start_pos"),
        ({"start_pos": torch.tensor([8], dtype=torch.int32)}, r"2, the blocks of the longest"),
        ({"state_block_table": torch.ones(2, 1, dtype=torch.int32)}, r"state_block_table"),
        ({"state_block_table": torch.ones(1, 1)}, r"state_block_table.*int32"),
        ({"state_block_table": torch.full((1, 1), 3, dtype=torch.int32)}, r"state_block_table"),
        ({"seqused": torch.tensor([8], dtype=torch.int32)}, r"seqused"),
        ({"rope_head_dim": 32}, r"rope_head_dim"),
        ({"cmp_ratio": 128}, r"\(128, 1, 512\)"),
        ({"coff": 1}, r"coff"),
        ({"rotary_mode": 1}, r"interleave"),
        ({"cache_mode": 2}, r"continuous"),
    ],
)
def test_limits(change, message):
    with pytest.raises(OperatorRefusedError, match=message):
        call(**change)


def test_lengths_that_are_not_cumulative_are_refused():
    lengths = {"cu_seqlens": torch.tensor([0, 5, 3], dtype=torch.int32)}
    tables = {
        "state_block_table": torch.ones(2, 1, dtype=torch.int32),
        "start_pos": torch.zeros(2, dtype=torch.int32),
    }
    with pytest.raises(OperatorRefusedError, match="does not rise"):
        call(**lengths, **tables)


def test_swapped_sine_and_cosine_change_the_rows():
    install(SMALL)
    made, tokens = layer(4, 16), torch.randn(12, 24)
    right, _ = step(BINDING, made, Pages([12], 8, made.width), [tokens], [0])
    swapped = replace(made, cosine=made.sine, sine=made.cosine)
    wrong, _ = step(BINDING, swapped, Pages([12], 8, made.width), [tokens], [0])
    assert (right[:3] - wrong[:3]).abs().max() > 0.1


METADATA = {
    "rope_cos": torch.ones(16, 8),
    "rope_sin": torch.ones(16, 8),
    "cu_seqlens": torch.tensor([0, 8], dtype=torch.int32),
    "start_pos": torch.zeros(1, dtype=torch.int32),
    "kv_block_table": torch.ones(1, 1, dtype=torch.int32),
    "kv_block_size": 16,
    "slot_mapping_format": 2,
    "compress_ratio": 4,
    "num_compressed_tokens": 3,
    "num_reqs_actual": 1,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_cos": torch.ones(16)}, r"rope_cos"),
        ({"rope_cos": torch.ones(0, 8), "rope_sin": torch.ones(0, 8)}, r"empty"),
        ({"rope_sin": torch.ones(16, 8).half()}, r"rope_sin"),
        ({"rope_sin": torch.ones(15, 8)}, r"rope_sin.*shape of rope_cos"),
        ({"cu_seqlens": torch.tensor([0, 8])}, r"cu_seqlens.*int64"),
        ({"cu_seqlens": torch.tensor([8], dtype=torch.int32)}, r"cu_seqlens.*2 rows"),
        ({"start_pos": torch.zeros(0, dtype=torch.int32)}, r"start_pos"),
        ({"kv_block_table": torch.ones(1, 1)}, r"kv_block_table"),
        ({"kv_block_size": 0}, r"kv_block_size"),
        ({"slot_mapping_format": 0}, r"1 \(flat\), 2"),
        ({"compress_ratio": 0}, r"compress_ratio"),
        ({"num_compressed_tokens": 0}, r"num_compressed_tokens"),
        ({"num_reqs_actual": 0}, r"num_reqs_actual"),
    ],
)
def test_metadata_limits(change, message):
    with pytest.raises(OperatorRefusedError, match=message):
        CUSTOM.compressor_metadata(**{**METADATA, **change})
