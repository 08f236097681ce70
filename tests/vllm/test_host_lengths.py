"""Host lengths of a step: every token belongs to a request, padding included."""

from types import SimpleNamespace

import pytest
import torch

from ascend_recipes.attention.host_lengths import host_lengths
from ascend_recipes.graph.host_arguments import capturing, note_host_lengths

pytestmark = pytest.mark.vllm


def common(starts, contexts, tokens, device_contexts=None):
    return SimpleNamespace(
        query_start_loc_cpu=torch.tensor(starts, dtype=torch.int32),
        seq_lens_cpu_upper_bound=torch.tensor(contexts, dtype=torch.int32),
        seq_lens=torch.tensor(device_contexts or contexts, dtype=torch.int32),
        num_reqs=len(contexts),
        num_actual_tokens=tokens,
    )


def test_mixed_batch():
    lengths = host_lengths(common([0, 1, 6], [20, 5], 6), exact_on_host=True)
    assert lengths.query_cumulative == (1, 6)
    assert lengths.kv == (20, 5)


def test_padding_tokens_go_to_padding_requests():
    lengths = host_lengths(common([0, 1, 2, 2, 2], [9, 4, 77, 77], 4), exact_on_host=True)
    assert lengths.query_cumulative == (1, 2, 3, 4)
    assert lengths.kv == (9, 4, 1, 1)


def test_padding_of_drafted_steps():
    lengths = host_lengths(common([0, 3, 3, 3], [12, 0, 0], 9), exact_on_host=True)
    assert lengths.query_cumulative == (3, 6, 9)
    assert lengths.kv == (12, 3, 3)


def test_requests_without_tokens_have_no_context():
    lengths = host_lengths(common([0, 2, 2], [8, 5], 2), exact_on_host=True)
    assert lengths.kv == (8, 0)


def test_device_lengths_win_between_draft_steps():
    step = common([0, 1, 2], [9, 9], 2, device_contexts=[7, 8])
    assert host_lengths(step, exact_on_host=False).kv == (7, 8)


def test_tokens_that_fit_nowhere_are_refused():
    with pytest.raises(AssertionError):
        host_lengths(common([0, 1, 2], [5, 6], 3), exact_on_host=True)


def test_lengths_go_by_the_names_of_the_operator():
    lengths = host_lengths(common([0, 1, 6], [20, 5], 6), exact_on_host=True)
    assert lengths.operator_arguments() == {
        "actual_seq_lengths": [1, 6],
        "actual_seq_lengths_kv": [20, 5],
    }


def test_a_capture_collects_layers_in_order():
    note_host_lengths("outside")
    with capturing() as layers:
        note_host_lengths("layers.3")
        note_host_lengths("layers.7")
    note_host_lengths("after")
    assert layers == ["layers.3", "layers.7"]
