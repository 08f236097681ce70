"""The quantized lightning indexer: choice of compressed blocks, ties, paging, limits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.emulation import OperatorRefusedError, install
from ascend_recipes.ops import compressed_attention as bindings
from ascend_recipes.ops import latent_cache
from ascend_recipes.ops.reference import compressed_attention as reference
from ascend_recipes.ops.reference.latent_cache import hadamard_rotation

pytestmark = pytest.mark.ops

E4M3 = torch.float8_e4m3fn
CUSTOM = torch.ops._C_ascend
RATIO = 4
CASES = [
    ([(1, 1)], 16),
    ([(3, 3), (1, 90)], 16),
    ([(5, 133), (0, 7), (9, 300)], 32),
    ([(1, 515), (1, 4), (1, 3), (1, 260)], 64),
    ([(40, 40), (33, 700)], 128),
]
"""Tokens and keys of each request, rows of a block."""


class Case:
    """A batch with its keys in shuffled pages full of junk."""

    def __init__(self, requests, rows, dtype, *, heads=64, dim=128):
        self.lengths = torch.tensor([keys for _, keys in requests], dtype=torch.int32)
        counts = torch.tensor([0, *[tokens for tokens, _ in requests]])
        self.bounds = counts.cumsum(0).to(torch.int32)
        blocks = [keys // RATIO for _, keys in requests]
        columns = max(1, *[-(-count // rows) for count in blocks])
        self.table = (torch.randperm(columns * len(requests)) + 1).view(len(requests), -1).int()
        width = dim * dtype.itemsize + latent_cache.SCALE_DTYPES[dtype].itemsize
        pages = torch.full((self.table.numel() + 1, rows * width + 64), 255, dtype=torch.uint8)
        page = pages.as_strided((len(pages), rows, width), (pages.stride(0), width, 1))
        self.keys, self.scales = latent_cache.indexer_views(page, dtype)
        self.plain = [torch.randn(count, dim) for count in blocks]
        for request, plain in enumerate(self.plain):
            place = torch.arange(len(plain))
            slots = self.table[request, place // rows] * rows + place % rows
            write = latent_cache.write_indexer_keys_epilog
            if dtype == torch.int8:
                write = latent_cache.write_indexer_keys_scatter
            if len(plain):
                write(plain.bfloat16(), self.keys, self.scales, slots.long())
        tokens = int(self.bounds[-1])
        self.query = torch.randn(tokens, heads, dim)
        self.weights = torch.randn(tokens, heads) * (heads * dim) ** -0.5
        self.query8, self.query_scale = latent_cache.quantize_indexer_query_npu(
            self.query.bfloat16(), cache_dtype=dtype
        )

    def select(self, top_k, *, function=bindings.lightning_indexer_custom, **change):
        common = {
            "query_start_R1": self.bounds,
            "kv_lengths_R": self.lengths,
            "top_k": top_k,
            "ratio": RATIO,
        }
        heads, dim = self.query.shape[1:]
        metadata = bindings.lightning_indexer_metadata_custom(
            **common, num_heads=heads, head_dim=dim
        )
        given = {**common, "block_table_RV": self.table, "metadata": metadata, **change}
        return function(
            self.query8, self.weights, self.query_scale, self.keys, self.scales, **given
        )

    def scores(self, token, request, visible):
        """Scores of the quantized operands in float64."""
        place = torch.arange(visible)
        rows = self.keys.shape[1]
        page = self.table[request, place // rows].long()
        key = self.keys[page, place % rows].double() * self.scales[page, place % rows].double()
        query = self.query8[token].double() * self.query_scale[token].double()[:, None]
        return self.weights[token].to(self.scales.dtype).double() @ (query @ key.T).relu()

    def visible(self):
        """Token, request and number of visible blocks of every query."""
        for request, keys in enumerate(self.lengths.tolist()):
            begin, end = self.bounds[request : request + 2].tolist()
            for token in range(begin, end):
                yield token, request, (keys - (end - token) + 1) // RATIO


def same_choice(case, found, expected, *, step):
    """The same blocks, but for those whose score is within `step` of the last one's."""
    for token, request, visible in case.visible():
        first, second = (set(row[row >= 0].tolist()) for row in (found[token], expected[token]))
        assert len(first) == len(second) == min(visible, found.shape[1])
        if first == second:
            continue
        scores = case.scores(token, request, visible)
        last = scores.sort(descending=True).values[found.shape[1] - 1]
        for block in first ^ second:
            assert (scores[block] - last).abs() <= step * scores.abs().max()


@pytest.mark.parametrize("dtype", [torch.int8, E4M3])
@pytest.mark.parametrize("top_k", [1, 16, 512])
@pytest.mark.parametrize(("requests", "rows"), CASES)
def test_binding_agrees(requests, rows, dtype, top_k):
    case = Case(requests, rows, dtype)
    found = case.select(top_k)
    expected = case.select(top_k, function=reference.lightning_indexer)
    assert found.dtype == torch.int32 and found.shape == (case.query.shape[0], top_k)
    same_choice(case, found, expected, step=2**-9 if dtype == torch.int8 else 1e-5)


@pytest.mark.parametrize(("requests", "rows"), CASES)
def test_float_operands_are_a_relaxation(requests, rows):
    install({"cache.float32", "shape.small"})
    case = Case(requests, rows, torch.float32, heads=8, dim=16)
    found = case.select(16)
    assert torch.equal(found, case.select(16, function=reference.lightning_indexer))
    install({"cache.float32"})
    with pytest.raises(OperatorRefusedError, match="64 heads"):
        case.select(16)
    install({"shape.small"})
    wanted = r"query.*float32.*int8 on a2, a3; float8_e4m3fn on a5"
    with pytest.raises(OperatorRefusedError, match=wanted):
        case.select(16)


def test_choice_equals_transformers(transformers_deepseek_v4):
    """Float operands, no rotation: transformers' indexer chooses the same blocks."""
    install({"cache.float32"})
    torch.manual_seed(3)
    hidden, tokens, top_k = 32, 203, 8
    config = transformers_deepseek_v4.DeepseekV4Config(
        hidden_size=hidden, index_topk=top_k, q_lora_rank=16, index_n_heads=64, index_head_dim=128
    )
    module = transformers_deepseek_v4.DeepseekV4Indexer(config)
    states, residual = torch.randn(1, tokens, hidden), torch.randn(1, tokens, 16)
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter)
    held = {}
    scorer = module.scorer.forward

    def keep(query, compressed, hidden_states):
        weights = module.scorer.weights_proj(hidden_states) * (64 * 128) ** -0.5
        held.update(query=query[0], keys=compressed[0], weights=weights[0])
        return scorer(query, compressed, hidden_states)

    module.scorer.forward = keep
    expected = module(states, residual, torch.arange(tokens)[None], None, 0)[0]
    keys = held["keys"]
    case = Case([(tokens, tokens)], 16, torch.float32)
    place = torch.arange(len(keys))
    slots = (case.table[0, place // 16] * 16 + place % 16).long()
    latent_cache.write_indexer_keys_scatter(keys, case.keys, case.scales, slots)
    case.query, case.weights = held["query"].detach(), held["weights"].detach()
    case.query8, case.query_scale = case.query, torch.ones(tokens, 64)
    found = case.select(top_k)
    for row, wanted in zip(found.tolist(), expected.tolist(), strict=True):
        assert {item for item in row if item >= 0} == {item for item in wanted if item >= 0}


def test_lower_blocks_win_ties_and_the_order_is_by_score():
    case = Case([(1, 160)], 16, torch.int8)
    case.keys.zero_()
    case.keys[case.table[0, 1].long(), 3] = 5
    case.weights.fill_(1.0)
    case.query8.fill_(1)
    assert case.select(6).tolist() == [[19, 0, 1, 2, 3, 4]]
    case.weights.fill_(-1.0)
    assert case.select(40).tolist() == [[*range(19), *range(20, 40), 19]]


def test_negative_products_do_not_count():
    case = Case([(1, 40)], 16, torch.int8)
    case.query8.fill_(-1)
    case.keys.fill_(1)
    case.weights.fill_(1.0)
    assert case.select(10).tolist() == [list(range(10))]


def test_int8_scores_pass_through_float16():
    """1024 and 1025 are one float16 step apart after division, 2049 and 2050 are not."""
    case = Case([(1, 8)], 16, torch.int8)
    case.weights.zero_()
    case.weights[0, 0] = 1.0
    case.query8.zero_()
    case.query8[0, 0, :3] = torch.tensor([64, 16, 1])
    case.query_scale.fill_(1.0)
    page = case.table[0, 0].long()
    case.scales.fill_(1.0)
    case.keys[page, :2] = 0
    for low, high in ((1024, 1025), (2048, 2049)):
        for row, product in enumerate((low, high)):
            first, second = divmod(product, 64)
            case.keys[page, row, :3] = torch.tensor([first, 0, second])
        assert case.select(2).tolist() == ([[1, 0]] if low == 1024 else [[0, 1]])


@settings(deadline=None, max_examples=25)
@given(
    data=st.data(), rows=st.sampled_from([16, 32, 48]), dtype=st.sampled_from([torch.int8, E4M3])
)
def test_pages_do_not_matter(data, rows, dtype):
    torch.manual_seed(data.draw(st.integers(0, 99)))
    requests = []
    for _ in range(data.draw(st.integers(1, 4))):
        keys = data.draw(st.integers(1, 400))
        requests.append((data.draw(st.integers(1, min(keys, 20))), keys))
    case = Case(requests, rows, dtype)
    found = case.select(24)
    order = torch.randperm(len(case.keys))
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    case.keys, case.scales = case.keys[order], case.scales[order]
    case.table = place[case.table.long()].int()
    assert torch.equal(case.select(24), found)


OVERLAP = [(375, 187), (4096, 512), (16384, 512), (4096, 1024), (16384, 1024)]


def searching(tokens, blocks):
    """Every token looks for a direction of its own; blocks hold exponential shares of it."""
    wanted = torch.nn.functional.normalize(torch.randn(tokens, 128), dim=-1)
    share = torch.distributions.Exponential(0.5).sample((blocks, tokens))
    keys = torch.randn(blocks, 128) + 1.1 * share @ wanted
    query = 128**0.5 * wanted[:, None] + torch.randn(tokens, 64, 128)
    return query, torch.nn.functional.normalize(keys, dim=-1) * 128**0.5, torch.rand(tokens, 64)


def noise(tokens, blocks):
    """Nothing to find: scores lie as close together as they can."""
    return torch.randn(tokens, 64, 128), torch.randn(blocks, 128), torch.randn(tokens, 64)


@pytest.mark.parametrize(
    ("draw", "dtype", "least"),
    [
        (searching, torch.int8, 0.985),
        (searching, E4M3, 0.985),
        (noise, torch.int8, 0.985),
        # Three mantissa bits are too few to order scores that differ by less than 2 %.
        (noise, E4M3, 0.955),
    ],
)
@pytest.mark.parametrize(("blocks", "top_k"), OVERLAP)
def test_eight_bits_choose_what_float_chooses(blocks, top_k, draw, dtype, least):
    """Overlap with the choice of float; whatever differs lies within the quantization error."""
    tokens = 4
    case = Case([(tokens, blocks * RATIO + tokens - 1)], 128, dtype)
    query, keys, case.weights = draw(tokens, blocks)
    query, keys = (hadamard_rotation(part).bfloat16() for part in (query, keys))
    place = torch.arange(blocks)
    slots = (case.table[0, place // 128] * 128 + place % 128).long()
    write = latent_cache.write_indexer_keys_epilog
    if dtype == torch.int8:
        write = latent_cache.write_indexer_keys_scatter
    write(keys, case.keys, case.scales, slots)
    case.query8, case.query_scale = latent_cache.quantize_indexer_query_npu(
        query, cache_dtype=dtype
    )
    found = case.select(top_k)
    product = torch.einsum("tnd,ld->tnl", query.double(), keys.double())
    exact = torch.einsum("tn,tnl->tl", case.weights.double(), product.relu())
    quantized = torch.stack([case.scores(token, 0, blocks) for token in range(tokens)])
    error = (exact - quantized).abs().amax(-1)
    wanted = exact.topk(top_k)
    common = 0
    for token in range(tokens):
        chosen, best = set(found[token].tolist()), set(wanted.indices[token].tolist())
        common += len(chosen & best)
        last = wanted.values[token, -1]
        for block in chosen ^ best:
            assert (exact[token, block] - last).abs() <= 2 * error[token] * 1.01
    assert common / (tokens * top_k) >= least


def test_wrong_lengths_change_the_choice_or_are_refused():
    case = Case([(2, 300), (3, 400)], 64, torch.int8)
    right = case.select(16)
    with pytest.raises(OperatorRefusedError, match="made for another call"):
        case.select(16, kv_lengths_R=case.lengths // RATIO)
    case.lengths = case.lengths // RATIO
    assert not torch.equal(case.select(16), right)


def legal(**change):
    query = torch.zeros(2, 64, 128, dtype=torch.int8)
    given = {
        "query": query,
        "key": torch.zeros(2, 16, 1, 128, dtype=torch.int8),
        "weights": torch.zeros(2, 64).half(),
        "query_dequant_scale": torch.zeros(2, 64).half(),
        "key_dequant_scale": torch.zeros(2, 16, 1).half(),
        "actual_seq_lengths_query": torch.tensor([2], dtype=torch.int32),
        "actual_seq_lengths_key": torch.tensor([40], dtype=torch.int32),
        "block_table": torch.tensor([[1]], dtype=torch.int32),
        "layout_query": "TND",
        "layout_key": "PA_BSND",
        "sparse_count": 16,
        "cmp_ratio": 4,
        **change,
    }
    if "metadata" not in given:
        given["metadata"] = CUSTOM.npu_vllm_quant_lightning_indexer_metadata(
            64,
            1,
            128,
            0,
            0,
            torch.tensor([2], dtype=torch.int32),
            torch.tensor([40], dtype=torch.int32),
            batch_size=1,
            layout_query="TND",
            layout_key="PA_BSND",
            sparse_count=16,
            cmp_ratio=4,
        )
    return CUSTOM.npu_vllm_quant_lightning_indexer(**given)


def test_the_call_is_legal():
    indices, values = legal()
    assert indices.shape == (2, 1, 16) and values.numel() == 0


def integers(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(2, 64, 128)}, r"query.*float32"),
        ({"query": torch.zeros(2, 32, 128, dtype=torch.int8)}, r"64 heads"),
        ({"query": torch.zeros(1, 2, 64, 128, dtype=torch.int8)}, r"query"),
        ({"query": torch.zeros(64, 2, 128, dtype=torch.int8).transpose(0, 1)}, r"not contiguous"),
        ({"key": torch.zeros(2, 16, 1, 128).to(E4M3)}, r"key"),
        ({"key": torch.zeros(2, 16, 2, 128, dtype=torch.int8)}, r"1 head"),
        ({"key": torch.zeros(2, 16, 1, 64, dtype=torch.int8)}, r"key"),
        ({"key": torch.zeros(16, 2, 1, 128, dtype=torch.int8).transpose(0, 1)}, r"every dimension"),
        ({"weights": torch.zeros(2, 64)}, r"weights.*float32"),
        ({"weights": torch.zeros(2, 63).half()}, r"weights"),
        ({"query_dequant_scale": torch.zeros(2, 64)}, r"query_dequant_scale.*float32"),
        (
            {
                name: torch.full((2, 64), 300.0).half()
                for name in ("weights", "query_dequant_scale")
            },
            r"weights.*overflows",
        ),
        ({"key_dequant_scale": torch.zeros(2, 16, 1)}, r"key_dequant_scale.*float32"),
        ({"key_dequant_scale": torch.zeros(2, 16).half()}, r"key_dequant_scale"),
        ({"actual_seq_lengths_query": None}, r"both lengths"),
        ({"actual_seq_lengths_key": None}, r"both lengths"),
        ({"block_table": None}, r"both lengths"),
        ({"actual_seq_lengths_query": torch.tensor([2])}, r"int32"),
        ({"actual_seq_lengths_query": integers(3)}, r"within the packed tokens"),
        ({"actual_seq_lengths_query": integers(0, 2)}, r"actual_seq_lengths_key"),
        ({"actual_seq_lengths_key": torch.tensor([40])}, r"actual_seq_lengths_key.*int64"),
        ({"actual_seq_lengths_key": integers(-1)}, r"actual_seq_lengths_key"),
        ({"actual_seq_lengths_key": integers(80)}, r"block_table.*at least 2"),
        ({"actual_seq_lengths_key": integers(44)}, r"made for another call"),
        ({"block_table": torch.tensor([[1]])}, r"block_table.*int64"),
        ({"block_table": integers(1)}, r"block_table"),
        ({"metadata": None}, r"metadata.*None"),
        ({"metadata": torch.zeros(1024)}, r"metadata.*float32.*int32"),
        ({"metadata": torch.zeros(512, dtype=torch.int32)}, r"int32 \[1024\]"),
        ({"metadata": torch.zeros(1024, dtype=torch.int32)}, r"made for another call"),
        ({"query_quant_mode": 1}, r"query_quant_mode"),
        ({"key_quant_mode": 1}, r"key_quant_mode"),
        ({"layout_query": "BSND"}, r"layout_query"),
        ({"layout_key": "TND"}, r"layout_key"),
        ({"sparse_count": 0}, r"1 to 2048"),
        ({"sparse_count": 2049}, r"1 to 2048"),
        ({"sparse_mode": 1}, r"sparse_mode"),
        ({"pre_tokens": 5}, r"pre_tokens"),
        ({"next_tokens": 5}, r"next_tokens"),
        ({"cmp_ratio": 3}, r"cmp_ratio"),
        ({"return_value": True}, r"return_value"),
    ],
)
def test_limits(change, message):
    with pytest.raises(OperatorRefusedError, match=message):
        legal(**change)


def test_blocks_of_an_odd_size_are_refused():
    change = {
        "key": torch.zeros(2, 20, 1, 128, dtype=torch.int8),
        "key_dequant_scale": torch.zeros(2, 20, 1).half(),
    }
    with pytest.raises(OperatorRefusedError, match="blocks of 20 rows"):
        legal(**change)


def test_tokens_after_the_last_request_choose_nothing():
    case = Case([(2, 60)], 16, torch.int8)
    expected = case.select(8)
    case.query8 = torch.cat((case.query8, case.query8))
    case.weights = torch.cat((case.weights, torch.full((2, 64), torch.nan)))
    case.query_scale = case.query_scale.repeat(2, 1)
    found = case.select(8)
    assert torch.equal(found[:2], expected)
    assert (found[2:] == -1).all()


def test_a_non_causal_choice_sees_the_whole_request():
    indices, _ = legal(sparse_mode=0)
    assert (indices[0] >= 0).sum() == 10
    indices, _ = legal()
    assert (indices[0] >= 0).sum() == 39 // 4
