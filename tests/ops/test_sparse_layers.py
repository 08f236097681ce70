"""Whole DeepSeek-V4 attention layers through operations, against transformers' own layer.

Two requests in chunks of different sizes and decode steps, over paged caches that begin full of
NaN: this is where slots, positions, states and splits of neighbouring operations have to fit.
"""

from dataclasses import dataclass, field

import pytest
import torch

from ascend_recipes.emulation import install
from ascend_recipes.ops import OperationTable, binding_key
from ascend_recipes.ops.compressed_attention import compressed_rows, indexer_views
from ascend_recipes.registry.load import load_registry

pytestmark = pytest.mark.ops

HIDDEN, HEADS, DIM, ROPE, RANK, WINDOW, TOP_K = 64, 4, 128, 64, 32, 24, 8
INDEX_HEADS, INDEX_DIM = 64, 128
EPSILON = 1e-6
PAGE = 16
FLOAT = {"dtype.float32", "shape.small", "cache.float32"}
STEPS = [(60, 3), (1, 0), (75, 130), (1, 1), (1, 1), (2, 6)]
"""Tokens of each request in every step."""
KINDS = {
    "sliding_attention": 1,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}


def bound(hardware):
    contracts = load_registry().operations
    table = OperationTable()
    chosen = {
        name: next(binding_key(row) for row in contracts[name].bindings if hardware in row.hardware)
        for name in contracts
    }
    table.bind(chosen, contracts)
    return table


@pytest.fixture
def config(transformers_deepseek_v4):
    return transformers_deepseek_v4.DeepseekV4Config(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        head_dim=DIM,
        qk_rope_head_dim=ROPE,
        q_lora_rank=RANK,
        o_lora_rank=16,
        o_groups=2,
        sliding_window=WINDOW,
        index_n_heads=INDEX_HEADS,
        index_head_dim=INDEX_DIM,
        index_topk=TOP_K,
        num_hidden_layers=3,
        layer_types=list(KINDS),
        mlp_layer_types=["moe"] * 3,
        rms_norm_eps=EPSILON,
        max_position_embeddings=4096,
        attn_implementation="eager",
    )


def randomized(module):
    for name, parameter in module.named_parameters():
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1.0
        parameter.data = torch.randn_like(parameter) * scale
        if "norm" in name:
            parameter.data = torch.rand_like(parameter) + 0.5
    return module.eval()


@dataclass
class Layer:
    """Caches of one layer and its forward pass over a batch of two requests."""

    operations: OperationTable
    module: torch.nn.Module
    ratio: int
    tables: tuple[torch.Tensor, torch.Tensor]
    flat: bool
    pages: dict[str, torch.Tensor] = field(default_factory=dict)
    blocks: dict[str, torch.Tensor] = field(default_factory=dict)

    def cache(self, name, width, rows=PAGE, dtype=torch.float32):
        """Shuffled pages from 1 on, and the table of both requests."""
        if name not in self.pages:
            columns = 256 // rows + 2
            self.pages[name] = torch.full((2 * columns + 1, rows, width), torch.nan).to(dtype)
            self.blocks[name] = (torch.randperm(2 * columns) + 1).view(2, -1).int()
        return self.pages[name], self.blocks[name]

    def rope(self, position):
        return [part[position] for part in self.tables]

    def slots(self, name, bounds, start, width):
        """Slots of the current tokens in a cache of raw tokens."""
        cache, table = self.cache(name, width)
        places = []
        for request, begin in enumerate(start.tolist()):
            position = torch.arange(begin, begin + int(bounds[request + 1] - bounds[request]))
            page = table[request, position // PAGE].long()
            places.append(page * PAGE + position % PAGE)
        return cache, table, torch.cat(places)

    def compress(self, name, module, x, bounds, start, width, rows):
        """New rows of a compressor, and their slots in the cache of that name."""
        coff = 2 if self.ratio == 4 else 1
        state, state_table = self.cache(f"{name}.state", 2 * coff * width, rows)
        cosine, sine, slots = self.operations.compressor_metadata(
            *self.tables,
            bounds,
            start,
            self.cache(name, width)[1],
            block_size=PAGE,
            ratio=self.ratio,
            num_rows=compressed_rows(x.shape[0], 2, self.ratio),
            flat=self.flat,
        )
        emitted = self.operations.compressor(
            x,
            module.kv_proj.weight,
            module.gate_proj.weight,
            module.position_bias,
            module.kv_norm.weight,
            state,
            cosine,
            sine,
            block_table_RV=state_table,
            query_start_R1=bounds,
            start_R=start,
            ratio=self.ratio,
            epsilon=EPSILON,
        )
        return emitted, slots

    def choose(self, x, residual, position, bounds, start, lengths):
        """Indexer: write the new keys, score, select."""
        module, operations = self.module.compressor.indexer, self.operations
        keys, slots = self.compress("indexer", module, x, bounds, start, INDEX_DIM, 8)
        _, table = self.cache("indexer", INDEX_DIM)
        page, _ = self.cache("indexer.page", 4 * (INDEX_DIM + 1), dtype=torch.uint8)
        key_cache, scale_cache = indexer_views(page, torch.float32)
        keys = operations.hadamard_rotation(keys)
        operations.write_indexer_keys(keys, key_cache, scale_cache, slots)
        query = module.q_b_proj(residual).view(-1, INDEX_HEADS, INDEX_DIM)
        query = operations.partial_rotary(query, *self.rope(position))
        query8, scale = operations.quantize_indexer_query(
            operations.hadamard_rotation(query), cache_dtype=torch.float32
        )
        common = {"query_start_R1": bounds, "kv_lengths_R": lengths, "top_k": TOP_K, "ratio": 4}
        metadata = operations.lightning_indexer_metadata(
            **common, num_heads=INDEX_HEADS, head_dim=INDEX_DIM
        )
        weights = module.scorer.weights_proj(x) * (INDEX_HEADS * INDEX_DIM) ** -0.5
        return operations.lightning_indexer(
            query8,
            weights,
            scale,
            key_cache,
            scale_cache,
            **common,
            block_table_RV=table,
            metadata=metadata,
        )

    def attend(self, x, bounds, start):
        """One step: tokens of both requests, their bounds and first positions."""
        module, operations, ratio = self.module, self.operations, self.ratio
        lengths = start + bounds.diff()
        counts = bounds.diff().tolist()
        position = torch.cat(
            [torch.arange(at, at + n) for at, n in zip(start.tolist(), counts, strict=True)]
        )
        residual = operations.rms_norm(module.q_a_proj(x), module.q_a_norm.weight, epsilon=EPSILON)
        query = module.q_b_proj(residual).view(-1, HEADS, DIM)
        query = operations.rms_norm(query, torch.ones(DIM), epsilon=EPSILON)
        query = operations.partial_rotary(query, *self.rope(position))
        key = operations.rms_norm(module.kv_proj(x), module.kv_norm.weight, epsilon=EPSILON)
        key = operations.partial_rotary(key[:, None], *self.rope(position))[:, 0]
        window, window_table, slots = self.slots("window", bounds, start, DIM)
        operations.write_latent_rows(key, window, slots)
        extra = {}
        if ratio > 1:
            if ratio == 4:
                extra["indices_TK"] = self.choose(x, residual, position, bounds, start, lengths)
            rows = 8 if ratio == 4 else 32
            emitted, slots = self.compress("main", module.compressor, x, bounds, start, DIM, rows)
            cache, table = self.cache("main", DIM)
            operations.write_latent_rows(emitted, cache, slots)
            extra |= {"compressed_cache_BPW": cache, "compressed_table_RV": table}
        common = {"query_start_R1": bounds, "kv_lengths_R": lengths, "window": WINDOW}
        metadata = operations.sparse_attention_metadata(
            **common,
            num_heads=HEADS,
            head_dim=DIM,
            ratio=ratio,
            top_k=TOP_K if ratio == 4 else 0,
        )
        out = operations.sparse_attention_shared_kv(
            query,
            window,
            **common,
            window_table_RV=window_table,
            sinks_N=module.sinks,
            metadata=metadata,
            scale=DIM**-0.5,
            ratio=ratio,
            **extra,
        )
        out = operations.partial_rotary(out, *self.rope(position), inverse=True)
        weight = module.o_a_proj.weight.view(2, -1, HEADS * DIM // 2).transpose(1, 2)
        grouped = operations.grouped_projection(out.reshape(-1, 2, HEADS * DIM // 2), weight)
        return module.o_b_proj(grouped.flatten(1))


def expected_rows(modeling, config, module, kind, x):
    """transformers' layer over a whole sequence."""
    position = torch.arange(x.shape[0])[None]
    rotary = modeling.DeepseekV4RotaryEmbedding(config)
    factors = {name: rotary(x[None], position, layer_type=name) for name in ("main", "compress")}
    place = position[0]
    hidden = (place > place[:, None]) | (place[:, None] - place >= WINDOW)
    mask = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)[None, None]
    return module(x[None], factors, position, mask)[0][0]


@pytest.mark.parametrize("hardware", ["a3", "a5"])
@pytest.mark.parametrize(("kind", "ratio"), KINDS.items())
@torch.no_grad()
def test_layer_equals_transformers(transformers_deepseek_v4, config, kind, ratio, hardware):
    install(FLOAT)
    module = randomized(
        transformers_deepseek_v4.DeepseekV4Attention(config, list(KINDS).index(kind))
    )
    rotary = transformers_deepseek_v4.DeepseekV4RotaryEmbedding(config)
    name = "main" if ratio == 1 else "compress"
    halves = rotary(torch.zeros(1), torch.arange(512)[None], layer_type=name)
    tables = tuple(half[0].repeat_interleave(2, dim=-1) for half in halves)
    layer = Layer(bound(hardware), module, ratio, tables, flat=hardware == "a5")
    totals = [sum(step[request] for step in STEPS) for request in range(2)]
    states = [torch.randn(total, HIDDEN) for total in totals]
    wanted = [
        expected_rows(transformers_deepseek_v4, config, module, kind, part) for part in states
    ]
    done = torch.zeros(2, dtype=torch.int32)
    for step in STEPS:
        counts = torch.tensor(step, dtype=torch.int32)
        bounds = torch.tensor([0, step[0], sum(step)], dtype=torch.int32)
        begin = done.tolist()
        x, expected = (
            torch.cat([part[at : at + n] for part, at, n in zip(whole, begin, step, strict=True)])
            for whole in (states, wanted)
        )
        found = layer.attend(x, bounds, done.clone())
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        done += counts
    assert torch.equal(done, torch.tensor(totals).int())
