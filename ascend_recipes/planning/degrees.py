"""Which parallel degrees are legal for a model, and how groups count their ranks."""

from collections.abc import Iterable, Sequence
from math import gcd, lcm


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    return tuple(n for n in range(1, number + 1) if number % n == 0)


def legal_tp(split_sizes: Iterable[int], dies: int) -> tuple[int, ...]:
    """Tensor-parallel sizes that divide every kind of head and fit the dies.

    Args:
        split_sizes: numbers of heads (or groups of heads) that must be split evenly.
        dies: devices there are.
    """
    return tuple(n for n in divisors(gcd(*split_sizes)) if n <= dies)


def legal_dp(dies: int, tp: int, pp: int = 1) -> tuple[int, ...]:
    """Data-parallel sizes that fit the dies beside tensor and pipeline parallelism."""
    return tuple(range(1, dies // (tp * pp) + 1))


def legal_ep(experts: int, dies: int) -> tuple[int, ...]:
    """Numbers of ranks over which experts (replicas included) spread evenly."""
    return tuple(n for n in divisors(experts) if n <= dies)


def legal_redundant(experts: int, ep: int, most: int) -> tuple[int, ...]:
    """Numbers of extra replicas, at most `most`, that keep experts even over `ep` ranks."""
    return tuple(n for n in range(most + 1) if (experts + n) % ep == 0)


def legal_dcp(attention: str, tp: int, kv_heads: int) -> tuple[int, ...]:
    """Decode-context-parallel sizes under runtime vllm_ascend.

    Sources, at 182b75ea: platform.py:1440-1459 (grouped queries: tp above the kv heads, dcp at most
    tp over kv heads), 1392-1396 (sparse latent attention: dcp equals tp). Compressed attention has
    none: the connector and the second runner refuse it.

    Args:
        attention: kind of the recipe's attention section.
        tp: tensor-parallel size.
        kv_heads: key-value heads of the model.
    """
    if attention == "sfa":
        return (1, tp) if tp > 1 else (1,)
    if attention == "dsa":
        return (1,)
    shared = tp if attention == "mla" else tp // kv_heads
    return divisors(shared) if shared > 1 else (1,)


def prefix_alignment(block_tokens: Sequence[int], dcp: int = 1) -> int:
    """Tokens in whose multiples a cached prefix can be found: a block of every group ends there.

    Both runtimes: vllm/v1/core/kv_cache_utils.py (resolve_kv_cache_block_sizes), vllm-ascend
    patch_kv_cache_utils.py:43-56.
    """
    return lcm(*block_tokens) * dcp


def hash_tokens(block_tokens: Sequence[int]) -> int:
    """Tokens that one hash covers: the largest number that divides every block."""
    return gcd(*block_tokens)


def dispatch_groups(*, tp: int, dp: int, pp: int) -> tuple[tuple[int, ...], ...]:
    """Ranks of every expert-exchange group: all of a pipeline stage, data-parallel first.

    Ranks count tp fastest, then pp, then dp. Dynamic load balancing has a communicator of its own
    over the same ranks (vllm-ascend distributed/parallel_state.py:21-134).
    """
    stage = tp * pp
    return tuple(
        tuple(d * stage + p * tp + t for d in range(dp) for t in range(tp)) for p in range(pp)
    )


balancing_groups = dispatch_groups


def fine_grained_groups(size: int, *, tp: int, dp: int) -> tuple[tuple[int, ...], ...]:
    """Ranks of the groups of an own tensor-parallel size (o_proj, lm_head, embedding, mlp).

    `size` neighbours along data parallelism at one tensor-parallel index. Only without pipeline
    stages: vllm-ascend lays these groups on the grid (pp, dp, tp), all others on (dp, pp, tp).

    Raises:
        ValueError: `size` does not divide `dp`.
    """
    if dp % size:
        raise ValueError(f"groups of {size} do not divide {dp} data-parallel replicas")
    return tuple(
        tuple((first + d) * tp + t for d in range(size))
        for first in range(0, dp, size)
        for t in range(tp)
    )
