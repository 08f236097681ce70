"""What a device holds besides weights and caches: ranges, because nobody has measured them here.

Every number says where it comes from. The bounds are arithmetic over sizes of the recipe with
assumed factors; only the communication buffers follow documented sizes.
"""

from typing import NamedTuple

from ascend_recipes.memory.parameters import Sizes, expert_count
from ascend_recipes.memory.views import RoleView

NOT_MEASURED = "not measured"

_MIB = 2**20
_GIB = 2**30

_DATA_BUFFER_MIB = 50
"""Least buffer of the data-parallel group under vllm-ascend (utils.py:968-1005 at 182b75ea)."""

_BALANCING_BUFFER_MIB = 100
"""Buffer of the load-balancing group under vllm-ascend."""

_CONTEXT_GIB = (1.0, 3.0)
_GRAPH_MIB = (8, 64)


class MemoryRange(NamedTuple):
    """Bytes of one device, between two bounds."""

    name: str
    low: int
    high: int
    source: str
    """Where the bounds come from."""
    label: str = NOT_MEASURED


def overheads(view: RoleView) -> tuple[MemoryRange, ...]:
    """Activations, graphs, communication buffers and the process's own share of one device."""
    low, high = (int(size * _GIB) for size in _CONTEXT_GIB)
    context = MemoryRange("driver and libraries", low, high, "assumed, 1 to 3 GiB a process")
    return (_activations(view), _graphs(view), _communication(view), context)


def _activations(view: RoleView) -> MemoryRange:
    """Peak of a step: a few copies of the residual, the widest inner tensor, and the logits."""
    sizes, recipe = Sizes(view.config), view.recipe
    hidden, tp = sizes["hidden_size"], recipe.parallel.tp
    streams = sizes.first("hc_mult", default=1)
    if expert_count(sizes):
        top = sizes.first("num_experts_per_tok", "num_experts_per_token")
        routed = sizes.first("routed_expert_hidden_size", default=hidden)
        inner = top * (routed + 2 * sizes["moe_intermediate_size"])
    else:
        inner = 2 * sizes.first("intermediate_size") // tp
    width = 2 * (2 * hidden * streams + inner)
    rows = recipe.scheduler.max_num_seqs * (1 + view.draft_tokens)
    logits = rows * sizes["vocab_size"] * 4
    low = recipe.scheduler.max_num_batched_tokens * width + logits // tp
    high = recipe.scheduler.max_num_batched_tokens * width * 3 + logits * 3
    return MemoryRange("activations", low, high, "1 to 3 copies of the widest tensors of a step")


def _graphs(view: RoleView) -> MemoryRange:
    graph = view.recipe.graph
    if graph.kind == "none":
        return MemoryRange("graphs", 0, 0, "no graphs", label="exact")
    from ascend_recipes.planning.capture import default_capture_sizes

    count = len(graph.capture_sizes) or len(
        default_capture_sizes(view.recipe.scheduler.max_num_seqs, 1 + view.draft_tokens)
    )
    low, high = (count * size * _MIB for size in _GRAPH_MIB)
    return MemoryRange("graphs", low, high, f"assumed, 8 to 64 MiB for each of {count} sizes")


def _communication(view: RoleView) -> MemoryRange:
    """Buffers of every communicator, once or twice: one for sending, one for receiving.

    vllm-ascend leaves HCCL's own size to every group but the small ones.
    """
    recipe = view.recipe
    parallel = recipe.parallel
    given, default = recipe.env.get("HCCL_BUFFSIZE", ""), view.buffer_mib
    # Anything but a number is a finding of its own (env.number), which must be able to come.
    chosen = int(given) if given.isdecimal() else default
    buffers = []
    if parallel.tp > 1:
        buffers.append(default)
    if parallel.dp > 1:
        buffers.append(_DATA_BUFFER_MIB)
    if parallel.pp > 1:
        buffers.append(default)
    if parallel.ep:
        buffers += [default, chosen]
    if recipe.moe.load_balancing == "dynamic":
        buffers.append(_BALANCING_BUFFER_MIB)
    size = sum(buffers) * _MIB
    listed = " + ".join(map(str, buffers)) or "no"
    return MemoryRange("HCCL and dispatch buffers", size, 2 * size, f"{listed} MB, once or twice")
