"""How experts get their tokens under runtime vllm_ascend, and what the window for it must hold.

How a method is chosen is read from vllm-ascend at 182b75ea; the numbers stand in its row of
`registry/runtimes`. The native runtime decides for itself; this says nothing about it, except for
the window: that is the operator's own need.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.exchange import ExchangeLimits

RUNTIME = "vllm_ascend"
"""The runtime whose choice `communication_method` replays."""

Method: TypeAlias = Literal["none", "allgather", "alltoall", "mc2", "fused_mc2"]

_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class ExpertLayout:
    """Sizes of a mixture of experts and how it is spread."""

    hardware: str
    experts: int
    """Routed experts, replicas included; 0 for a dense model."""
    top_k: int
    hidden: int
    """Width of what is dispatched."""
    intermediate: int = 0
    """Inner width of an expert."""
    shared: int = 0
    """Shared experts that take part in the exchange."""
    ep: int = 1
    """Ranks over which experts are spread; 1 without expert parallelism."""
    tp: int = 1
    fused: bool = False
    """The recipe asks for the fused operator."""
    wide: bool = False
    """Python package `cann_ops_transformer` is installed: the wide fused operator exists."""
    lora: bool = False
    quantization: str = "bf16"


def expert_layout(resolved: ResolvedRecipe, *, wide: bool = False) -> ExpertLayout:
    """The mixture of experts of a recipe and how it is spread.

    Args:
        resolved: the recipe.
        wide: whether Python package `cann_ops_transformer` is installed where it will run.
    """
    recipe, config = resolved.recipe, resolved.config

    def size(*fields: str) -> int:
        found = next((config[name] for name in fields if name in config), 0)
        return found if isinstance(found, int) else 0

    parallel, experts = recipe.parallel, size("n_routed_experts", "num_experts")
    return ExpertLayout(
        hardware=recipe.hardware,
        experts=experts + recipe.moe.redundant_experts if experts else 0,
        top_k=size("num_experts_per_tok", "num_experts_per_token"),
        hidden=size("routed_expert_hidden_size", "hidden_size"),
        intermediate=size("moe_intermediate_size"),
        ep=parallel.tp * parallel.dp if parallel.ep else 1,
        tp=parallel.tp,
        fused=recipe.moe.fused_communication,
        wide=wide,
        quantization=resolved.checkpoint.format,
    )


@dataclass(frozen=True)
class Choice:
    """A communication method and the rule that picked it."""

    method: Method
    because: str
    runtime: str = RUNTIME


def wide_operator_fits(layout: ExpertLayout, limits: ExchangeLimits) -> bool:
    """Whether the wide fused operator takes these shapes (ascend_config.py:401-450)."""
    wide = limits.wide
    sizes = ((layout.hidden, wide.hidden), (layout.intermediate, wide.intermediate))
    shaped = all(low <= size <= high and not size % wide.multiple for size, (low, high) in sizes)
    return layout.wide and layout.quantization in wide.formats and shaped


def token_capacity(layout: ExpertLayout, max_tokens: int, limits: ExchangeLimits) -> int:
    """Tokens of a replica for which experts dispatch (ascend_forward_context.py:176-200).

    Args:
        layout: experts and their spread.
        limits: numbers of the runtime.
        max_tokens: largest capture size; or requests times tokens each without graphs; or the
            tokens of a step where prefill dispatches too.
    """
    fused = limits.wide if layout.wide else limits.fused
    limit = fused.tokens_per_rank if layout.fused else limits.tokens_per_rank
    return min(-(-max_tokens // layout.tp), limit) * layout.tp


def communication_method(
    layout: ExpertLayout, tokens: int, capacity: int, limits: ExchangeLimits
) -> Choice:
    """The method for a step of `tokens` tokens (ascend_forward_context.py:290-345)."""
    if not layout.experts:
        return Choice("none", "dense model")
    if layout.ep == 1:
        return Choice("allgather", "experts are not spread over ranks")
    if layout.lora:
        return Choice("alltoall", "adapters with expert parallelism")
    return _BY_HARDWARE[layout.hardware](layout, tokens <= capacity, limits)


def meets_needs(layout: ExpertLayout, limits: ExchangeLimits) -> bool:
    """Whether ranks and experts of each are what the generation asks for before it dispatches."""
    needs = limits.dispatch_needs.get(layout.hardware)
    each = layout.experts // layout.ep
    return needs is None or (layout.ep >= needs.ranks and each <= needs.experts_per_rank)


def _on_a2(layout: ExpertLayout, fits: bool, limits: ExchangeLimits) -> Choice:
    if fits and meets_needs(layout, limits):
        return Choice("mc2", f"{layout.experts // layout.ep} experts a rank, {layout.ep} ranks")
    return Choice("allgather", "above capacity, too few ranks, or too many experts of a rank")


def _on_a3(layout: ExpertLayout, fits: bool, limits: ExchangeLimits) -> Choice:
    if layout.fused and (not layout.wide or wide_operator_fits(layout, limits)):
        most = (limits.wide if layout.wide else limits.fused).ranks
        if layout.ep <= most:
            return Choice("fused_mc2", f"fused operator, at most {most} ranks")
    if fits:
        return Choice("mc2", "within capacity")
    return Choice("alltoall", "above the dispatch operator's capacity")


def _on_a5(layout: ExpertLayout, fits: bool, _limits: ExchangeLimits) -> Choice:
    if fits:
        return Choice("mc2", "within capacity")
    if layout.ep <= layout.top_k:
        return Choice("allgather", "no more ranks than experts of a token")
    return Choice("alltoall", "above the dispatch operator's capacity")


def _on_310p(_layout: ExpertLayout, _fits: bool, _limits: ExchangeLimits) -> Choice:
    return Choice("allgather", "the only method of this generation")


_BY_HARDWARE = {"a2": _on_a2, "a3": _on_a3, "a5": _on_a5, "310p": _on_310p}


def window_mib(layout: ExpertLayout, tokens_per_rank: int, *, hierarchical: bool = False) -> int:
    """Least HCCL_BUFFSIZE in MiB for the dispatch and combine operators.

    The formulas are those of the operators' documentation (torch_npu, npu_moe_distribute_dispatch);
    they reproduce 608 MiB for 512 tokens, 2 ranks, 64 local experts, top-8, width 2048, where the
    operator itself asked for 609 (vllm-ascend issue 5287).
    """
    local = layout.experts // layout.ep
    row = 2 * layout.hidden
    if layout.hardware == "a2" and hierarchical:
        blocks = layout.experts + layout.ep // 4
        size = blocks * _up(tokens_per_rank * (row + 16 * _up(layout.top_k, 8)), 512) + 8 * _MIB
    elif layout.hardware == "a2":
        exchanged = tokens_per_rank * layout.ep * min(local, layout.top_k) * row
        size = 2 * (exchanged + 2 * _MIB)
    else:
        sent = local * tokens_per_rank * layout.ep * _up(_up(row, 32) + 64, 512)
        returned = (layout.top_k + layout.shared) * tokens_per_rank * _up(row, 512)
        size = 2 * (sent + returned)
    return -(-size // _MIB)


def fused_window_mib(layout: ExpertLayout, tokens_per_rank: int) -> int:
    """Least HCCL_BUFFSIZE in MiB for the fused operator.

    Source: vllm-ascend csrc/mc2/dispatch_ffn_combine/op_host/dispatch_ffn_combine_tiling.cpp:283.
    """
    size = tokens_per_rank * layout.hidden * layout.top_k * 3
    return -(-size // _MIB) + 10


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
