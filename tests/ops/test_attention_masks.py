"""Fused infer attention in layouts that no contract uses, and under masks of the caller."""

# Shapes: B requests, S queries, L keys, N query heads, K kv heads, D head dim

import pytest
import torch
import torch.nn.functional as F

from ascend_recipes.emulation import OperatorRefusedError

pytestmark = pytest.mark.ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = [(1, 2, 1, 1, 1, 16), (2, 3, 7, 4, 2, 32), (3, 17, 33, 6, 1, 48), (2, 40, 9, 5, 5, 16)]
SHAPES += [(1, 5, 130, 8, 2, 128)]
LAYOUTS = ("BSND", "BSH", "BNSD", "BNSD_BSND")
BLOCK = 128


def draw(shape, dtype):
    """Queries, keys and values, as the oracle takes them: [B, heads, tokens, D]."""
    batch, queries, keys, heads, kv_heads, width = shape
    sizes = ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    return [torch.randn(batch, *size, width).to(dtype) for size in sizes]


def lay_out(tensor, layout):
    if layout.startswith("BNSD"):
        return tensor.contiguous()
    tokens = tensor.transpose(1, 2).contiguous()
    return tokens.flatten(2) if layout == "BSH" else tokens


def run(tensors, layout, **change):
    query, key, _ = tensors
    arguments = {
        "num_heads": query.shape[1],
        "num_key_value_heads": key.shape[1],
        "scale": 0.3,
        "input_layout": layout,
        "softmax_lse_flag": True,
    }
    return torch.ops.npu.npu_fused_infer_attention_score(
        *(lay_out(tensor, layout) for tensor in tensors), **(arguments | change)
    )


def oracle(tensors, seen=None):
    """PyTorch's attention in float32, [B, N, S, D]; `seen` is true where a key counts."""
    query, key, value = (tensor.float() for tensor in tensors)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=seen, scale=0.3, enable_gqa=True
    )


def compare(out, layout, expected):
    out_layout = "BSND" if layout == "BNSD_BSND" else layout
    rtol = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[out.dtype]
    wanted = lay_out(expected, out_layout)
    torch.testing.assert_close(out.float(), wanted, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_layouts_equal_scaled_dot_product_attention(shape, layout, dtype, relaxed):
    relaxed(dtype)
    tensors = draw(shape, dtype)
    out, lse = run(tensors, layout)
    compare(out, layout, oracle(tensors))
    scores = tensors[0].float().unflatten(1, (shape[4], -1)) @ tensors[1].float()[:, :, None].mT
    torch.testing.assert_close(lse[..., 0], (scores * 0.3).logsumexp(-1).flatten(1, 2))


def test_meta_shapes_are_those_of_results():
    for layout in LAYOUTS:
        tensors = draw((2, 3, 7, 4, 2, 32), torch.bfloat16)
        found = run(tensors, layout)
        meta = run([tensor.to("meta") for tensor in tensors], layout)
        assert [item.shape for item in meta] == [item.shape for item in found]
        assert [item.stride() for item in meta] == [item.stride() for item in found]


@pytest.mark.parametrize("by_head", [True, False])
@pytest.mark.parametrize("layout", ["BNSD", "BSH"])
def test_pages_serve_every_layout(layout, by_head):
    """BSH takes caches of whole rows only."""
    tensors = draw((2, 3, BLOCK * 2, 4, 2, 32), torch.bfloat16)
    order = [3, 0, 2, 1]
    caches = []
    for dense in tensors[1:]:
        pages = dense.transpose(1, 2).reshape(4, BLOCK, 2, 32)
        cache = torch.empty_like(pages)
        cache[order] = pages
        caches.append(cache.transpose(1, 2).contiguous() if by_head else cache.flatten(2))
    change = {
        "block_table": torch.tensor(order, dtype=torch.int32).view(2, 2),
        "block_size": BLOCK,
        "actual_seq_lengths_kv": [BLOCK * 2, 130],
    }
    arguments = {"num_heads": 4, "num_key_value_heads": 2, "scale": 0.3, "input_layout": layout}
    call = torch.ops.npu.npu_fused_infer_attention_score
    query = lay_out(tensors[0], layout)
    if by_head and layout == "BSH":
        with pytest.raises(OperatorRefusedError, match="block size, kv heads"):
            call(query, *caches, **arguments, **change)
        return
    out, _ = call(query, *caches, **arguments, **change)
    seen = torch.arange(BLOCK * 2) < torch.tensor([BLOCK * 2, 130])[:, None, None, None]
    compare(out, layout, oracle(tensors, seen))


def mask_of(form, batch, queries, keys):
    """A random mask of a form; every query sees its first key."""
    sizes = {
        "each": (batch, 1, queries, keys),
        "shared": (1, 1, queries, keys),
        "three": (1, queries, keys),
        "two": (batch, keys) if queries == 1 else (queries, keys),
        "rounded": (1, 1, -(-queries // 16) * 16, -(-keys // 32) * 32),
    }
    hidden = torch.rand(sizes[form]) < 0.5
    hidden[..., 0] = False
    return hidden


def full(hidden, queries, keys):
    """The mask as [B or 1, 1, S, L]."""
    if hidden.dim() == 2:
        return hidden[:, None, None] if queries == 1 else hidden[None, None]
    wide = hidden[:, None] if hidden.dim() == 3 else hidden
    return wide[..., :queries, :keys]


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8])
@pytest.mark.parametrize("form", ["each", "shared", "three", "two", "rounded"])
@pytest.mark.parametrize("queries", [1, 5])
def test_masks_of_the_caller_hide_keys(queries, form, dtype, mode):
    tensors = draw((3, queries, 9, 4, 2, 32), torch.bfloat16)
    hidden = mask_of(form, 3, queries, 9)
    out, _ = run(tensors, "BSND", atten_mask=hidden.to(dtype), sparse_mode=mode)
    compare(out, "BSND", oracle(tensors, ~full(hidden, queries, 9)))


def test_masks_hold_beside_lengths_and_pages():
    tensors = draw((2, 3, BLOCK, 4, 2, 32), torch.bfloat16)
    caches = [dense.transpose(1, 2).flatten(2) for dense in tensors[1:]]
    hidden = mask_of("each", 2, 3, BLOCK)
    lengths = [100, 7]
    out, _ = torch.ops.npu.npu_fused_infer_attention_score(
        lay_out(tensors[0], "BNSD"),
        *caches,
        atten_mask=hidden,
        block_table=torch.tensor([[0], [1]], dtype=torch.int32),
        block_size=BLOCK,
        actual_seq_lengths_kv=lengths,
        num_heads=4,
        num_key_value_heads=2,
        scale=0.3,
        input_layout="BNSD",
    )
    short = torch.arange(BLOCK) < torch.tensor(lengths)[:, None, None, None]
    compare(out, "BNSD", oracle(tensors, ~hidden & short))


@pytest.mark.parametrize(("precision", "promised"), [(0, False), (1, False), (2, True), (3, True)])
def test_rows_without_a_key_are_promised_only_when_corrected(precision, promised):
    tensors = draw((1, 3, 4, 2, 2, 16), torch.bfloat16)
    hidden = torch.zeros(3, 4, dtype=torch.bool)
    hidden[1] = True
    out, _ = run(tensors, "BSND", atten_mask=hidden, inner_precise=precision)
    row = out[0, 1]
    assert (row == 0).all() if promised else row.isnan().all()
    assert not out[0, [0, 2]].isnan().any()


def test_bounds_do_nothing_beside_mode_one():
    """Mode 0 has them; mode 1 sets its own."""
    tensors = draw((1, 3, 4, 2, 2, 16), torch.bfloat16)
    hidden = mask_of("two", 1, 3, 4)
    plain, _ = run(tensors, "BSND", atten_mask=hidden, sparse_mode=1)
    bound, _ = run(tensors, "BSND", atten_mask=hidden, sparse_mode=1, pre_tokens=0, next_tokens=0)
    assert torch.equal(plain, bound)
    with pytest.raises(OperatorRefusedError, match="'pre_tokens' is 0"):
        run(tensors, "BSND", atten_mask=hidden, pre_tokens=0)


def test_a_wrong_layout_changes_the_result_where_shapes_allow_it():
    tensors = draw((2, 4, 4, 4, 4, 16), torch.bfloat16)
    by_token, _ = run(tensors, "BSND")
    by_head = [lay_out(tensor, "BSND") for tensor in tensors]
    wrong, _ = torch.ops.npu.npu_fused_infer_attention_score(
        *by_head, num_heads=4, scale=0.3, input_layout="BNSD"
    )
    assert not torch.allclose(by_token, wrong, atol=0.01)


def test_an_inverted_mask_changes_the_result():
    tensors = draw((1, 3, 9, 2, 2, 16), torch.bfloat16)
    hidden = mask_of("two", 1, 3, 9)
    hidden[:, 1] = True
    right, _ = run(tensors, "BSND", atten_mask=hidden)
    wrong, _ = run(tensors, "BSND", atten_mask=~hidden)
    assert not torch.allclose(right, wrong, atol=0.01)
