"""One rank of the exchange tests: `python exchange_worker.py folder rank world`.

Runs every case through binding and reference over gloo and saves what it saw.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from ascend_recipes.emulation import install
from ascend_recipes.ops import moe_exchange
from ascend_recipes.ops.reference import moe_exchange as reference_exchange


@dataclass(frozen=True)
class ExchangeCase:
    """One layer's worth of tokens on every rank."""

    name: str
    tokens: tuple[int, ...]
    """Tokens of rank r at r modulo the length."""
    top_k: int
    experts_a_rank: int
    hidden: int = 1024
    dtype: str = "bfloat16"
    popular: int | None = None
    """Only experts below this number are ever chosen."""
    padded: int = 0
    """Inactive tokens behind the real ones."""
    idle_rank: int | None = None
    """A rank that has no active token."""
    quantize: bool = False
    cumulative: bool = False
    tensor_group: bool = False
    """Name a tensor-parallel group of one rank, as A3 and A5 want it."""


CASES = (
    ExchangeCase("even", (4,), 2, 2),
    ExchangeCase("uneven", (1, 7, 3, 5), 3, 3, dtype="float16", cumulative=True),
    ExchangeCase("one rank serves all", (5, 2), 2, 4, popular=3),
    ExchangeCase("padded", (3, 6), 2, 2, padded=2, cumulative=True),
    ExchangeCase("idle", (4, 3), 2, 2, padded=1, idle_rank=1),
    ExchangeCase("int8", (6, 2, 9), 4, 4, quantize=True, hidden=1056),
    ExchangeCase("small and float32", (3, 5), 2, 3, hidden=24, dtype="float32"),
    ExchangeCase("all experts", (2, 3), 6, 3),
    ExchangeCase("tensor group", (4, 2), 2, 2, tensor_group=True),
)


def draw(case: ExchangeCase, rank: int, world: int) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(100 * rank + world)
    tokens = case.tokens[rank % len(case.tokens)] + case.padded
    x = torch.randn(tokens, case.hidden, generator=generator).to(getattr(torch, case.dtype))
    experts = case.popular or case.experts_a_rank * world
    # Low numbers are popular, so that some experts have nothing to do.
    favour = torch.rand(tokens, experts, generator=generator) * torch.linspace(2, 0.1, experts)
    ids = favour.topk(case.top_k, dim=1).indices.int()
    weights = torch.rand(tokens, case.top_k, generator=generator)
    active = None
    if case.padded:
        real = 0 if rank == case.idle_rank else tokens - case.padded
        active = torch.arange(tokens) < real
    return {"x": x, "ids": ids, "weights": weights, "active": active}


def experts_of_rows(case: ExchangeCase, group_list: torch.Tensor) -> torch.Tensor:
    counts = group_list.diff(prepend=group_list.new_zeros(1)) if case.cumulative else group_list
    return torch.repeat_interleave(torch.arange(case.experts_a_rank), counts)


def run(case: ExchangeCase, module, suffix: str, item, rank: int, world: int, group: str):
    """Dispatch, multiply the rows of expert g by g + 1, combine."""
    dispatch, combine = (vars(module)[f"moe_{name}{suffix}"] for name in ("dispatch", "combine"))
    most = max(case.tokens[index % len(case.tokens)] for index in range(world)) + case.padded
    place = {
        "group": group,
        "world_size": world,
        "rank": rank,
        "num_experts": case.experts_a_rank * world,
        "active_T": item["active"],
        "global_batch": most * world,
        "tensor_group": group if case.tensor_group else "",
    }
    options = {"quantize": case.quantize, "cumulative": case.cumulative}
    found = dispatch(item["x"], item["ids"], **place, **options)
    rows, scale, assist, group_list, counts = found
    owner = experts_of_rows(case, group_list) + rank * case.experts_a_rank
    factor = torch.full((rows.shape[0],), torch.nan)
    factor[: owner.shape[0]] = owner.float() + 1
    opened = rows.float() * scale[:, None] if case.quantize else rows.float()
    served = (opened * factor[:, None]).to(item["x"].dtype)
    y = combine(served, item["ids"], item["weights"], assist, counts, **place)
    return {"dispatched": found, "y": y}


def main(folder: str, rank: int, world: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    group = moe_exchange.communicator_name(dist.group.WORLD)
    results = {}
    for case in CASES:
        install({"dtype.float32", "shape.small"} if case.dtype == "float32" else ())
        item = draw(case, rank, world)
        results[case.name] = {
            "case": asdict(case),
            **item,
            "binding": run(case, moe_exchange, "_npu", item, rank, world, group),
            "reference": run(case, reference_exchange, "", item, rank, world, group),
        }
    torch.save(results, Path(folder) / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
