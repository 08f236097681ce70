"""The causal convolution: prefill, decode and verification of drafts."""

import pytest
import torch
import torch.nn.functional as F

from ascend_recipes.emulation import OperatorRefusedError
from ascend_recipes.ops import recurrent
from ascend_recipes.ops.reference import recurrent as reference

pytestmark = pytest.mark.ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NAN = float("nan")


def starts_of(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def convolution_case(lengths, channels, dtype, *, rows=3, taps=4):
    lines = len(lengths) + 2
    return {
        "x_TC": torch.randn(sum(lengths), channels).to(dtype),
        "weight_WC": (torch.randn(taps, channels) * 0.5).to(dtype),
        "conv_state_SLC": torch.randn(lines, rows, channels).to(dtype),
        "query_start_R1": starts_of(lengths),
        "cache_indices_R": torch.randperm(lines)[: len(lengths)].to(torch.int32),
        "has_initial_state_R": torch.rand(len(lengths)) > 0.5,
    }


def both(case, **more):
    """Binding and reference, each on its own copy of the states."""
    ours, theirs = (case | {"conv_state_SLC": case["conv_state_SLC"].clone()} for _ in range(2))
    actual = recurrent.causal_conv1d_custom(**ours, **more)
    expected = reference.causal_conv1d(**theirs, **more)
    return (actual, ours["conv_state_SLC"]), (expected, theirs["conv_state_SLC"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("lengths", "channels"),
    [([1], 16), ([7, 1, 2], 48), ([129, 3], 64), ([2, 2, 2, 5], 2560), ([3, 64, 1, 1], 32)],
)
@pytest.mark.parametrize("decode", [False, True])
def test_convolution_equals_reference(lengths, channels, dtype, decode, relaxed, agree):
    relaxed(dtype)
    case = convolution_case(lengths, channels, dtype)
    for activation in ("silu", None):
        found, wanted = both(case, activation=activation, decode=decode)
        for actual, expected in zip(found, wanted, strict=True):
            agree("causal_conv1d", actual, expected)


def test_prefill_without_flags_starts_from_zeros(relaxed, agree):
    relaxed(torch.float32)
    case = convolution_case([5, 2], 16, torch.float32) | {"has_initial_state_R": None}
    found, wanted = both(case, decode=False)
    for actual, expected in zip(found, wanted, strict=True):
        agree("causal_conv1d", actual, expected)


@pytest.mark.parametrize("taps", [2, 3, 4])
def test_convolution_with_bias_and_fewer_taps(taps, relaxed, agree):
    relaxed(torch.float32)
    case = convolution_case([5, 1, 3], 32, torch.float32, taps=taps, rows=4)
    found, wanted = both(case, bias=torch.randn(32), decode=False)
    for actual, expected in zip(found, wanted, strict=True):
        agree("causal_conv1d", actual, expected)


def test_convolution_reference_equals_transformers(transformers_qwen3_5):
    x, weight = torch.randn(19, 32), torch.randn(4, 32)
    state = torch.zeros(1, 3, 32)
    common = {"cache_indices_R": torch.tensor([0]), "activation": "silu"}
    first = reference.causal_conv1d(
        x[:12],
        weight,
        state,
        query_start_R1=torch.tensor([0, 12]),
        has_initial_state_R=torch.tensor([False]),
        decode=False,
        **common,
    )
    rest = [
        reference.causal_conv1d(
            x[i : i + 1],
            weight,
            state,
            query_start_R1=torch.tensor([0, 1]),
            has_initial_state_R=None,
            decode=True,
            **common,
        )
        for i in range(12, 19)
    ]
    expected = transformers_qwen3_5.causal_conv1d_fn(x.T[None], weight.T, activation="silu")
    torch.testing.assert_close(torch.cat([first, *rest]), expected[0].T)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_speculative_convolution_equals_reference(drafts, dtype, relaxed, agree):
    relaxed(dtype)
    lengths = [drafts + 1] * 4
    case = convolution_case(lengths, 32, dtype, rows=3 + drafts)
    accepted = torch.randint(1, drafts + 2, (4,), dtype=torch.int32)
    found, wanted = both(case, num_accepted=accepted, decode=True)
    for actual, expected in zip(found, wanted, strict=True):
        agree("causal_conv1d", actual, expected)


def test_rejected_drafts_leave_no_trace(relaxed):
    """Verifying wrong drafts and going on equals never having seen them."""
    relaxed(torch.float32)
    weight, x = torch.randn(4, 16), torch.randn(8, 16)
    state = torch.zeros(1, 5, 16)
    common = {"cache_indices_R": torch.tensor([0]), "has_initial_state_R": None, "decode": True}

    def verify(tokens, accepted):
        return recurrent.causal_conv1d_custom(
            tokens,
            weight,
            state,
            query_start_R1=torch.tensor([0, len(tokens)]),
            num_accepted=torch.tensor([accepted], dtype=torch.int32),
            **common,
        )

    outputs = [verify(torch.cat((x[:1], torch.randn(2, 16))), 1)[:1]]
    outputs.append(verify(torch.cat((x[1:3], torch.randn(1, 16))), 1)[:2])
    outputs.append(verify(x[3:6], 2))
    plain = F.conv1d(F.pad(x[:6].T[None], (3, 0)), weight.T[:, None], groups=16)[0].T
    torch.testing.assert_close(torch.cat(outputs), F.silu(plain))


def test_skipped_sequences_keep_output_and_state():
    case = convolution_case([2, 3], 16, torch.bfloat16)
    case["cache_indices_R"] = torch.tensor([-1, 1], dtype=torch.int32)
    before = case["conv_state_SLC"].clone()
    output = torch.full_like(case["x_TC"], NAN)
    torch.ops._C_ascend.npu_causal_conv1d_custom(
        output,
        case["x_TC"],
        case["weight_WC"],
        case["conv_state_SLC"],
        None,
        case["query_start_R1"],
        case["cache_indices_R"],
        None,
        None,
        1,
        -1,
        0,
    )
    assert output[:2].isnan().all()
    assert not output[2:].isnan().any()
    untouched = [0, 2, 3]
    assert torch.equal(case["conv_state_SLC"][untouched], before[untouched])
    assert not torch.equal(case["conv_state_SLC"][1], before[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(5, 32)}, r"float32.*bfloat16, float16"),
        ({"x": torch.zeros(5, 24).bfloat16()}, r"'output'|multiple of 16"),
        ({"weight": torch.zeros(5, 32).bfloat16()}, r"weight.*2 to 4"),
        ({"weight": torch.zeros(32, 4).bfloat16()}, r"weight.*\[taps, channels\]"),
        ({"state": torch.zeros(4, 2, 32).bfloat16()}, r"conv_state.*at least 3"),
        ({"state": torch.zeros(4, 32, 3).bfloat16()}, r"conv_state"),
        ({"starts": None}, r"query_start_loc_opt.*required"),
        ({"starts": torch.tensor([2, 3])}, r"query_start_loc_opt.*cumulative"),
        ({"starts": torch.tensor([0, 2, 5]).float()}, r"query_start_loc_opt.*int32, int64"),
        ({"lines": torch.tensor([0])}, r"cache_indices_opt.*\[2\]"),
        ({"fresh": torch.tensor([True])}, r"initial_state_mode_opt"),
        ({"accepted": torch.tensor([1, 1])}, r"num_accepted_tokens_opt.*run mode 0"),
        ({"fresh": torch.tensor([True, True]), "mode": 1}, r"initial_state_mode_opt.*run mode 1"),
        ({"activation": 2}, r"activation_mode"),
        ({"mode": 2}, r"run_mode"),
        ({"bias": torch.zeros(16).bfloat16()}, r"bias_opt"),
        ({"bias": torch.zeros(32)}, r"bias_opt"),
    ],
)
def test_vendor_limits_of_the_convolution_are_refused(change, message):
    x = change.get("x", torch.zeros(5, 32).bfloat16())
    with pytest.raises(OperatorRefusedError, match=message):
        torch.ops._C_ascend.npu_causal_conv1d_custom(
            torch.empty_like(x),
            x,
            change.get("weight", torch.zeros(4, 32).bfloat16()),
            change.get("state", torch.zeros(4, 3, 32).bfloat16()),
            change.get("bias"),
            change.get("starts", torch.tensor([0, 2, 5])),
            change.get("lines", torch.tensor([0, 1])),
            change.get("fresh"),
            change.get("accepted"),
            change.get("activation", 1),
            -1,
            change.get("mode", 0),
        )


def test_unknown_convolution_activation_is_refused():
    with pytest.raises(ValueError, match="silu, swish, None"):
        recurrent.causal_conv1d_custom(
            **convolution_case([1], 16, torch.bfloat16), activation="gelu", decode=False
        )
