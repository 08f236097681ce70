"""Mixture of experts: gating, routing, and the exchange between two ranks, one of which is here."""

from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup, _register_process_group

from tests.vendor.cases.drawing import Case, CaseTable, Sizes

GROUP = "vendor-lane"
RANKS = 2


@cache
def two_ranks() -> dist.ProcessGroup:
    """A process group whose other rank never sends anything; PyTorch keeps no reference to it."""
    both = dist.ProcessGroup(dist.HashStore(), 0, RANKS)
    backend = FakeProcessGroup._create_internal(0, RANKS)
    both._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
    _register_process_group(GROUP, both)
    return both


def softmax(sizes: Sizes) -> list[Case]:
    top_k = {"top_k": int(sizes["num_experts_per_tok"])}
    return [Case({**top_k, "renormalize": again}) for again in (True, False)]


def sigmoid(sizes: Sizes) -> list[Case]:
    common = {"top_k": int(sizes["num_experts_per_tok"]), "scaling": 1.5}
    bias = torch.zeros(int(sizes["n_routed_experts"]))
    return [
        Case({**common, "bias_G": None}),
        Case({**common, "bias_G": bias, "groups": 8, "top_groups": 4}),
    ]


def sqrt_softplus(sizes: Sizes) -> list[Case]:
    bias = torch.zeros(int(sizes["n_routed_experts"]))
    return [Case({"bias_G": item, "top_k": 6, "scaling": 1.5}) for item in (None, bias)]


def hashed(sizes: Sizes) -> list[Case]:
    ids = torch.arange(int(sizes["tokens"]))
    return [Case({"input_ids_T": ids.to(dtype)}, {"V": 99}) for dtype in (torch.int32, torch.int64)]


def init_routing(sizes: Sizes) -> list[Case]:
    experts = {"num_experts": int(sizes["n_routed_experts"]), "first_expert": 0, "last_expert": 32}
    return [Case({**experts, "quantize": quantize}) for quantize in (False, True)]


def re_routing(_: Sizes) -> list[Case]:
    counts = torch.tensor([[1, 0, 2], [0, 3, 1]])
    dims = {"R": 8, "S": 2, "E": 3}
    plain = {"counts_SE": counts}
    return [
        Case(plain, dims),
        Case({**plain, "counts_SE": counts.int(), "scale_R": torch.ones(8)}, dims),
    ]


def permutation(sizes: Sizes, **values: Any) -> dict[str, Any]:
    rows = int(sizes["tokens"] * sizes["num_experts_per_tok"])
    return {"sorted_indices": torch.randperm(rows).int(), **values}


def finalize(sizes: Sizes) -> list[Case]:
    return [Case({"row_index": permutation(sizes)["sorted_indices"]})]


def unpermute(sizes: Sizes) -> list[Case]:
    shape = (int(sizes["tokens"]), int(sizes["num_experts_per_tok"]))
    weights = [torch.ones(shape).to(dtype) for dtype in (torch.float32, torch.bfloat16)]
    return [Case(permutation(sizes, weights_TK=item)) for item in (None, *weights)]


def exchange(sizes: Sizes) -> dict[str, Any]:
    two_ranks()
    return {
        "group": GROUP,
        "world_size": RANKS,
        "rank": 0,
        "num_experts": int(sizes["n_routed_experts"]),
    }


def dispatch(sizes: Sizes) -> list[Case]:
    active = torch.arange(int(sizes["tokens"])) < 4
    forms: list[dict[str, Any]] = [{}, {"quantize": True, "cumulative": True}, {"active_T": active}]
    return [Case({**exchange(sizes), **form}) for form in forms]


def combine(sizes: Sizes) -> list[Case]:
    local = int(sizes["n_routed_experts"]) // RANKS
    return [
        Case(
            {
                **exchange(sizes),
                "receive_counts": torch.ones(RANKS * local, dtype=torch.int32),
                "assist": torch.zeros(128 * 36, dtype=torch.int32),
            },
            {"R": 72},
        )
    ]


CASES: CaseTable = {
    "moe_gate_softmax": softmax,
    "moe_gate_sigmoid": sigmoid,
    "moe_gate_sqrt_softplus": sqrt_softplus,
    "moe_gate_hash": hashed,
    "moe_init_routing": init_routing,
    "moe_re_routing": re_routing,
    "moe_permute": lambda _: [Case(), Case(dtypes={"ids_TK": "int64"})],
    "moe_unpermute": unpermute,
    "moe_finalize_routing": finalize,
    "moe_dispatch": dispatch,
    "moe_combine": combine,
}
