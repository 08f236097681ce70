"""Runs the Triton bindings in Triton's interpreter and compares them with the references.

`TRITON_INTERPRET=1 python interpret.py response.json`: the variable is read where a kernel is
decorated, hence a process of its own.
"""

import json
import sys
from pathlib import Path

import torch

from ascend_recipes.ops import load_function
from ascend_recipes.ops.triton.bindings import delta_rule_gates_triton, rms_norm_rotary_triton
from ascend_recipes.registry.load import load_registry

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
GATES = ((1, 12), (7, 5), (65, 48), (130, 16), (3, 1), (0, 4))
HEADS = (
    (1, 6, 256, 32),
    (5, 1, 128, 64),
    (41, 3, 96, 16),
    (2, 7, 80, 8),
    (3, 37, 64, 1),
    (0, 2, 64, 32),
)
"""Tokens, heads, head dim, frequencies."""


def difference(actual, expected):
    """Largest deviation relative to the largest expected value; infinite where shapes differ."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    error = (actual.float() - expected.float()).abs().max()
    return float(error / expected.float().abs().max().clamp_min(1e-6))


def gates(shape, dtype):
    tokens, heads = shape
    # Far beyond 20 and far below 0, where softplus has its branches.
    a, b = torch.randn(tokens, heads) * 20, torch.randn(tokens, heads) * 4
    arguments = (a.to(dtype), b.to(dtype), torch.rand(heads), torch.randn(heads).to(dtype))
    expected = load_function(load_registry().operations["delta_rule_gates"].reference)(*arguments)
    actual = delta_rule_gates_triton(*arguments)
    return [difference(*pair) for pair in zip(actual, expected, strict=True)]


def norm_rotary(shape, dtype, add_one):
    tokens, heads, width, frequencies = shape
    angle = torch.rand(tokens, frequencies) * 6.28
    # A slice of a wider projection, as query and key are.
    x = torch.randn(tokens, heads, 2 * width).to(dtype)[..., :width]
    arguments = (x, torch.randn(width).to(dtype), angle.cos(), angle.sin())
    settings = {"epsilon": 1e-6, "add_one": add_one}
    expected = load_function(load_registry().operations["rms_norm_rotary"].reference)
    actual = rms_norm_rotary_triton(*arguments, **settings)
    return [difference(actual, expected(*arguments, **settings))]


def wrong_conventions():
    """Deviations that swapped sine and cosine, and a plain weight, must cause."""
    x, weight = torch.randn(3, 2, 64), torch.randn(64)
    angle = torch.rand(3, 32) * 6.28
    reference = load_function(load_registry().operations["rms_norm_rotary"].reference)
    expected = reference(x, weight, angle.cos(), angle.sin(), epsilon=1e-6, add_one=True)
    turn = (angle.cos(), angle.sin())
    swapped = rms_norm_rotary_triton(x, weight, *turn[::-1], epsilon=1e-6, add_one=True)
    plain = rms_norm_rotary_triton(x, weight, *turn, epsilon=1e-6, add_one=False)
    return [difference(swapped, expected), difference(plain, expected)]


def refusal():
    x, angle = torch.randn(1, 1, 64), torch.rand(1, 12)
    try:
        rms_norm_rotary_triton(x, x[0, 0], angle, angle, epsilon=1e-6, add_one=True)
    except ValueError as error:
        return str(error)
    return ""


def main(path):
    torch.manual_seed(7)
    # What torch.empty returns is NaN then, so that an element that a kernel forgets is seen.
    torch.use_deterministic_algorithms(True)
    results = []
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        for shape in GATES:
            errors = gates(shape, dtype)
            results.append({"operation": "delta_rule_gates", "dtype": name, "errors": errors})
        for number, shape in enumerate(HEADS):
            errors = norm_rotary(shape, dtype, bool(number % 2))
            results.append({"operation": "rms_norm_rotary", "dtype": name, "errors": errors})
    answer = {"results": results, "wrong": wrong_conventions(), "refusal": refusal()}
    Path(path).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
