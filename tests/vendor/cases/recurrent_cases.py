"""Gated delta net and sampling: prefill, decode, and verification of drafted tokens."""

import torch

from tests.vendor.cases.drawing import Case, CaseTable, Sizes

SLOTS = 9


def _int(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def causal_conv1d(sizes: Sizes) -> list[Case]:
    tokens = int(sizes["tokens"])
    prefill = {
        "query_start_R1": _int([0, 2, tokens]),
        "cache_indices_R": _int([0, 1]),
        "has_initial_state_R": torch.tensor([True, False]),
        "decode": False,
    }
    decode = {
        "query_start_R1": torch.arange(tokens + 1, dtype=torch.int32),
        "cache_indices_R": torch.arange(tokens, dtype=torch.int32),
        "has_initial_state_R": None,
        "decode": True,
    }
    verify = {
        "query_start_R1": _int([0, tokens]),
        "cache_indices_R": _int([1]),
        "has_initial_state_R": None,
        "num_accepted": _int([2]),
        "decode": True,
    }
    width = int(sizes["linear_conv_kernel_dim"])
    return [
        Case(prefill, {"S": SLOTS}),
        Case(decode, {"S": SLOTS}),
        Case(verify, {"S": SLOTS, "L": width - 2 + tokens}),
    ]


def chunk_gated_delta_rule(sizes: Sizes) -> list[Case]:
    tokens = int(sizes["tokens"])
    values = {"lengths_R": _int([2, tokens - 2]), "scale": 0.0883}
    dtypes = ("float32", "bfloat16")
    return [
        Case(values, {"R": 2}, {"initial_state_RNvVK": dtype, "g_TNv": "float32"})
        for dtype in dtypes
    ]


def recurrent(sizes: Sizes, state: str) -> list[Case]:
    tokens = int(sizes["tokens"])
    decode = {
        "lengths_R": _int([1] * tokens),
        "state_indices": torch.arange(tokens, dtype=torch.int32),
        "num_accepted": None,
        "scale": 0.0883,
    }
    verify = {
        "lengths_R": _int([2, tokens - 2]),
        "state_indices": torch.arange(tokens, dtype=torch.int32),
        "num_accepted": _int([1, 2]),
        "scale": 0.0883,
    }
    dtypes = {"state_SNvVK": state}
    return [Case(form, {"S": SLOTS}, dtypes) for form in (decode, verify)]


def top_k_top_p(sizes: Sizes) -> list[Case]:
    rows = int(sizes["requests"])
    k, p = torch.full((rows,), 20, dtype=torch.int32), torch.full((rows,), 0.9)
    return [Case({"k": a, "p": b}) for a, b in ((k, p), (k, None), (None, p))]


CASES: CaseTable = {
    "causal_conv1d": causal_conv1d,
    "chunk_gated_delta_rule": chunk_gated_delta_rule,
    "recurrent_gated_delta_rule": lambda sizes: recurrent(sizes, "float32"),
    "recurrent_gated_delta_rule@torch_npu.npu_recurrent_gated_delta_rule": (
        lambda sizes: recurrent(sizes, "bfloat16")
    ),
    "top_k_top_p": top_k_top_p,
}
