"""SwiGLU, rotary embeddings and sampling."""

import pytest
import torch
import torch.nn.functional as F

from ascend_recipes.ops import activation, rotary, sampling
from ascend_recipes.ops.reference import rotary as reference_rotary
from ascend_recipes.ops.reference import sampling as reference_sampling

pytestmark = pytest.mark.ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SECTION = [11, 11, 10]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (7, 30), (3, 5, 64), (129, 34), (2, 1, 3, 512)])
def test_swiglu_equals_reference_and_pytorch(shape, dtype, reference, agree):
    x = torch.randn(shape).to(dtype)
    expected = reference("swiglu")(x)
    first, second = x.double().chunk(2, dim=-1)
    agree("swiglu", expected, (F.silu(first) * second).to(dtype))
    agree("swiglu", activation.swiglu_npu(x), expected)


def test_swiglu_halves_are_not_interchangeable():
    x = torch.randn(4, 32)
    swapped = torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1)
    assert not torch.allclose(activation.swiglu_npu(x), activation.swiglu_npu(swapped), atol=0.1)


def table(rotary_dim, rows, dtype, base=10000.0):
    frequency = base ** (-torch.arange(0, rotary_dim, 2).float() / rotary_dim)
    angle = torch.arange(rows).float()[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), dim=-1).to(dtype)


def call(function, positions, query, key, cache, head, rotary_dim, neox=True, **mrope):
    return function(
        positions, query, key, cache, head_size=head, rotary_dim=rotary_dim, neox=neox, **mrope
    )


CASES = [
    pytest.param(1, 1, 1, 64, 64, id="one-token"),
    pytest.param(7, 12, 2, 256, 64, id="partial"),
    pytest.param(129, 3, 1, 128, 128, id="whole-head"),
    pytest.param(5, 6, 6, 96, 32, id="odd-head"),
    pytest.param(33, 4, 2, 64, 32, id="half"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "head", "rotary_dim"), CASES)
def test_rotary_bindings_equal_reference(
    tokens, heads, kv_heads, head, rotary_dim, neox, dtype, agree
):
    positions = torch.randint(0, 500, (tokens,))
    query = torch.randn(tokens, heads * head).to(dtype)
    key = torch.randn(tokens, kv_heads * head).to(dtype)
    cache = table(rotary_dim, 500, dtype)
    arguments = (positions, query, key, cache, head, rotary_dim, neox)
    expected = call(reference_rotary.rotary_embedding, *arguments)
    for binding in (rotary.rotary_embedding_rotary_mul, rotary.rotary_embedding_mrope):
        for actual, wanted in zip(call(binding, *arguments), expected, strict=True):
            agree("rotary_embedding", actual, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(
    ("tokens", "section"),
    [(1, SECTION), (3, [20, 8, 4]), (17, SECTION), (64, [24, 4, 4]), (130, [16, 8, 8])],
)
def test_mrope_binding_equals_reference(tokens, section, interleaved, dtype, agree):
    positions = torch.randint(0, 500, (3, tokens))
    query, key = torch.randn(tokens, 6 * 256).to(dtype), torch.randn(tokens, 256).to(dtype)
    cache = table(64, 500, dtype)
    arguments = (positions, query, key, cache, 256, 64)
    mrope = {"mrope_section": section, "mrope_interleaved": interleaved}
    expected = call(reference_rotary.rotary_embedding, *arguments, **mrope)
    bindings = [rotary.rotary_embedding_rotary_mul]
    if not interleaved:
        bindings.append(rotary.rotary_embedding_mrope)
    for binding in bindings:
        for actual, wanted in zip(call(binding, *arguments, **mrope), expected, strict=True):
            agree("rotary_embedding", actual, wanted)


@pytest.mark.parametrize("rows", [1, 3])
def test_rotary_reference_equals_transformers(rows, transformers_qwen3_5):
    from transformers import Qwen3_5TextConfig

    parameters = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    parameters |= {"mrope_section": SECTION, "mrope_interleaved": True}
    config = Qwen3_5TextConfig(head_dim=256, rope_parameters=parameters)
    positions = torch.randint(0, 900, (rows, 21))
    module = transformers_qwen3_5.Qwen3_5TextRotaryEmbedding(config)
    query, key = torch.randn(21, 4, 256), torch.randn(21, 2, 256)
    cosine, sine = module(query, positions[:, None])
    expected = transformers_qwen3_5.apply_rotary_pos_emb(
        query.transpose(0, 1)[None], key.transpose(0, 1)[None], cosine, sine
    )
    cache = table(64, 900, torch.float32, base=1e7)
    mrope = {"mrope_section": SECTION, "mrope_interleaved": True} if rows == 3 else {}
    actual = call(
        reference_rotary.rotary_embedding,
        positions if rows == 3 else positions[0],
        query,
        key,
        cache,
        256,
        64,
        **mrope,
    )
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs[0].transpose(0, 1), rtol=1e-4, atol=1e-4)


def test_equal_position_rows_are_plain_rotation():
    positions = torch.randint(0, 100, (9,))
    query, key = torch.randn(9, 256), torch.randn(9, 256)
    cache = table(64, 100, torch.float32)
    plain = call(rotary.rotary_embedding_rotary_mul, positions, query, key, cache, 256, 64)
    rows = call(
        rotary.rotary_embedding_rotary_mul,
        positions.expand(3, -1),
        query,
        key,
        cache,
        256,
        64,
        mrope_section=SECTION,
        mrope_interleaved=True,
    )
    torch.testing.assert_close(plain, rows)


def test_swapped_sines_and_styles_change_the_result():
    positions = torch.arange(1, 9)
    query, key = torch.randn(8, 64), torch.randn(8, 64)
    cache = table(64, 100, torch.float32)
    binding = rotary.rotary_embedding_rotary_mul
    right = call(binding, positions, query, key, cache, 64, 64)[0]
    swapped = call(binding, positions, query, key, cache.roll(32, dims=1), 64, 64)[0]
    interleaved = call(binding, positions, query, key, cache, 64, 64, neox=False)[0]
    for wrong in (swapped, interleaved):
        assert not torch.allclose(right, wrong, atol=0.1)


def test_interleaved_sections_are_not_for_npu_mrope():
    query = torch.randn(4, 256)
    with pytest.raises(ValueError, match="interleaved"):
        call(
            rotary.rotary_embedding_mrope,
            torch.zeros(3, 4, dtype=torch.long),
            query,
            query,
            table(64, 10, torch.float32),
            256,
            64,
            mrope_section=SECTION,
            mrope_interleaved=True,
        )


LIMITS = [
    pytest.param(None, [0.9, 0.1, 1.0, 0.5], id="p"),
    pytest.param([1, 5, 97, 20], None, id="k"),
    pytest.param([1, 5, 97, 20], [0.9, 0.1, 1.0, 0.0], id="k-p"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("k", "p"), LIMITS)
@pytest.mark.parametrize("vocabulary", [97, 101, 128, 255, 1000])
def test_top_k_top_p_equals_reference(k, p, vocabulary, dtype, agree):
    logits = (torch.randn(4, vocabulary) * 3).to(dtype)
    top_k = None if k is None else torch.tensor(k, dtype=torch.int32)
    # Quarter steps are exact in every dtype, so that rounding p cannot move the boundary.
    top_p = None if p is None else torch.tensor(p).to(dtype)
    wide = None if top_p is None else top_p.float()
    expected = reference_sampling.top_k_top_p(logits, k=top_k, p=wide)
    actual = sampling.top_k_top_p_npu(logits, k=top_k, p=top_p)
    assert torch.equal(actual.isinf(), expected.isinf())
    agree("top_k_top_p", actual.nan_to_num(neginf=0), expected.nan_to_num(neginf=0))


def test_top_k_reference_equals_topk():
    logits = torch.randn(3, 50)
    kept = reference_sampling.top_k_top_p(
        logits, k=torch.tensor([1, 10, 50], dtype=torch.int32), p=None
    )
    assert (~kept.isinf()).sum(dim=1).tolist() == [1, 10, 50]
    assert torch.equal(kept.argmax(dim=1), logits.argmax(dim=1))


def test_top_p_reference_keeps_the_smallest_sufficient_set():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for mass, kept in ((0.4, 1), (0.6, 2), (0.9, 3), (1.0, 4)):
        result = reference_sampling.top_k_top_p(logits, k=None, p=torch.tensor([mass]))
        assert int((~result.isinf()).sum()) == kept


def test_top_k_top_p_without_limits_returns_the_logits():
    logits = torch.randn(2, 9)
    assert sampling.top_k_top_p_npu(logits, k=None, p=None) is logits
