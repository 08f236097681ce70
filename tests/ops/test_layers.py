"""Whole layers of the tiny model through operations, against transformers' own layers.

Chunked prefill, then decode, over paged caches: this is where conventions of neighbouring
operations (layouts, orders, units) have to fit.
"""

import pytest
import torch

from ascend_recipes.emulation import install
from ascend_recipes.ops import OperationTable, binding_key
from ascend_recipes.ops.attention import causal_mask
from ascend_recipes.registry.load import load_registry
from ascend_recipes.tiny import ensure_tiny_checkpoint

pytestmark = pytest.mark.ops

CHUNKS = [60, 1, 75, 1, 1, 2]
HEAD = 256
EPSILON = 1e-6
SECTION = [11, 11, 10]


@pytest.fixture(scope="module")
def model(tmp_path_factory, transformers_qwen3_5):
    folder = ensure_tiny_checkpoint(
        tmp_path_factory.mktemp("tiny"),
        family="qwen3_5",
        model=dict(load_registry().models["qwen3_5_27b"].config),
        seed=3,
        dtype="float32",
    )
    full = transformers_qwen3_5.Qwen3_5ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return full.model.language_model.eval()


@pytest.fixture
def operations():
    """Every operation on the binding that A2 would use without further traits."""
    install({"dtype.float32"})
    contracts = load_registry().operations
    table = OperationTable()
    table.bind(
        {
            name: next(
                binding_key(row)
                for row in contracts[name].bindings
                if "a2" in row.hardware and not row.needs
            )
            for name in contracts
        },
        contracts,
    )
    return table


def hidden_states():
    return torch.randn(sum(CHUNKS), 256)


def chunk_bounds():
    start = 0
    for length in CHUNKS:
        yield start, start + length
        start += length


def delta_net_chunk(operations, layer, x, conv_state, state, fresh):
    """One chunk of one request; decode when it has a single token."""
    tokens = x.shape[0]
    decode = tokens == 1 and not fresh
    line = torch.tensor([1], dtype=torch.int32)
    lengths = torch.tensor([tokens], dtype=torch.int32)
    mixed = operations.causal_conv1d(
        layer.in_proj_qkv(x),
        layer.conv1d.weight.squeeze(1).T,
        conv_state,
        query_start_R1=torch.tensor([0, tokens]),
        cache_indices_R=line,
        has_initial_state_R=torch.tensor([not fresh]),
        decode=decode,
    )
    query, key, value = (
        part.reshape(tokens, -1, 128)
        for part in mixed.split([layer.key_dim, layer.key_dim, layer.value_dim], dim=-1)
    )
    gates = operations.delta_rule_gates(
        layer.in_proj_a(x), layer.in_proj_b(x), layer.A_log, layer.dt_bias
    )
    inputs = (operations.l2_norm(query), operations.l2_norm(key), value, *gates)
    common = {"lengths_R": lengths, "scale": 128**-0.5}
    if decode:
        out = operations.recurrent_gated_delta_rule(*inputs, state, state_indices=line, **common)
    else:
        initial = torch.zeros_like(state[1:2]) if fresh else state[1:2]
        out, state[1:2] = operations.chunk_gated_delta_rule(*inputs, initial, **common)
    gate = layer.in_proj_z(x).view(tokens, -1, 128)
    normed = operations.gated_rms_norm(
        out, gate, layer.norm.weight, epsilon=EPSILON, activation="silu"
    )
    return layer.out_proj(normed.flatten(1))


@torch.no_grad()
def test_delta_net_layer_equals_transformers(model, operations):
    layer, x = model.layers[0].linear_attn, hidden_states()
    expected = layer(x[None])[0]
    conv_state = torch.full((3, 3, layer.conv_dim), torch.nan)
    state = torch.full((3, layer.num_v_heads, 128, 128), torch.nan)
    outputs = [
        delta_net_chunk(operations, layer, x[first:last], conv_state, state, fresh=first == 0)
        for first, last in chunk_bounds()
    ]
    torch.testing.assert_close(torch.cat(outputs), expected, rtol=1e-4, atol=2e-5)
    assert conv_state[[0, 2]].isnan().all()
    assert state[[0, 2]].isnan().all()


def attention_chunk(operations, layer, x, first, table, caches, blocks):
    tokens, last = x.shape[0], first + x.shape[0]
    positions = torch.arange(first, last)
    query, gate = layer.q_proj(x).view(tokens, -1, 2 * HEAD).chunk(2, dim=-1)
    key = layer.k_proj(x).view(tokens, -1, HEAD)
    value = layer.v_proj(x).view(tokens, -1, HEAD)
    query = operations.gemma_rms_norm(query, layer.q_norm.weight, epsilon=EPSILON)
    key = operations.gemma_rms_norm(key, layer.k_norm.weight, epsilon=EPSILON)
    query, key = operations.rotary_embedding(
        positions.expand(3, -1),
        query.flatten(1),
        key.flatten(1),
        table,
        head_size=HEAD,
        rotary_dim=64,
        neox=True,
        mrope_section=SECTION,
        mrope_interleaved=True,
    )
    slots = blocks[positions // 128] * 128 + positions % 128
    operations.write_kv_cache(key.view_as(value), value, *caches, slots.to(torch.int32))
    out = operations.paged_attention(
        query.view(tokens, -1, HEAD),
        *caches,
        block_table_RM=blocks[None].to(torch.int32),
        query_lengths_cumulative=[tokens],
        kv_lengths=[last],
        block_size=128,
        num_kv_heads=value.shape[1],
        scale=HEAD**-0.5,
        mask=causal_mask(x.device),
    )
    return layer.o_proj((out * gate.sigmoid()).flatten(1))


@torch.no_grad()
def test_attention_layer_equals_transformers(model, operations):
    layer, x = model.layers[3].self_attn, hidden_states()
    positions = torch.arange(len(x))
    cosine_sine = model.rotary_emb(x[None], positions.expand(3, 1, -1))
    mask = torch.full((len(x), len(x)), -torch.inf).triu(1)
    expected = layer(x[None], cosine_sine, mask[None, None])[0][0]
    frequency = 1e7 ** (-torch.arange(0, 64, 2).float() / 64)
    angle = positions[:, None] * frequency
    table = torch.cat((angle.cos(), angle.sin()), dim=-1)
    caches = [torch.full((4, 128, 2, HEAD), torch.nan) for _ in range(2)]
    blocks = torch.tensor([3, 1])
    outputs = [
        attention_chunk(operations, layer, x[first:last], first, table, caches, blocks)
        for first, last in chunk_bounds()
    ]
    torch.testing.assert_close(torch.cat(outputs), expected, rtol=1e-4, atol=2e-5)


@torch.no_grad()
def test_mlp_and_norms_equal_transformers(model, operations):
    layer, x, residual = model.layers[1], hidden_states(), hidden_states()
    normed, total = operations.add_gemma_rms_norm(
        x, residual, layer.post_attention_layernorm.weight, epsilon=EPSILON
    )
    joined = torch.cat((layer.mlp.gate_proj(normed), layer.mlp.up_proj(normed)), dim=-1)
    ours = layer.mlp.down_proj(operations.swiglu(joined))
    expected = layer.mlp(layer.post_attention_layernorm(x + residual))
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(total, x + residual)
