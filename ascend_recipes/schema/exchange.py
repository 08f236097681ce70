"""Limits of the exchange of experts that a runtime itself knows, apart from the operators' own."""

from ascend_recipes.schema.base import Count, Name, Spec


class DispatchNeeds(Spec):
    """What a generation asks for before it dispatches; otherwise it gathers."""

    ranks: Count
    """Fewest ranks."""
    experts_per_rank: Count
    """Most experts of a rank."""


class FusedLimits(Spec):
    """Limits of a fused operator: dispatch, feed-forward and combine in one."""

    ranks: Count
    tokens_per_rank: Count


class WideLimits(FusedLimits):
    """Limits of the fused operator of Python package `cann_ops_transformer`."""

    hidden: tuple[Count, Count]
    """Least and largest width of what is dispatched."""
    intermediate: tuple[Count, Count]
    """Least and largest inner width of an expert."""
    multiple: Count
    """Both widths are multiples of it."""
    formats: tuple[Name, ...]
    """Rows of `registry/quantization` that it takes."""


class ExchangeLimits(Spec):
    """By what numbers a runtime chooses how experts get their tokens."""

    tokens_per_rank: Count
    """Most tokens of a rank for which it dispatches."""
    dispatch_needs: dict[Name, DispatchNeeds]
    """By generation; a generation without an entry asks for nothing."""
    hierarchical_experts: Count
    """Most experts, replicas included, of the exchange in two levels."""
    received_tokens: Count
    """Tokens that a rank may receive in a fused operator unless told otherwise."""
    fused: FusedLimits
    wide: WideLimits
