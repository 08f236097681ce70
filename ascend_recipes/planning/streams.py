"""How many graphs fit the stream pool of a device.

The formula is history: vllm-ascend carried it as `update_aclgraph_sizes` from 0.12 and removed it
in 2026 (#9962), because drivers from HDK 25.5.1 keep graphs out of the pool of 2048 streams
(docs/source/developer_guide/feature_guide/ACL_Graph.md:61, release notes). It is right for older
drivers only, and says so.
"""

from dataclasses import dataclass

STREAM_POOL = 2048
"""Streams of a device before HDK 25.5.1."""

STREAM_LIMIT = 1800
"""What the formula gives to graphs; 248 stay for everything else."""

FORMULA = "vllm-ascend 0.12 to 2026-08, update_aclgraph_sizes"
HOLDS_FOR = "drivers before HDK 25.5.1"


@dataclass(frozen=True, kw_only=True)
class StreamDemand:
    """What occupies streams besides the number of capture sizes."""

    layers: int
    draft_layers: int = 0
    dp: int = 1
    tp: int = 1
    expert_parallel: bool = False
    moe: bool = False
    side_stream: bool = False
    """The shared expert runs beside the routed ones."""
    context_parallel: bool = False
    vector_expansion: bool = False
    """Collectives run on vector cores (HCCL_OP_EXPANSION_MODE=AIV)."""


@dataclass(frozen=True)
class StreamBudget:
    """Most capture sizes, and for what the number holds."""

    max_sizes: int
    formula: str = FORMULA
    holds_for: str = HOLDS_FOR


def stream_budget(demand: StreamDemand) -> StreamBudget:
    """Most capture sizes that the stream pool holds, by the historical formula."""
    limit = STREAM_LIMIT - (100 if demand.context_parallel else 0)
    resources = demand.layers + 1 + (demand.draft_layers + 1 if demand.draft_layers else 0)
    communicators = (demand.dp > 1) + (demand.tp > 1)
    if demand.vector_expansion:
        factor = 1 + communicators + demand.expert_parallel + demand.side_stream
        factor += demand.moe and demand.dp > 1
        return StreamBudget(limit // resources // factor)
    return StreamBudget((limit - communicators * 40) // resources // (1 + communicators * 2))
