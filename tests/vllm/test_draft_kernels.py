"""Kernels around drafters, against loops over their definition."""

import itertools

import pytest
import torch

from ascend_recipes.kernels.drafting import (
    advance_draft_step,
    locate_last_accepted,
    pick_next_tokens,
)
from ascend_recipes.kernels.rejection import (
    accept_greedily,
    accept_randomly,
    expand_to_drafts,
    sample_recovered,
)

pytestmark = pytest.mark.vllm

VOCABULARY = 11
COUNTS = ([3, 0, 1, 3, 2], [0, 0], [3, 3, 3])


def drafts_of(counts, seed=0):
    """Running sum, drafts, and what the target likes best, about half of them agreeing."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(counts)
    drafts = torch.randint(0, VOCABULARY, (total,), generator=generator).to(torch.int32)
    other = torch.randint(0, VOCABULARY, (total,), generator=generator)
    agree = torch.rand(total, generator=generator) < 0.6
    best = torch.where(agree, drafts.to(torch.int64), other)
    return torch.tensor(counts).cumsum(0).to(torch.int32), drafts, best, generator


def emitted(counts, token, accepted, bonus, rows):
    """Per request: tokens up to the first rejection, or all and the bonus; -1 elsewhere."""
    table, start = [], 0
    for row, count in enumerate(counts):
        out = [-1] * (max(3, *counts) + 1)
        if rows[row]:
            position = 0
            for position in range(count):
                out[position] = token[start + position]
                if not accepted[start + position]:
                    break
            else:
                out[count] = bonus[row]
        table.append(out)
        start += count
    return table


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("mixed", [False, True])
def test_greedy_acceptance(counts, mixed):
    running, drafts, best, _ = drafts_of(counts)
    bonus = torch.arange(100, 100 + len(counts))[:, None]
    greedy = torch.tensor([row % 2 == 0 for row in range(len(counts))]) if mixed else None
    output = torch.full((len(counts), 4), -1, dtype=torch.int32)
    accept_greedily(output, running, drafts, best, bonus, greedy, 3, None, None, False)
    rows = [True] * len(counts) if greedy is None else greedy.tolist()
    agreed = (drafts == best).tolist()
    assert output.tolist() == emitted(counts, best.tolist(), agreed, bonus[:, 0].tolist(), rows)


def test_no_request_has_drafts():
    output = torch.full((2, 1), -1, dtype=torch.int32)
    nothing = torch.zeros(0, dtype=torch.int32)
    running, bonus = torch.zeros(2, dtype=torch.int32), torch.tensor([5, 6])
    accept_greedily(output, running, nothing, nothing.long(), bonus, None, 0, None, None, False)
    assert output.tolist() == [[5], [6]]


def test_synthetic_acceptance_follows_the_rates():
    running, drafts, best, _ = drafts_of([3, 3])
    uniform = torch.tensor([0.1, 0.9, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64)
    output = torch.full((2, 4), -1, dtype=torch.int32)
    bonus = torch.tensor([[50], [60]])
    rates = torch.tensor([0.5, 0.5, 0.5])
    accept_greedily(output, running, drafts, best, bonus, None, 3, uniform, rates, True)
    assert output.tolist() == [[drafts[0], best[1], -1, -1], [*drafts[3:].tolist(), 60]]


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("certain", [False, True])
def test_random_acceptance(counts, certain):
    running, drafts, _, generator = drafts_of(counts, seed=3)
    total = sum(counts)
    target = torch.rand(total, VOCABULARY, generator=generator).softmax(-1)
    draft = torch.rand(total, VOCABULARY, generator=generator).softmax(-1)
    uniform = torch.rand(total, generator=generator, dtype=torch.float64) * (0.2 if certain else 1)
    recovered = torch.randint(0, VOCABULARY, (total,), generator=generator).to(torch.int32)
    drafts[:1] = -1
    bonus = torch.arange(100, 100 + len(counts))
    greedy = torch.tensor([row == 1 for row in range(len(counts))])
    output = torch.full((len(counts), 4), -1, dtype=torch.int32)
    accept_randomly(
        output,
        running,
        drafts,
        None if certain else draft,
        target,
        bonus,
        recovered,
        uniform,
        greedy,
        3,
        VOCABULARY,
        None,
        certain,
        False,
    )
    accepted = []
    for row, token in enumerate(drafts.tolist()):
        share = 1.0 if certain else draft[row, token].item()
        accepted.append(token >= 0 and target[row, token].item() / share >= uniform[row].item())
    token = [
        d if a else r for d, a, r in zip(drafts.tolist(), accepted, recovered.tolist(), strict=True)
    ]
    rows = (~greedy).tolist()
    assert output.tolist() == emitted(counts, token, accepted, bonus.tolist(), rows)


@pytest.mark.parametrize("counts", COUNTS)
def test_expansion(counts):
    running = torch.tensor(counts).cumsum(0).to(torch.int32)
    values = torch.tensor([0.5, 0.0, 2.0, 3.0, 0.0])[: len(counts)]
    output = torch.empty(sum(counts))
    expand_to_drafts(output, values, running, 0, 1, 32)
    replaced = [1.0 if value == 0 else value for value in values.tolist()]
    expected = [[value] * count for value, count in zip(replaced, counts, strict=True)]
    assert output.tolist() == list(itertools.chain(*expected))


@pytest.mark.parametrize("certain", [False, True])
def test_recovered_tokens(certain):
    counts = [2, 0, 3]
    running, drafts, _, generator = drafts_of(counts, seed=5)
    target = torch.rand(5, VOCABULARY, generator=generator).softmax(-1)
    draft = torch.rand(5, VOCABULARY, generator=generator).softmax(-1)
    noise = torch.rand(3, VOCABULARY, generator=generator) + 0.1
    output = torch.empty(5, dtype=torch.int32)
    sample_recovered(
        output,
        running,
        drafts,
        None if certain else draft,
        target,
        noise,
        VOCABULARY,
        8192,
        certain,
        False,
    )
    for row, request in enumerate([0, 0, 2, 2, 2]):
        rest = (target[row] - draft[row]).clamp(0)
        if certain:
            rest = target[row].clone()
            rest[drafts[row].item()] = 0
        assert output[row].item() == (rest * noise[request]).argmax().item()


def test_next_draft_step():
    positions = torch.tensor([4, 9, 14, 15])
    table = torch.arange(4 * 4, dtype=torch.int32).view(4, 4) + 7
    lengths = torch.tensor([5, 10, 15, 16], dtype=torch.int32)
    slots = torch.full((6,), 99, dtype=torch.int64)
    clamped = torch.zeros(4, dtype=torch.int64)
    advance_draft_step(positions, table, 4, lengths, clamped, slots, 4, 16, 4, -1, 4)
    assert clamped.tolist() == [5, 10, 15, 0]
    assert slots.tolist() == [(7 + 1) * 4 + 1, (11 + 2) * 4 + 2, (15 + 3) * 4 + 3, -1, -1, -1]
    assert lengths.tolist() == [6, 11, 16, 1]


def test_drafting_goes_on_after_the_last_accepted_token():
    running = torch.tensor([3, 3, 6], dtype=torch.int32)
    valid = torch.tensor([2, 1, 4], dtype=torch.int32)
    starts = torch.tensor([0, 4, 5, 9], dtype=torch.int32)
    index, rejected = torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    locate_last_accepted(running, valid, starts, index, rejected, 3)
    assert rejected.tolist() == [2, 0, 0]
    assert index.tolist() == [1, 4, 8]


def test_next_tokens():
    sampled = torch.tensor([[4, 5, -1], [6, -1, -1], [7, 8, 9], [-1, -1, -1]], dtype=torch.int32)
    discard = torch.tensor([False, True, False, False])
    backup = torch.tensor([20, 21, 22, 23], dtype=torch.int32)
    tokens, valid = torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    pick_next_tokens(sampled, discard, backup, tokens, valid, 10, 3, 4, 3, 4)
    assert tokens.tolist() == [5, 21, 9, 23]
    assert valid.tolist() == [2, 0, 3, 0]
