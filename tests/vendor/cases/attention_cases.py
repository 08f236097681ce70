"""Attention, cache writes and rotary embeddings: two requests of a prefill, and a decode step."""

from typing import Any

import torch

from ascend_recipes.ops.attention import causal_mask
from tests.vendor.cases.drawing import Case, CaseTable, Sizes

BLOCKS = 8
ALIGNED: tuple[dict[str, Any], ...] = (
    {"alignment": "lower_right"},
    {"alignment": "upper_left"},
    {"window": 4},
)


def paged_attention(sizes: Sizes) -> list[Case]:
    tokens, block = int(sizes["tokens"]), int(sizes["block"])
    heads = {"num_kv_heads": int(max(1, sizes["num_key_value_heads"] // sizes["tp"]))}
    common = {**heads, "block_size": block, "scale": 0.0625}
    prefill = {
        "block_table_RM": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
        "query_lengths_cumulative": [2, tokens],
        "kv_lengths": [block + 2, tokens - 2],
        "mask": causal_mask(torch.device("cpu")),
        "causal": True,
    }
    decode = {
        "block_table_RM": torch.arange(tokens, dtype=torch.int32)[:, None] % BLOCKS,
        "query_lengths_cumulative": list(range(1, tokens + 1)),
        "kv_lengths": [5] * tokens,
        "mask": None,
        "causal": False,
    }
    window = {**prefill, "window": 4}
    forms = (prefill, decode, window, prefill | _packed_lse(sizes))
    padded = _padded(sizes, queries=tokens // 2) | {
        "query_lengths_cumulative": [2, tokens // 2 + 2]
    }
    forms += tuple(prefill | padded | form for form in ALIGNED)
    return [Case({**common, **form}, {"B": BLOCKS}) for form in forms]


def dense_attention(sizes: Sizes) -> list[Case]:
    tokens = int(sizes["tokens"])
    lengths = [2, tokens]
    heads = int(max(1, sizes["num_key_value_heads"] // sizes["tp"]))
    common = {
        "query_lengths_cumulative": lengths,
        "kv_lengths_cumulative": lengths,
        "num_kv_heads": heads,
        "scale": 0.0625,
    }
    causal = {"mask": causal_mask(torch.device("cpu")), "causal": True}
    full = {"mask": None, "causal": False}
    queries, keys = tokens // 2, tokens + 1
    shape = (2, keys, heads, int(sizes["head_dim"]))
    padded = _padded(sizes, queries=queries) | {
        "key_TKD": torch.randn(shape).bfloat16(),
        "value_TKD": torch.randn(shape).bfloat16(),
        "query_lengths_cumulative": [2, queries + 2],
        "kv_lengths_cumulative": [keys, 2 * keys - 1],
    }
    forms = (causal, full, causal | _packed_lse(sizes), full | padded)
    forms += tuple(causal | padded | form for form in ALIGNED)
    return [Case({**common, **form}) for form in forms]


def _packed_lse(sizes: Sizes) -> dict[str, Any]:
    heads = int(sizes["num_attention_heads"] // sizes["tp"])
    return {"log_sum_exp": torch.empty(int(sizes["tokens"]), heads, 1)}


def _padded(sizes: Sizes, *, queries: int) -> dict[str, Any]:
    """Two requests in layout BSND, with the log-sum-exp."""
    heads = int(sizes["num_attention_heads"] // sizes["tp"])
    return {
        "query_TND": torch.randn(2, queries, heads, int(sizes["head_dim"])).bfloat16(),
        "log_sum_exp": torch.empty(2, heads, queries, 1),
        "layout": "BSND",
    }


def write_kv_cache(sizes: Sizes) -> list[Case]:
    slots = torch.arange(int(sizes["tokens"]))
    return [
        Case({"slots_T": slots.to(dtype)}, {"B": BLOCKS}) for dtype in (torch.int32, torch.int64)
    ]


def rotary(sizes: Sizes, *, interleaved: bool) -> list[Case]:
    tokens = int(sizes["tokens"])
    rotated = int(sizes["head_dim"] * sizes["partial_rotary_factor"])
    common = {"head_size": int(sizes["head_dim"]), "rotary_dim": rotated, "neox": True}
    third = rotated // 6
    section = [rotated // 2 - 2 * third, third, third]
    mrope = {"mrope_section": section, "mrope_interleaved": interleaved}
    plain = {"mrope_section": None, "mrope_interleaved": False}
    return [
        Case({**common, **mrope, "positions": torch.arange(tokens).expand(3, -1)}, {"M": 64}),
        Case({**common, **plain, "positions": torch.arange(tokens)}, {"M": 64}),
    ]


CASES: CaseTable = {
    "paged_attention": paged_attention,
    "dense_attention": dense_attention,
    "write_kv_cache": write_kv_cache,
    "rotary_embedding": lambda sizes: rotary(sizes, interleaved=True),
    "rotary_embedding@torch_npu.npu_mrope": lambda sizes: rotary(sizes, interleaved=False),
}
