"""Verification of drafts against vLLM's rules and statistics; penalties against vLLM's own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.ops import rejection
from ascend_recipes.torchvision_schemas import define_missing_schemas

pytestmark = pytest.mark.ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LENGTHS = ([1], [3, 0, 2], [0, 0], [4, 4, 4], [1, 5, 2, 0, 3])


def batch(lengths, vocabulary=11):
    """Drafts that are often right."""
    drafts = sum(lengths)
    logits = torch.randn(drafts, vocabulary)
    right = torch.rand(drafts) < 0.7
    other = torch.randint(0, vocabulary, (drafts,))
    ids = torch.where(right, logits.argmax(dim=-1), other).int()
    return ids, logits, torch.randint(100, 200, (len(lengths),), dtype=torch.int32)


def verify(lengths, ids, probabilities, bonus, uniform, drawn=None, noise=None):
    vocabulary = probabilities.shape[1]
    noise = torch.empty(len(lengths), vocabulary).exponential_() if noise is None else noise
    return rejection.verify_drafts_random_torch(
        ids,
        probabilities,
        bonus,
        uniform,
        noise,
        draft_lengths_B=torch.tensor(lengths),
        width=max(max(lengths), 1),
        draft_probabilities_DV=drawn,
    )


# --- greedy --------------------------------------------------------------------------------------
def test_greedy_stops_after_the_first_difference():
    logits = torch.eye(5)[[1, 2, 3, 1, 0, 4]]
    ids = torch.tensor([1, 2, 3, 1, 2, 4])
    tokens = rejection.verify_drafts_greedy_torch(
        ids, logits, torch.tensor([7, 8, 9]), draft_lengths_B=torch.tensor([3, 3, 0]), width=4
    )
    assert tokens.tolist() == [[1, 2, 3, 7, -1], [1, 0, -1, -1, -1], [9, -1, -1, -1, -1]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("slack", [0, 2])
def test_greedy_binding_equals_reference(lengths, slack, dtype, reference):
    ids, logits, bonus = batch(lengths)
    options = {"draft_lengths_B": torch.tensor(lengths), "width": max(*lengths, 1, 1) + slack}
    arguments = (ids, logits.to(dtype), bonus)
    found = rejection.verify_drafts_greedy_torch(*arguments, **options)
    expected = reference("verify_drafts_greedy")(*arguments, **options)
    assert found.dtype == torch.int32
    assert torch.equal(found, expected)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 2**31))
def test_greedy_output_is_what_decoding_alone_would_emit(lengths, seed):
    """Each request emits a prefix of its most probable tokens, at least one, then nothing."""
    torch.manual_seed(seed)
    ids, logits, bonus = batch(lengths)
    tokens = rejection.verify_drafts_greedy_torch(
        ids, logits, bonus, draft_lengths_B=torch.tensor(lengths), width=5
    )
    start = 0
    for request, length in enumerate(lengths):
        alone = [*logits[start : start + length].argmax(dim=-1).tolist(), int(bonus[request])]
        emitted = [token for token in tokens[request].tolist() if token != -1]
        assert len(emitted) >= 1
        assert emitted == alone[: len(emitted)]
        assert tokens[request, len(emitted) :].tolist() == [-1] * (6 - len(emitted))
        start += length


def test_cumulative_lengths_are_no_lengths():
    ids, logits, bonus = batch([2, 1])
    options = {"width": 3}
    right = rejection.verify_drafts_greedy_torch(
        ids, logits, bonus, draft_lengths_B=torch.tensor([2, 1]), **options
    )
    with pytest.raises(RuntimeError):
        rejection.verify_drafts_greedy_torch(
            ids, logits, bonus, draft_lengths_B=torch.tensor([2, 3]), **options
        )
    assert right.shape == (2, 4)


# --- random --------------------------------------------------------------------------------------
@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_random_binding_equals_reference(lengths, drawn, reference):
    ids, logits, bonus = batch(lengths)
    if sum(lengths) > 2:
        ids[1] = -1
    p = logits.softmax(dim=-1)
    q = torch.randn(sum(lengths), 11).softmax(dim=-1) if drawn else None
    arguments = (ids, p, bonus, torch.rand(sum(lengths)), torch.empty(len(lengths), 11))
    arguments[4].exponential_()
    options = {
        "draft_lengths_B": torch.tensor(lengths),
        "width": max(max(lengths), 1),
        "draft_probabilities_DV": q,
    }
    found = rejection.verify_drafts_random_torch(*arguments, **options)
    assert torch.equal(found, reference("verify_drafts_random")(*arguments, **options))


@pytest.mark.parametrize("drawn", [False, True])
def test_first_token_has_the_target_distribution(drawn):
    """The theorem of speculative decoding: drafts change the speed, not the distribution."""
    requests = 40000
    p = torch.tensor([0.5, 0.25, 0.15, 0.1, 0.0])
    q = torch.tensor([0.1, 0.4, 0.1, 0.2, 0.2])
    generator = torch.Generator().manual_seed(3)
    ids = torch.multinomial(q, requests, replacement=True, generator=generator)
    if not drawn:
        # Without draft probabilities the draft is a fixed guess.
        ids = torch.full((requests,), 1)
    tokens = verify(
        [1] * requests,
        ids,
        p.expand(requests, 5),
        torch.zeros(requests, dtype=torch.int32),
        torch.rand(requests, generator=generator),
        q.expand(requests, 5) if drawn else None,
        torch.empty(requests, 5).exponential_(generator=generator),
    )
    counts = torch.bincount(tokens[:, 0].long(), minlength=5).float()
    assert counts[4] == 0
    expected = p[:4] * requests
    statistic = ((counts[:4] - expected) ** 2 / expected).sum()
    assert statistic < 16.3, "chi-square with 3 degrees of freedom, p = 0.001"


def test_certain_drafts_are_kept_and_impossible_ones_are_replaced():
    p = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    uniform = torch.tensor([0.999, 0.5])
    bonus = torch.tensor([9], dtype=torch.int32)
    assert verify([2], torch.tensor([0, 2]), p, bonus, uniform).tolist() == [[0, 2, 9]]
    assert verify([2], torch.tensor([0, 1]), p, bonus, uniform).tolist() == [[0, 2, -1]]
    assert verify([2], torch.tensor([1, 2]), p, bonus, uniform).tolist() == [[0, -1, -1]]


def test_a_recovered_token_is_never_the_rejected_draft():
    p = torch.tensor([[0.6, 0.4]]).expand(500, 2)
    ids = torch.zeros(500, dtype=torch.int32)
    tokens = verify([1] * 500, ids, p, torch.full((500,), 7), torch.full((500,), 0.99))
    assert tokens[:, 0].tolist() == [1] * 500


def test_logits_taken_for_probabilities_change_the_result():
    ids, logits, bonus = batch([4, 4, 4])
    uniform = torch.full((12,), 0.9)
    noise = torch.ones(3, 11)
    right = verify([4, 4, 4], ids, logits.softmax(dim=-1), bonus, uniform, noise=noise)
    wrong = verify([4, 4, 4], ids, logits, bonus, uniform, noise=noise)
    assert not torch.equal(right, wrong)


# --- penalties -----------------------------------------------------------------------------------
def penalties(rows, vocabulary):
    prompts = [torch.randint(0, vocabulary, (row % 4,)) for row in range(rows)]
    # Few different tokens, so that some come several times; the first row has none.
    outputs = [torch.randint(0, vocabulary // 4 + 1, (3 * row,)) for row in range(rows)]
    mask = torch.zeros(rows, vocabulary, dtype=torch.bool)
    counts = torch.zeros(rows, vocabulary, dtype=torch.int64)
    for row in range(rows):
        mask[row, prompts[row]] = True
        counts[row] = torch.bincount(outputs[row], minlength=vocabulary)
    strengths = {
        "presence_T": torch.rand(rows) * 2 - 1,
        "frequency_T": torch.rand(rows) * 2 - 1,
        "repetition_T": torch.rand(rows) + 0.6,
    }
    return prompts, outputs, {"prompt_mask_TV": mask, "output_counts_TV": counts, **strengths}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 5), (7, 33), (3, 64), (12, 9), (5, 130)])
def test_penalties_binding_equals_reference(rows, vocabulary, dtype, reference, agree):
    logits = (torch.randn(rows, vocabulary) * 4).to(dtype)
    _, _, arguments = penalties(rows, vocabulary)
    found = rejection.apply_penalties_torch(logits, **arguments)
    agree("apply_penalties", found, reference("apply_penalties")(logits, **arguments))


@pytest.mark.parametrize(("rows", "vocabulary"), [(7, 33), (12, 9)])
def test_penalties_reference_is_vllm(rows, vocabulary, reference):
    define_missing_schemas()
    from vllm.model_executor.layers.utils import apply_penalties

    logits = torch.randn(rows, vocabulary) * 4
    prompts, outputs, arguments = penalties(rows, vocabulary)
    padded = [
        torch.nn.utils.rnn.pad_sequence(items, batch_first=True, padding_value=vocabulary)
        for items in (prompts, outputs)
    ]
    strengths = [arguments[name] for name in ("presence_T", "frequency_T", "repetition_T")]
    expected = apply_penalties(logits.clone(), *padded, *strengths)
    torch.testing.assert_close(reference("apply_penalties")(logits, **arguments), expected)


def test_penalties_reference_is_what_the_interface_documents(reference):
    """OpenAI: logit - count · frequency - (count > 0) · presence; CTRL: divide or multiply."""
    logits = torch.tensor([[2.0, -2.0, 3.0, -3.0, 1.0]])
    arguments = {
        "prompt_mask_TV": torch.tensor([[True, True, False, False, False]]),
        "output_counts_TV": torch.tensor([[0, 0, 3, 1, 0]]),
        "presence_T": torch.tensor([0.5]),
        "frequency_T": torch.tensor([0.25]),
        "repetition_T": torch.tensor([2.0]),
    }
    expected = torch.tensor([[1.0, -4.0, 1.5 - 0.75 - 0.5, -6.0 - 0.25 - 0.5, 1.0]])
    torch.testing.assert_close(reference("apply_penalties")(logits, **arguments), expected)


def test_penalties_of_one_and_zero_change_nothing():
    logits = torch.randn(3, 9)
    _, _, arguments = penalties(3, 9)
    neutral = {
        "presence_T": torch.zeros(3),
        "frequency_T": torch.zeros(3),
        "repetition_T": torch.ones(3),
    }
    assert torch.equal(rejection.apply_penalties_torch(logits, **{**arguments, **neutral}), logits)
