"""Every listed dtype of operations that only plain PyTorch serves.

The same numbers are given in the narrow and in the wide dtype; both must give the same result.
"""

import pytest
import torch

from ascend_recipes.ops import quantization, rejection
from ascend_recipes.ops.reference.hyper_connection import hyper_connection_head
from ascend_recipes.ops.reference.latent_cache import hadamard_rotation
from ascend_recipes.ops.reference.norm_rotary import rms_norm_rotary
from ascend_recipes.ops.reference.recurrent import delta_rule_gates
from ascend_recipes.ops.reference.rejection import (
    apply_penalties,
    verify_drafts_greedy,
    verify_drafts_random,
)
from ascend_recipes.registry.load import load_registry

pytestmark = pytest.mark.ops

WIDE = {"float16": torch.float32, "bfloat16": torch.float32, "int32": torch.int64}


def head(dtype):
    tensors = [torch.randn(5, 4, 16).to(dtype), torch.randn(4, 64), torch.rand(1), torch.randn(4)]
    return tensors, {"norm_epsilon": 1e-6, "epsilon": 1e-6}


def gates(dtype):
    rows = [torch.randn(5, 4) for _ in range(2)]
    return [*rows, *(torch.randn(4).to(dtype) for _ in range(2))], {}


def norm(dtype):
    angles = torch.rand(5, 16).to(dtype).float()
    tables = [angles.cos().to(dtype), angles.sin().to(dtype)]
    return [torch.randn(5, 2, 32), torch.randn(32), *tables], {"epsilon": 1e-6, "add_one": False}


def greedy(dtype):
    options = {"draft_lengths_B": torch.tensor([2, 0, 3]).to(dtype), "width": 4}
    logits = torch.randn(5, 9)
    drafts = logits.argmax(dim=1)
    drafts[3] = (drafts[3] + 1) % 9
    return [drafts.to(dtype), logits, torch.tensor([4, 5, 6]).to(dtype)], options


def drawn(dtype):
    tensors, options = greedy(dtype)
    tensors[1] = tensors[1].softmax(dim=1)
    draws = [torch.rand(5), torch.rand(3, 9) + 0.01]
    return [*tensors, *draws], {**options, "draft_probabilities_DV": None}


def penalties(dtype):
    return [torch.randn(3, 9)], {
        "prompt_mask_TV": torch.rand(3, 9) < 0.3,
        "output_counts_TV": torch.randint(0, 3, (3, 9)).to(dtype),
        "presence_T": torch.rand(3),
        "frequency_T": torch.rand(3),
        "repetition_T": torch.rand(3) + 1,
    }


def rotation(dtype):
    return [torch.randn(3, 2, 32).to(dtype)], {}


HALVES = ("float16", "bfloat16")
CALLS = {
    "delta_rule_gates": (delta_rule_gates, gates, HALVES),
    "hyper_connection_head": (hyper_connection_head, head, HALVES),
    "hadamard_rotation": (hadamard_rotation, rotation, HALVES),
    "rms_norm_rotary": (rms_norm_rotary, norm, HALVES),
    "verify_drafts_greedy": (verify_drafts_greedy, greedy, ("int32",)),
    "verify_drafts_greedy torch": (rejection.verify_drafts_greedy_torch, greedy, ("int32",)),
    "verify_drafts_random": (verify_drafts_random, drawn, ("int32",)),
    "verify_drafts_random torch": (rejection.verify_drafts_random_torch, drawn, ("int32",)),
    "apply_penalties": (apply_penalties, penalties, ("int32",)),
    "apply_penalties torch": (rejection.apply_penalties_torch, penalties, ("int32",)),
}


def widened(value, narrow):
    if isinstance(value, torch.Tensor) and value.dtype == narrow:
        return value.to(WIDE[str(narrow).removeprefix("torch.")])
    return value


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, row in CALLS.items() for dtype in row[2]]
)
def test_narrow_inputs_give_what_their_numbers_give(name, dtype):
    function, make, _ = CALLS[name]
    narrow = getattr(torch, dtype)
    arguments, options = make(narrow)
    wide = [widened(value, narrow) for value in arguments]
    wide_options = {key: widened(value, narrow) for key, value in options.items()}
    assert any(a is not b for a, b in zip(arguments, wide, strict=True)) or (
        any(options[key] is not wide_options[key] for key in options)
    )
    expected, found = function(*wide, **wide_options), function(*arguments, **options)
    tolerance = load_registry().operations[name.split()[0]].tolerance
    for actual, wanted in zip(_several(found), _several(expected), strict=True):
        if not wanted.is_floating_point():
            assert actual.dtype == wanted.dtype and torch.equal(actual, wanted)
            continue
        # Where the result has the dtype of the narrow input, it may be rounded to it.
        limit = tolerance[str(actual.dtype).removeprefix("torch.")]
        scale = float(wanted.abs().max())
        torch.testing.assert_close(actual.float(), wanted.float(), rtol=0, atol=limit * scale)


def _several(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("dtype", load_registry().operations["format_cast"].inputs["x"].dtypes)
def test_a_cast_of_the_format_keeps_every_number(dtype):
    x = torch.randint(0, 9, (32, 64)).to(getattr(torch, dtype))
    found = quantization.format_cast_npu(x, layout="nd")
    assert found.dtype == x.dtype and torch.equal(found.float(), x.float())
