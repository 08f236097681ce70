"""The gated delta net: gates, chunked and recurrent delta rule."""

import pytest
import torch
import torch.nn.functional as F

from ascend_recipes.emulation import OperatorRefusedError, install
from ascend_recipes.ops import recurrent
from ascend_recipes.ops.reference import recurrent as reference

pytestmark = pytest.mark.ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def delta_case(lengths, *, key_heads, value_heads, dtype, state_dtype=None, slots=None):
    tokens = sum(lengths)
    query, key = (F.normalize(torch.randn(tokens, key_heads, 128), dim=-1) for _ in range(2))
    return {
        "query_TNkK": query.to(dtype),
        "key_TNkK": key.to(dtype),
        "value_TNvV": torch.randn(tokens, value_heads, 128).to(dtype),
        "g_TNv": -torch.rand(tokens, value_heads) * 0.5,
        "beta_TNv": torch.rand(tokens, value_heads).to(dtype),
        "state": (torch.randn(slots or len(lengths), value_heads, 128, 128) * 0.3).to(
            state_dtype or dtype
        ),
        "lengths_R": torch.tensor(lengths, dtype=torch.int32),
        "scale": 128**-0.5,
    }


CHUNKED = [
    pytest.param([1], 1, 1, id="one-token"),
    pytest.param([64], 2, 2, id="one-chunk"),
    pytest.param([65, 1, 130], 1, 3, id="ragged"),
    pytest.param([7, 7, 7, 7], 2, 6, id="equal"),
    pytest.param([200, 0, 5], 1, 2, id="empty-sequence"),
]


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize(("lengths", "key_heads", "value_heads"), CHUNKED)
def test_chunked_binding_equals_reference(lengths, key_heads, value_heads, dtype, relaxed, agree):
    relaxed(dtype)
    case = delta_case(
        lengths,
        key_heads=key_heads,
        value_heads=value_heads,
        dtype=dtype,
        state_dtype=torch.float32,
    )
    state = case.pop("state").to(dtype).float()
    case["initial_state_RNvVK"] = state
    out, final = recurrent.chunk_gated_delta_rule_npu(**case)
    expected, expected_final = reference.chunk_gated_delta_rule(**case)
    agree("chunk_gated_delta_rule", out, expected)
    assert final.dtype == torch.float32
    # The operator returns the state in the type of the query.
    agree("chunk_gated_delta_rule", final.to(dtype), expected_final.to(dtype))


@pytest.mark.parametrize(("tokens", "heads"), [(1, (1, 1)), (63, (2, 2)), (130, (2, 6))])
def test_delta_rule_reference_equals_transformers(tokens, heads, transformers_qwen3_5):
    case = delta_case([tokens], key_heads=heads[0], value_heads=heads[1], dtype=torch.float32)
    state = case.pop("state")
    out, final = reference.chunk_gated_delta_rule(**case, initial_state_RNvVK=state)
    group = heads[1] // heads[0]
    arguments = {
        "query": case["query_TNkK"][None].repeat_interleave(group, dim=2),
        "key": case["key_TNkK"][None].repeat_interleave(group, dim=2),
        "value": case["value_TNvV"][None],
        "g": case["g_TNv"][None],
        "beta": case["beta_TNv"][None],
        # transformers keeps the state as [K, V], the vendor as [V, K].
        "initial_state": state.transpose(-1, -2),
        "output_final_state": True,
    }
    for oracle in (
        transformers_qwen3_5.torch_chunk_gated_delta_rule,
        transformers_qwen3_5.torch_recurrent_gated_delta_rule,
    ):
        expected, expected_final = oracle(**arguments)
        torch.testing.assert_close(out, expected[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(final, expected_final.transpose(-1, -2), rtol=1e-4, atol=1e-5)


RECURRENT = [
    pytest.param([1], 1, 1, id="one"),
    pytest.param([1] * 9, 2, 6, id="decode"),
    pytest.param([2, 1, 8], 1, 2, id="verify"),
    pytest.param([4] * 3, 2, 2, id="verify-equal"),
    pytest.param([3, 0, 2], 1, 3, id="padding"),
]


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("speculative", [False, True])
@pytest.mark.parametrize(("lengths", "key_heads", "value_heads"), RECURRENT)
def test_recurrent_bindings_equal_reference(
    lengths, key_heads, value_heads, speculative, state_dtype, dtype, relaxed, agree
):
    relaxed(dtype)
    tokens = sum(lengths)
    case = delta_case(
        lengths,
        key_heads=key_heads,
        value_heads=value_heads,
        dtype=dtype,
        state_dtype=state_dtype,
        slots=tokens + 3,
    )
    state = case.pop("state")
    case["state_indices"] = torch.randperm(tokens + 3)[:tokens].to(torch.int32)
    if speculative:
        case["num_accepted"] = torch.tensor(
            [max(1, (length + 1) // 2) for length in lengths], dtype=torch.int32
        )
    bindings = []
    if state_dtype in (torch.float32, dtype):
        bindings.append(recurrent.recurrent_gated_delta_rule_custom)
    if state_dtype == dtype:
        bindings.append(recurrent.recurrent_gated_delta_rule_npu)
    for binding in bindings:
        ours, theirs = state.clone(), state.clone()
        actual = binding(**case, state_SNvVK=ours)
        expected = reference.recurrent_gated_delta_rule(**case, state_SNvVK=theirs)
        agree("recurrent_gated_delta_rule", actual, expected)
        agree("recurrent_gated_delta_rule", ours, theirs)


def test_custom_recurrence_ignores_padding_tokens(relaxed):
    relaxed(torch.float32)
    case = delta_case([1, 1, 1], key_heads=1, value_heads=1, dtype=torch.float32, slots=4)
    state = case.pop("state")
    before = state.clone()
    case["lengths_R"] = torch.tensor([1, 1, 0], dtype=torch.int32)
    case["state_indices"] = torch.tensor([2, 0, -1], dtype=torch.int32)
    out = recurrent.recurrent_gated_delta_rule_custom(**case, state_SNvVK=state)
    assert not out[:2].isnan().any()
    assert torch.equal(state[[1, 3]], before[[1, 3]])


def test_decode_continues_the_chunked_state(relaxed):
    """A prefill of n tokens and decode steps equal one prefill of all."""
    relaxed(torch.float32)
    case = delta_case([80], key_heads=1, value_heads=2, dtype=torch.float32)
    state = case.pop("state")
    whole, final = recurrent.chunk_gated_delta_rule_npu(**case, initial_state_RNvVK=state)
    names = ("query_TNkK", "key_TNkK", "value_TNvV", "g_TNv", "beta_TNv")

    def part(first, last):
        return {name: case[name][first:last] for name in names} | {
            "lengths_R": torch.tensor([last - first], dtype=torch.int32),
            "scale": case["scale"],
        }

    outputs, cached = [], None
    out, cached = recurrent.chunk_gated_delta_rule_npu(**part(0, 70), initial_state_RNvVK=state)
    outputs.append(out)
    for token in range(70, 80):
        outputs.append(
            recurrent.recurrent_gated_delta_rule_custom(
                **part(token, token + 1),
                state_SNvVK=cached,
                state_indices=torch.zeros(1, dtype=torch.int32),
            )
        )
    torch.testing.assert_close(torch.cat(outputs), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cached, final, rtol=1e-4, atol=1e-5)


def test_long_decay_stays_finite(relaxed):
    relaxed(torch.float32)
    case = delta_case([150], key_heads=1, value_heads=1, dtype=torch.float32)
    state = case.pop("state")
    case["g_TNv"] = torch.full_like(case["g_TNv"], -40.0)
    out, final = recurrent.chunk_gated_delta_rule_npu(**case, initial_state_RNvVK=state)
    expected, _ = reference.chunk_gated_delta_rule(**case, initial_state_RNvVK=state)
    assert out.isfinite().all()
    assert final.isfinite().all()
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 12), (129, 3), (2, 48), (33, 1)])
def test_gates_equal_an_exact_oracle(shape, dtype):
    a, b = torch.randn(shape).to(dtype) * 3, torch.randn(shape).to(dtype)
    a_log, bias = torch.rand(shape[1]) * 2, torch.randn(shape[1])
    g, beta = reference.delta_rule_gates(a, b, a_log, bias)
    expected = -a_log.double().exp() * torch.log1p((a.double() + bias.double()).exp())
    torch.testing.assert_close(g.double(), expected, rtol=1e-5, atol=1e-6)
    assert g.dtype == torch.float32
    torch.testing.assert_close(beta, (1 / (1 + (-b.double()).exp())).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 8), (7, 2, 128), (3, 16, 128), (65, 1, 64), (2, 3, 5)])
def test_l2_norm_equals_transformers(shape, dtype, transformers_qwen3_5):
    x = torch.randn(shape).to(dtype)
    expected = transformers_qwen3_5.l2norm(x.double()).to(dtype)
    torch.testing.assert_close(reference.l2_norm(x), expected)


def raw_recurrent(name, **change):
    case = delta_case([2, 1], key_heads=1, value_heads=2, dtype=torch.bfloat16, slots=3)
    custom = name == "_C_ascend"
    lengths = [0, 2, 1] if custom else [2, 1]
    arguments = {
        "query": case["query_TNkK"],
        "key": case["key_TNkK"],
        "value": case["value_TNvV"],
        "state": case["state"],
        "beta": case["beta_TNv"],
        "g": case["g_TNv"],
        "scale": 0.1,
        "actual_seq_lengths": torch.tensor(lengths, dtype=torch.int32),
        "ssm_state_indices": torch.arange(3, dtype=torch.int32),
    } | change
    operator = getattr(torch.ops, name).npu_recurrent_gated_delta_rule
    positional = [arguments.pop(key) for key in ("query", "key", "value", "state")]
    return operator(*positional, **arguments)


@pytest.mark.parametrize("name", ["npu", "_C_ascend"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(3, 1, 128)}, r"query.*float32.*bfloat16"),
        ({"value": torch.zeros(3, 2, 128).half()}, r"value"),
        ({"value": torch.zeros(3, 3, 128).bfloat16()}, r"beta|state"),
        ({"state": torch.zeros(3, 2, 128, 64).bfloat16()}, r"state.*value dim, key dim"),
        ({"state": torch.zeros(3, 2, 128, 128).half()}, r"state"),
        ({"beta": None}, r"beta.*required"),
        ({"beta": torch.zeros(3, 2)}, r"beta"),
        ({"g": torch.zeros(3, 2).bfloat16()}, r"'g'.*float32"),
        ({"g": torch.zeros(2, 2)}, r"'g'"),
        ({"gk": torch.zeros(3, 128)}, r"gk"),
        ({"actual_seq_lengths": None}, r"actual_seq_lengths.*required"),
        ({"actual_seq_lengths": torch.tensor([0, 2, 3]).int()}, r"not cumulative"),
        ({"actual_seq_lengths": torch.tensor([2, 1])}, r"actual_seq_lengths.*int32"),
        ({"ssm_state_indices": None}, r"ssm_state_indices.*required"),
        ({"ssm_state_indices": torch.tensor([0, 1, 9]).int()}, r"0 to 2"),
        ({"ssm_state_indices": torch.tensor([0, 1, 2])}, r"ssm_state_indices.*int32"),
        ({"num_accepted_tokens": torch.tensor([3, 1]).int()}, r"num_accepted_tokens.*1 to"),
        ({"num_accepted_tokens": torch.tensor([1, 1])}, r"num_accepted_tokens.*int32"),
    ],
)
def test_vendor_limits_of_the_recurrence_are_refused(name, change, message):
    with pytest.raises(OperatorRefusedError, match=message):
        raw_recurrent(name, **change)


@pytest.mark.parametrize(("name", "limit"), [("npu", 8), ("_C_ascend", 16)])
def test_longest_sequence_of_the_recurrence(name, limit):
    def run(tokens):
        case = delta_case([tokens], key_heads=1, value_heads=1, dtype=torch.bfloat16, slots=tokens)
        lengths = [tokens] if name == "npu" else [0, tokens]
        return raw_recurrent(
            name,
            query=case["query_TNkK"],
            key=case["key_TNkK"],
            value=case["value_TNvV"],
            state=case["state"],
            beta=case["beta_TNv"],
            g=case["g_TNv"],
            actual_seq_lengths=torch.tensor(lengths, dtype=torch.int32),
            ssm_state_indices=torch.arange(tokens, dtype=torch.int32),
        )

    assert run(limit).shape == (limit, 1, 128)
    with pytest.raises(OperatorRefusedError, match=f"at most {limit}"):
        run(limit + 1)


def test_float32_state_is_only_for_the_custom_operator():
    state = torch.zeros(3, 2, 128, 128)
    raw_recurrent("_C_ascend", state=state)
    with pytest.raises(OperatorRefusedError, match="state"):
        raw_recurrent("npu", state=state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"widths": 64}, "128"),
        ({"heads": (1, 65)}, "64"),
        ({"heads": (2, 3)}, "multiple"),
        ({"lengths": [5, 9]}, "not cumulative"),
        ({"states": 3}, "one a state"),
        ({"state_dtype": torch.float32}, "initial_state"),
    ],
)
def test_vendor_limits_of_the_chunked_rule_are_refused(change, message):
    key_heads, value_heads = change.get("heads", (1, 2))
    case = delta_case([5, 4], key_heads=key_heads, value_heads=value_heads, dtype=torch.bfloat16)
    width = change.get("widths", 128)
    states = change.get("states", 2)
    state = torch.zeros(
        states, value_heads, width, width, dtype=change.get("state_dtype", torch.bfloat16)
    )
    with pytest.raises(OperatorRefusedError, match=message):
        torch.ops.npu.npu_chunk_gated_delta_rule(
            case["query_TNkK"][..., :width],
            case["key_TNkK"][..., :width],
            case["value_TNvV"][..., :width],
            beta=case["beta_TNv"],
            initial_state=state,
            actual_seq_lengths=torch.tensor(change.get("lengths", [5, 4]), dtype=torch.int32),
            scale=0.1,
            g=case["g_TNv"],
        )


def test_strict_emulation_returns_after_relaxation():
    install({"dtype.float32"})
    raw_recurrent(
        "npu",
        query=torch.zeros(3, 1, 128),
        key=torch.zeros(3, 1, 128),
        value=torch.zeros(3, 2, 128),
        beta=torch.zeros(3, 2),
        state=torch.zeros(3, 2, 128, 128),
    )
    install()
    with pytest.raises(OperatorRefusedError, match="bfloat16"):
        raw_recurrent("npu", query=torch.zeros(3, 1, 128))
