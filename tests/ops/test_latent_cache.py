"""Writes into the latent and indexer caches, packed rows, 8-bit quantization."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.emulation import OperatorRefusedError, install
from ascend_recipes.emulation.packed_rows import pack_rows, unpack_rows
from ascend_recipes.ops import latent_cache as bindings
from ascend_recipes.ops.reference import latent_cache as reference

pytestmark = pytest.mark.ops

CUSTOM = torch.ops._C_ascend
ROW = 640
SHAPES = [(1, 3, 16), (5, 4, 32), (17, 2, 64), (33, 7, 8), (48, 1, 128)]
"""Tokens, blocks, rows of a block."""
E4M3 = torch.float8_e4m3fn


def strided(blocks, rows, width, dtype, *, apart=0):
    """Pages full of junk, `apart` elements of other data between them."""
    junk = torch.randint(-100, 100, (blocks, rows * width + apart)).to(dtype)
    return junk.as_strided((blocks, rows, width), (junk.stride(0), width, 1))


def distinct(tokens, blocks, rows):
    """Flat slots, about a quarter of them -1."""
    slots = torch.randperm(blocks * rows)[:tokens]
    slots = torch.nn.functional.pad(slots, (0, tokens - slots.numel()), value=-1)
    return torch.where(torch.rand(tokens) < 0.25, -1, slots)


def forms(slots, rows):
    pairs = torch.stack((slots // rows, slots % rows), dim=-1)
    return [slots.to(torch.int32), slots, pairs.to(torch.int32), pairs]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("tokens", "blocks", "rows"), SHAPES)
def test_plain_rows_reach_their_slots_in_every_form(tokens, blocks, rows, dtype):
    values = torch.randn(tokens, 40).to(dtype)
    slots = distinct(tokens, blocks, rows)
    before = strided(blocks, rows, 40, dtype, apart=24)
    expected = before.clone()
    reference.write_latent_rows(values, expected, slots)
    for form in forms(slots, rows):
        cache = strided(blocks, rows, 40, dtype, apart=24)
        cache.copy_(before)
        bindings.write_latent_rows_scatter(values, cache, form)
        assert torch.equal(cache, expected)
    assert torch.equal(expected.flatten(0, 1)[slots[slots >= 0]], values[slots >= 0])


@pytest.mark.parametrize("dtype", [torch.uint8, E4M3])
@pytest.mark.parametrize(("tokens", "blocks", "rows"), SHAPES)
def test_packed_rows_reach_their_slots_in_every_form(tokens, blocks, rows, dtype):
    values = torch.randn(tokens, 512).bfloat16() * 10
    slots = distinct(tokens, blocks, rows)
    for apart in (0, 3 * ROW):
        before = strided(blocks, rows, ROW, torch.uint8, apart=apart)
        expected = before.clone()
        reference.write_latent_rows(values, expected, slots)
        for form in forms(slots, rows):
            cache = (
                before.clone()
                if not apart
                else strided(blocks, rows, ROW, torch.uint8, apart=apart)
            )
            cache.copy_(before)
            bindings.write_latent_rows_epilog(values, cache.view(dtype), form)
            assert torch.equal(cache, expected)


def test_pages_between_rows_do_not_fit_the_packing_operator():
    cache = strided(3, 4, ROW, torch.uint8, apart=128)
    with pytest.raises(ValueError, match=r"2688 bytes apart.*multiple of the row, 640"):
        bindings.write_latent_rows_epilog(torch.zeros(1, 512).bfloat16(), cache, torch.tensor([0]))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 9999),
    exponent=st.integers(-12, 12),
    head=st.sampled_from([512, 128, 192]),
)
def test_packing_round_trip(seed, exponent, head):
    torch.manual_seed(seed)
    x = torch.randn(3, head).bfloat16() * 2.0**exponent
    rows = pack_rows(x)
    back = unpack_rows(rows, head)
    assert torch.equal(back[:, -64:], x[:, -64:].float())
    groups, found = (part[:, :-64].float().unflatten(-1, (-1, 64)) for part in (x, back))
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    # fp8_e4m3 keeps 3 mantissa bits, and small elements are steps of 2^-9 of a scale that is at
    # most a 224th of the largest.
    allowed = torch.maximum(groups.abs() * 2**-4, largest * 2**-10 / 224 * 2)
    assert ((groups - found).abs() <= allowed).all()
    expected = torch.stack([reference.unpacked_row(row, head) for row in rows])
    assert torch.equal(back, expected)


def test_byte_order_of_a_packed_row():
    """64 rope numbers as bfloat16, 448 values, 7 exponents, zeros up to 640."""
    x = torch.zeros(1, 512)
    x[0, -64:] = 1.5
    x[0, :64] = 448.0
    x[0, 64:128] = 3.0
    (row,) = pack_rows(x.bfloat16())
    assert row.shape == (ROW,)
    assert torch.equal(row[:128].view(torch.bfloat16).float(), x[0, -64:])
    values = row[128:576].view(E4M3).float()
    # Exactly 448 takes the next power of two: the operator looks at the exponent only.
    assert values[:64].tolist() == [224.0] * 64
    assert int(row[576]) == 127 + 1
    assert int(row[577]) == 127 + math.floor(math.log2(3 / 448)) + 1
    assert (row[583:] == 0).all()


def test_groups_of_zeros_have_a_scale():
    """The least scale is that of 1e-4: zeros and smaller numbers do not make it vanish."""
    x = torch.zeros(1, 512).bfloat16()
    x[0, 64] = 1e-6
    (row,) = pack_rows(x)
    least = 127 + math.floor(math.log2(1e-4 / 448)) + 1
    assert row[576:583].tolist() == [least] * 7
    cache = torch.zeros(1, 1, ROW, dtype=torch.uint8)
    reference.write_latent_rows(x, cache, torch.tensor([0]))
    assert torch.equal(cache[0, 0], row)
    assert (unpack_rows(row, 512) - x[0].float()).abs().max() < 1e-7


def test_reading_a_row_in_the_wrong_order_changes_it():
    x = torch.randn(2, 512).bfloat16()
    rows = pack_rows(x)
    assert torch.allclose(unpack_rows(rows, 512), x.float(), atol=0.2)
    assert not torch.allclose(unpack_rows(rows.roll(128, dims=1), 512), x.float(), atol=0.2)


QUERIES = [(1, 1, 8), (3, 64, 128), (7, 5, 96), (17, 2, 64), (5, 7, 40)]


@pytest.mark.parametrize("dtype", [torch.int8, E4M3, torch.float32])
@pytest.mark.parametrize(("tokens", "heads", "dim"), QUERIES)
@pytest.mark.parametrize("given", [torch.bfloat16, torch.float16])
def test_query_quantization_agrees(tokens, heads, dim, dtype, given):
    query = torch.randn(tokens, heads, dim).to(given)
    query[0, 0] = 0.0
    found = bindings.quantize_indexer_query_npu(query, cache_dtype=dtype)
    expected = reference.quantize_indexer_query(query, cache_dtype=dtype)
    scales = {torch.int8: torch.float16, E4M3: torch.float32, torch.float32: torch.float32}
    assert (found[0].dtype, found[1].dtype) == (dtype, scales[dtype])
    assert torch.equal(found[0].float(), expected[0].float())
    torch.testing.assert_close(found[1], expected[1], rtol=1e-6, atol=0)
    restored = found[0].float() * found[1].float()[..., None]
    step = query.float().abs().amax(-1, keepdim=True) / {torch.int8: 250, E4M3: 27}.get(dtype, 1e9)
    assert ((restored - query.float()).abs() <= step * 1.01 + 1e-3 * query.float().abs()).all()


@pytest.mark.parametrize("dtype", [torch.int8, E4M3, torch.float32])
@pytest.mark.parametrize(("tokens", "blocks", "rows"), SHAPES)
def test_indexer_keys_reach_their_slots(tokens, blocks, rows, dtype):
    keys = torch.randn(tokens, 128).bfloat16()
    slots = distinct(tokens, blocks, rows)
    width = 128 * dtype.itemsize + bindings.SCALE_DTYPES[dtype].itemsize
    before = torch.randint(0, 100, (blocks, rows * width + 64), dtype=torch.uint8)
    write = {torch.int8: "scatter", E4M3: "epilog", torch.float32: "epilog"}[dtype]
    results = []
    for form in [None, *forms(slots, rows)]:
        memory = before.clone()
        page = memory.as_strided((blocks, rows, width), (memory.stride(0), width, 1))
        views = bindings.indexer_views(page, dtype)
        if form is None:
            reference.write_indexer_keys(keys, *views, slots)
        else:
            function = getattr(bindings, f"write_indexer_keys_{write}")
            function(keys, *views, form)
        results.append([view.clone() for view in views])
        assert torch.equal(memory[:, rows * width :], before[:, rows * width :])
    wanted = results[0][0].float()
    for keys_found, scales in results[1:]:
        # A scale may differ in its last bit, and then a few values round to their neighbour.
        torch.testing.assert_close(keys_found.float(), wanted, rtol=0.13, atol=0, equal_nan=True)
        assert ((keys_found.float() != wanted) & ~wanted.isnan()).float().mean() < 0.01
        torch.testing.assert_close(scales, results[0][1], rtol=1e-6, atol=0, equal_nan=True)


def test_float_keys_on_the_other_generations_binding():
    keys, slots = torch.randn(3, 16), torch.tensor([4, -1, 0])
    page = torch.zeros(2, 4, 17 * 4, dtype=torch.uint8)
    views = bindings.indexer_views(page, torch.float32)
    bindings.write_indexer_keys_scatter(keys, *views, slots)
    assert torch.equal(views[0][1, 0], keys[0])
    assert (views[1][1, 0].item(), views[1][1, 1].item()) == (1.0, 0.0)


def test_indexer_views_share_the_page():
    """128 int8 keys first, then their float16 scales: 130 bytes a row on A2 and A3."""
    page = torch.zeros(2, 32, 130, dtype=torch.uint8)
    keys, scales = bindings.indexer_views(page, torch.int8)
    assert (keys.shape, scales.shape) == ((2, 32, 128), (2, 32, 1))
    keys[1, 31], scales[1, 0] = 7, 1.0
    assert (page[1].flatten()[31 * 128 : 32 * 128] == 7).all()
    assert page[1].flatten()[4096:4098].view(torch.float16).item() == 1.0


@pytest.mark.parametrize("size", [1, 2, 16, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hadamard_rotation_is_sylvesters_and_orthogonal(size, dtype):
    x = torch.randn(5, 3, size).to(dtype)
    found = reference.hadamard_rotation(x)
    # Sylvester's order in closed form: the parity of the bits that row and column share.
    signs = [
        [(-1.0) ** (row & column).bit_count() for column in range(size)] for row in range(size)
    ]
    matrix = torch.tensor(signs)
    expected = x.float() @ matrix * size**-0.5
    allowed = 1e-5 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=allowed)
    torch.testing.assert_close(
        reference.hadamard_rotation(found).float(), x.float(), rtol=0, atol=2 * allowed
    )


VAR, INDEX, UPDATE = torch.zeros(3, 4, 8), torch.tensor([[0, 1], [2, 3]]), torch.zeros(2, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((VAR.double(), INDEX, UPDATE.double()), r"var.*float64"),
        ((VAR, INDEX.float(), UPDATE), r"indices.*float32"),
        ((VAR, INDEX, UPDATE.half()), r"update"),
        ((VAR, INDEX[0], UPDATE), r"at least 2 dimensions"),
        ((VAR, INDEX.repeat(1, 2), UPDATE), r"1 to 3"),
        ((VAR, INDEX, UPDATE[:, :4]), r"update"),
        ((VAR, INDEX[:1], UPDATE), r"update"),
        ((VAR, torch.tensor([[0, 1], [3, 0]]), UPDATE), r"dimension 0"),
        ((VAR, torch.tensor([[0, 1], [1, 4]]), UPDATE), r"dimension 1"),
        ((VAR, torch.tensor([[0, 1], [-2, 0]]), UPDATE), r"dimension 0"),
        ((VAR, torch.tensor([[0, 1], [0, 1]]), UPDATE), r"names a row twice"),
    ],
)
def test_scatter_limits(arguments, message):
    with pytest.raises(OperatorRefusedError, match=message):
        CUSTOM.npu_scatter_nd_update_v2(*arguments)


def test_scatter_takes_any_number_of_index_columns():
    var = torch.zeros(3, 4, 8)
    CUSTOM.npu_scatter_nd_update_v2(var, torch.tensor([[2]]), torch.ones(1, 4, 8))
    assert var.sum(dim=(1, 2)).tolist() == [0, 0, 32]


X, CACHE = torch.zeros(2, 512).bfloat16(), torch.zeros(8, 1, ROW, dtype=torch.uint8).view(E4M3)
SLOTS = torch.tensor([1, 5])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X[None]}, r"x"),
        ({"x": X[:0], "slot_mapping": SLOTS[:0]}, r"empty"),
        ({"x": X.half()}, r"x.*float16"),
        ({"x": X[:, :256]}, r"512"),
        ({"kv_compress_cache": CACHE.view(torch.uint8)}, r"kv_compress_cache.*uint8"),
        ({"kv_compress_cache": CACHE.view(torch.float8_e5m2)}, r"not emulated"),
        ({"kv_compress_cache": CACHE[..., :512]}, r"kv_compress_cache"),
        ({"kv_compress_cache": CACHE[:, 0]}, r"kv_compress_cache"),
        ({"kv_compress_cache": CACHE.as_strided((8, 1, ROW), (128, ROW, 1))}, r"640 bytes apart"),
        ({"quant_group_size": 128}, r"quant_group_size"),
        ({"quant_mode": 1}, r"quant_mode"),
        ({"round_scale_flag": False}, r"round_scale_flag"),
        ({"layout": 2}, r"layout"),
        ({"slot_mapping": SLOTS.short()}, r"slot_mapping.*int16"),
        ({"slot_mapping": SLOTS[:1]}, r"slot_mapping"),
        ({"slot_mapping": SLOTS[:, None]}, r"slot_mapping"),
        ({"slot_mapping": torch.tensor([1, 8])}, r"rows of the cache"),
        ({"slot_mapping": torch.tensor([1, -2])}, r"rows of the cache"),
        ({"slot_mapping": torch.tensor([1, 1])}, r"twice"),
    ],
)
def test_packing_limits(change, message):
    given = {
        "kv_compress_cache": CACHE,
        "x": X,
        "slot_mapping": SLOTS,
        "quant_group_size": 64,
        "quant_mode": 2,
        "round_scale_flag": True,
        "layout": 1,
    }
    with pytest.raises(OperatorRefusedError, match=message):
        CUSTOM.kv_compress_epilog(**{**given, **change})


KEYS, PAGES = torch.zeros(2, 128).bfloat16(), torch.zeros(3, 4, 1, 132, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indexer_compress_cache": PAGES.view(E4M3)}, r"float8"),
        ({"indexer_compress_cache": PAGES[..., :130]}, r"head dim \+ 4"),
        ({"indexer_compress_cache": PAGES[:, :, 0]}, r"head dim \+ 4"),
        ({"indexer_compress_cache": PAGES.transpose(0, 1)}, r"contiguous pages"),
        ({"x": KEYS.float()}, r"x.*float32"),
        ({"x": KEYS[:, :64]}, r"128"),
        ({"layout": 1}, r"layout"),
        ({"slot_mapping": torch.tensor([1, 2])}, r"slot_mapping.*int64"),
        ({"slot_mapping": torch.tensor([1], dtype=torch.int32)}, r"slot_mapping"),
        ({"slot_mapping": torch.tensor([1, 12], dtype=torch.int32)}, r"rows of the cache"),
        ({"slot_mapping": torch.tensor([1, 1], dtype=torch.int32)}, r"twice"),
    ],
)
def test_indexer_write_limits(change, message):
    given = {
        "indexer_compress_cache": PAGES,
        "x": KEYS,
        "slot_mapping": torch.tensor([1, 5], dtype=torch.int32),
        "layout": 2,
    }
    with pytest.raises(OperatorRefusedError, match=message):
        CUSTOM.indexer_compress_epilog_v2(**{**given, **change})


def test_small_heads_pack_too():
    install({"shape.small"})
    values, cache = torch.randn(3, 128).bfloat16(), torch.zeros(2, 4, 256, dtype=torch.uint8)
    bindings.write_latent_rows_epilog(values, cache, torch.tensor([0, 7, -1]))
    expected = torch.zeros_like(cache)
    reference.write_latent_rows(values, expected, torch.tensor([0, 7, -1]))
    assert torch.equal(cache, expected)
