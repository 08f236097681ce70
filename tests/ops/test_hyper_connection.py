"""Manifold-constrained hyper-connections against transformers, and the bindings against those."""

import pytest
import torch

from ascend_recipes.emulation import OperatorRefusedError, install
from ascend_recipes.ops import hyper_connection
from ascend_recipes.ops.reference import hyper_connection as reference

pytestmark = pytest.mark.ops

SHAPES = [(1, 8), (3, 40), (5, 24), (17, 64), (129, 48)]
EPSILON = {"norm_epsilon": 1e-6, "epsilon": 1e-6}
SMALL = {"shape.small", "dtype.float32"}
NPU, CUSTOM = torch.ops.npu, torch.ops._C_ascend


def inputs(tokens, hidden, dtype, rows=24):
    return (
        torch.randn(tokens, 4, hidden).to(dtype),
        torch.randn(rows, 4 * hidden) * 0.2,
        torch.rand(3) + 0.5,
        torch.randn(rows),
    )


@pytest.fixture
def module(transformers_deepseek_v4):
    """transformers' module of a kind, holding our parameters."""

    def build(kind, weight, scale, base):
        config = transformers_deepseek_v4.DeepseekV4Config(
            hidden_size=weight.shape[1] // 4, hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6
        )
        built = getattr(transformers_deepseek_v4, f"DeepseekV4{kind}")(config)
        for value, parameter in zip((weight, base, scale), built.parameters(), strict=True):
            parameter.data = value
        return built

    return build


@pytest.mark.parametrize(("tokens", "hidden"), SHAPES)
def test_pre_reference_equals_transformers(module, tokens, hidden):
    streams, weight, scale, base = inputs(tokens, hidden, torch.float32)
    post, comb, collapsed = module("HyperConnection", weight, scale, base)(streams[None])
    y_TH, post_TM, mix_TMM = reference.hyper_connection_pre(streams, weight, scale, base, **EPSILON)
    torch.testing.assert_close(y_TH, collapsed[0])
    torch.testing.assert_close(post_TM, post[0])
    torch.testing.assert_close(mix_TMM, comb[0])
    torch.testing.assert_close(mix_TMM.sum(-2), torch.ones(tokens, 4), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("tokens", "hidden"), SHAPES)
def test_head_reference_equals_transformers(module, tokens, hidden):
    streams, weight, scale, base = inputs(tokens, hidden, torch.float32, rows=4)
    head = module("HyperHead", weight, scale[:1], base)
    found = reference.hyper_connection_head(streams, weight, scale[:1], base, **EPSILON)
    torch.testing.assert_close(found, head(streams[None])[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("tokens", "hidden"), SHAPES)
def test_pre_bindings_agree(agree, tokens, hidden, dtype):
    install(SMALL)
    streams, weight, scale, base = inputs(tokens, hidden, dtype)
    expected = reference.hyper_connection_pre(streams, weight, scale, base, **EPSILON)
    for binding in ("custom", "npu"):
        function = getattr(hyper_connection, f"hyper_connection_pre_{binding}")
        found = function(streams, weight, scale, base, **EPSILON)
        agree("hyper_connection_pre", found[0], expected[0])
        for value, wanted in zip(found[1:], expected[1:], strict=True):
            # The custom operator multiplies bfloat16 streams in HF32: 10 mantissa bits.
            cut = dtype == torch.bfloat16 and binding == "custom"
            torch.testing.assert_close(value, wanted, rtol=0, atol=1e-2 if cut else 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("tokens", "hidden"), SHAPES)
def test_post_bindings_agree(agree, tokens, hidden, dtype):
    install(SMALL)
    y, streams = torch.randn(tokens, hidden).to(dtype), torch.randn(tokens, 4, hidden).to(dtype)
    post, mix = torch.rand(tokens, 4), torch.rand(tokens, 4, 4)
    expected = reference.hyper_connection_post(y, streams, post, mix)
    for binding in ("custom", "npu"):
        function = getattr(hyper_connection, f"hyper_connection_post_{binding}")
        agree("hyper_connection_post", function(y, streams, post, mix), expected)


def test_post_is_the_update_of_transformers_layers():
    """`x·comb` with the source stream as row: transposing the matrix changes the result."""
    streams, y = torch.randn(5, 4, 8), torch.randn(5, 8)
    post, mix = torch.rand(5, 4), torch.rand(5, 4, 4)
    expected = post[..., None] * y[:, None] + mix.transpose(1, 2) @ streams
    found = reference.hyper_connection_post(y, streams, post, mix)
    torch.testing.assert_close(found, expected)
    turned = reference.hyper_connection_post(y, streams, post, mix.mT)
    assert (turned - found).abs().max() > 0.1


def test_hf32_cuts_the_weight_only_for_bfloat16():
    install(SMALL)
    streams, weight, scale, base = inputs(3, 16, torch.bfloat16)
    cut = (weight.view(torch.int32) & -(1 << 13)).view(torch.float32)
    found = hyper_connection.hyper_connection_pre_custom(streams, weight, scale, base, **EPSILON)
    expected = reference.hyper_connection_pre(streams, cut, scale, base, **EPSILON)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-6)


def test_pre_at_the_models_size_without_relaxation(agree):
    streams, weight, scale, base = inputs(2, 4096, torch.bfloat16)
    expected = reference.hyper_connection_pre(streams, weight * 0.05, scale, base, **EPSILON)
    for binding in ("custom", "npu"):
        function = getattr(hyper_connection, f"hyper_connection_pre_{binding}")
        found = function(streams, weight * 0.05, scale, base, **EPSILON)
        agree("hyper_connection_pre", found[0], expected[0])


@pytest.mark.parametrize("binding", ["custom", "npu"])
def test_epsilons_stand_where_they_should(binding):
    """At 1e-6 a misplaced one would hide in the tolerance."""
    install(SMALL)
    given = inputs(6, 16, torch.float32)
    large = {"norm_epsilon": 0.3, "epsilon": 0.2}
    function = getattr(hyper_connection, f"hyper_connection_pre_{binding}")
    expected = reference.hyper_connection_pre(*given, **large)
    for value, wanted in zip(function(*given, **large), expected, strict=True):
        torch.testing.assert_close(value, wanted)


def test_large_epsilons_equal_transformers(module):
    streams, weight, scale, base = inputs(6, 16, torch.float32)
    large = {"norm_epsilon": 1e-6, "epsilon": 0.2}
    theirs = module("HyperConnection", weight, scale, base)
    theirs.hc_eps = 0.2
    post, comb, collapsed = theirs(streams[None])
    found = reference.hyper_connection_pre(streams, weight, scale, base, **large)
    for value, wanted in zip(found, (collapsed, post, comb), strict=True):
        torch.testing.assert_close(value, wanted[0])


def test_fewer_iterations_are_noticed():
    install(SMALL)
    given = inputs(4, 16, torch.float32)
    one, many = (
        hyper_connection.hyper_connection_pre_custom(*given, **EPSILON, iterations=count)[2]
        for count in (1, 20)
    )
    assert (one - many).abs().max() > 1e-3


STREAMS = torch.zeros(2, 4, 4096, dtype=torch.bfloat16)
WEIGHT, SCALE, BASE = torch.zeros(24, 16384), torch.zeros(3), torch.zeros(24)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": STREAMS.float()}, r"x.*float32"),
        ({"x": STREAMS[..., :2048], "fn": WEIGHT[:, :8192]}, r"4096 or 7168"),
        ({"x": STREAMS[:, :3]}, r"n 4"),
        ({"x": STREAMS[:0]}, r"empty"),
        ({"x": STREAMS[0]}, r"tokens, n, hidden"),
        ({"fn": WEIGHT.half()}, r"hc_fn.*float16"),
        ({"fn": WEIGHT[:, 1:]}, r"hc_fn.*streams \* hidden"),
        ({"scale": torch.zeros(4)}, r"hc_scale"),
        ({"scale": SCALE.half()}, r"hc_scale.*float16"),
        ({"base": torch.zeros(23)}, r"hc_base"),
        ({"mult": 8}, r"hc_mult"),
    ],
)
def test_hc_pre_limits(change, message):
    with pytest.raises(OperatorRefusedError, match=message):
        CUSTOM.npu_hc_pre_v2(
            change.get("x", STREAMS),
            change.get("fn", WEIGHT),
            change.get("scale", SCALE),
            change.get("base", BASE),
            change.get("mult", 4),
            20,
            1e-6,
            1e-6,
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": STREAMS.float()}, r"x.*float32"),
        ({"x": STREAMS[:, :3]}, r"n 4, 6, 8"),
        ({"phi": WEIGHT.half()}, r"phi.*float16"),
        ({"gamma": torch.zeros(4)}, r"gamma"),
        ({"gamma": torch.zeros(4, 4096).half()}, r"gamma.*float16"),
        ({"out_flag": 2}, r"out_flag"),
        ({"inner_precise": 2}, r"inner_precise"),
    ],
)
def test_mhc_pre_limits(change, message):
    given = {key: value for key, value in change.items() if key not in ("x", "phi")}
    with pytest.raises(OperatorRefusedError, match=message):
        NPU.npu_mhc_pre(change.get("x", STREAMS), change.get("phi", WEIGHT), SCALE, BASE, **given)


def test_mhc_pre_gives_what_out_flag_asks_for():
    install(SMALL)
    streams, weight, scale, base = inputs(3, 16, torch.float32)
    gamma = torch.rand(4, 16)
    plain = NPU.npu_mhc_pre(streams, weight * gamma.flatten(), scale, base)
    found = NPU.npu_mhc_pre(streams, weight, scale, base, gamma=gamma, out_flag=1)
    torch.testing.assert_close(found[:3], plain[:3])
    assert [list(item.shape) for item in found[3:]] == [[3], [3, 24], [3, 4]]
    assert all(bool(item.isnan().all()) for item in plain[3:])
    torch.testing.assert_close((found[5][..., None] * streams).sum(1), found[0])


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (torch.zeros(2, 4, 4).half(), {}, r"float16"),
        (torch.zeros(2, 5, 5), {}, r"n 4, 6 or 8"),
        (torch.zeros(2, 4, 6), {}, r"\[tokens, n, n\]"),
        (torch.zeros(0, 4, 4), {}, r"empty"),
        (torch.zeros(2, 4, 4), {"num_iters": 0}, r"1 to 100"),
        (torch.zeros(2, 4, 4), {"num_iters": 101}, r"1 to 100"),
        (torch.zeros(2, 4, 4), {"out_flag": 1}, r"out_flag"),
    ],
)
def test_sinkhorn_limits(x, options, message):
    with pytest.raises(OperatorRefusedError, match=message):
        NPU.npu_mhc_sinkhorn(x, **options)


Y, RESIDUAL = torch.zeros(1, 2, 8).bfloat16(), torch.zeros(1, 2, 4, 8).bfloat16()
POST, MIX = torch.zeros(1, 2, 4), torch.zeros(1, 2, 4, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Y.double(), RESIDUAL.double(), POST, MIX), r"x.*float64"),
        ((Y, RESIDUAL.float(), POST, MIX), r"residual"),
        ((Y[0], RESIDUAL[0], POST[0], MIX[0]), r"batch, sequence, hidden"),
        ((Y[:, :0], RESIDUAL[:, :0], POST[:, :0], MIX[:, :0]), r"empty"),
        ((Y, RESIDUAL[..., :4], POST, MIX), r"residual"),
        ((Y, RESIDUAL, POST[..., :3], MIX), r"post"),
        ((Y, RESIDUAL, POST, MIX[..., :3]), r"comb"),
        ((Y, RESIDUAL, POST, MIX.half()), r"comb.*float16"),
        ((Y, RESIDUAL, POST.double(), MIX.double()), r"post.*float64"),
    ],
)
def test_hc_post_limits(arguments, message):
    with pytest.raises(OperatorRefusedError, match=message):
        CUSTOM.npu_hc_post(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((RESIDUAL.float(), MIX, Y.float(), POST), r"x.*float32"),
        ((RESIDUAL[:, :, :3], MIX, Y, POST), r"n 4, 6, 8"),
        ((RESIDUAL, MIX.half(), Y, POST), r"h_res.*float16"),
        ((RESIDUAL, MIX, Y.half(), POST), r"h_out"),
        ((RESIDUAL, MIX, Y[..., :4], POST), r"h_out"),
        ((RESIDUAL, MIX, Y, POST.half()), r"h_post.*float16"),
        ((RESIDUAL, MIX, Y, POST[..., :3]), r"h_post"),
        ((RESIDUAL, MIX[..., :3], Y, POST), r"h_res"),
    ],
)
def test_mhc_post_limits(arguments, message):
    with pytest.raises(OperatorRefusedError, match=message):
        NPU.npu_mhc_post(*arguments)


def test_mhc_post_without_a_matrix_adds_the_residual():
    x, y, post = torch.randn(3, 4, 8).half(), torch.randn(3, 8).half(), torch.rand(3, 4)
    eye = torch.eye(4).expand(3, 4, 4)
    expected = NPU.npu_mhc_post(x, eye, y, post)
    torch.testing.assert_close(NPU.npu_mhc_post(x, None, y, post), expected, rtol=0, atol=1e-3)
