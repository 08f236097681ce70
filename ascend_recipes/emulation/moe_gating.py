"""Emulated operators that choose experts."""

# Shapes: T tokens, G experts, K chosen experts

import torch
from torch import Tensor

from ascend_recipes.emulation.limits import check_limit
from ascend_recipes.emulation.refusal import (
    OperatorRefusedError,
    check,
    check_range,
    check_same_dtype,
    check_shape,
)

SOFTMAX, SIGMOID, SQRT_SOFTPLUS = 0, 1, 2
BY_LARGEST, BY_TWO_LARGEST = 0, 1
EXPERT_LIMIT = 2048
TORCH_NPU = "npu_moe_gating_top_k"
HASH = "moe_gating_top_k_hash"


def gating_top_k(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    input_ids: Tensor | None = None,
    tid2eid: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:
    """`npu::npu_moe_gating_top_k`: scores, group and expert selection, normalized weights."""
    name = TORCH_NPU
    kinds = (SOFTMAX, SIGMOID)
    check(norm_type in kinds, name, "norm_type", f"is {norm_type}", "0 (softmax), 1 (sigmoid)")
    return _gate(
        name,
        x,
        k,
        bias=bias,
        hashed=_hashed(name, x, k, input_ids, tid2eid),
        groups=(k_group, group_count, group_select_mode),
        renorm=renorm,
        norm_type=norm_type,
        out_flag=out_flag,
        scaling=routed_scaling_factor,
        eps=eps,
    )


def custom_gating_top_k(
    x: Tensor,
    k: int,
    k_group: int,
    group_count: int,
    group_select_mode: int,
    renorm: int,
    norm_type: int,
    out_flag: bool,
    routed_scaling_factor: float,
    eps: float,
    bias_opt: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`_C_ascend::moe_gating_top_k`: the same without hashing."""
    name = "moe_gating_top_k"
    kinds = (SOFTMAX, SIGMOID)
    check(norm_type in kinds, name, "norm_type", f"is {norm_type}", "0 (softmax), 1 (sigmoid)")
    return _gate(
        name,
        x,
        k,
        bias=bias_opt,
        hashed=None,
        groups=(k_group, group_count, group_select_mode),
        renorm=renorm,
        norm_type=norm_type,
        out_flag=out_flag,
        scaling=routed_scaling_factor,
        eps=eps,
    )


def gating_top_k_hash(
    x: Tensor,
    k: int,
    bias: Tensor | None = None,
    input_ids: Tensor | None = None,
    tid2eid: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """`_C_ascend::moe_gating_top_k_hash`: also square-root-softplus scores, and table look-up."""
    name = HASH
    check_limit(f"_C_ascend::{HASH}", "tokens", "x", x.shape[0], "has tokens:")
    check(
        norm_type in (SOFTMAX, SIGMOID, SQRT_SOFTPLUS),
        name,
        "norm_type",
        f"is {norm_type}",
        "0 (softmax), 1 (sigmoid), 2 (square root of softplus)",
    )
    check(
        norm_type != SQRT_SOFTPLUS or group_count == 1,
        name,
        "group_count",
        f"is {group_count}",
        "1 with norm_type 2",
    )
    return _gate(
        name,
        x,
        k,
        bias=bias,
        hashed=_hashed(name, x, k, input_ids, tid2eid),
        groups=(k_group, group_count, group_select_mode),
        renorm=renorm,
        norm_type=norm_type,
        out_flag=out_flag,
        scaling=routed_scaling_factor,
        eps=eps,
    )


def gating_meta(x: Tensor, k: int, *_: object, **__: object) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes of the three."""
    rows, experts = x.shape
    return (
        x.new_empty((rows, k)),
        x.new_empty((rows, k), dtype=torch.int32),
        x.new_empty((rows, experts), dtype=torch.float32),
    )


def gating_top_k_softmax(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """`npu::npu_moe_gating_top_k_softmax`: the k largest of a softmax, without renormalization.

    Finished rows get the expert number G; the third output numbers rows slot by slot.
    """
    name = "npu_moe_gating_top_k_softmax"
    check(x.dim() in (2, 3), name, "x", f"has {x.dim()} dimensions", "2 or 3")
    experts = x.shape[-1]
    check(0 < k <= min(experts, 1024), name, "k", f"is {k}", f"1 to {min(experts, 1024)}")
    values, ids = x.float().softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    values, ids = values[..., :k], ids[..., :k]
    if finished is not None:
        check_shape(name, "finished", finished, tuple(x.shape[:-1]), "[rows of x]")
        ids = ids.masked_fill(finished.unsqueeze(-1), experts)
    rows = values.numel() // k
    numbers = torch.arange(rows * k, dtype=torch.int32).view(k, rows).t()
    return values.to(x.dtype), ids.int(), numbers.reshape(values.shape).contiguous()


def gating_top_k_softmax_meta(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes of `npu_moe_gating_top_k_softmax`."""
    shape = (*x.shape[:-1], k)
    ids = x.new_empty(shape, dtype=torch.int32)
    return x.new_empty(shape), ids, torch.empty_like(ids)


def _gate(
    name: str,
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None,
    hashed: Tensor | None,
    groups: tuple[int, int, int],
    renorm: int,
    norm_type: int,
    out_flag: bool,
    scaling: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_gate(name, x, k, bias, groups)
    check(renorm == 0, name, "renorm", f"is {renorm}", "0")
    check(eps > 0, name, "eps", f"is {eps}", "positive")
    check(scaling > 0, name, "routed_scaling_factor", f"is {scaling}", "positive")
    scores = _scores(x.float(), norm_type)
    ids = hashed if hashed is not None else _choose(scores, bias, k, groups)
    weights = scores.gather(1, ids)
    if norm_type != SOFTMAX:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + eps)
    normed = scores if out_flag else torch.full_like(scores, torch.nan)
    return (weights * scaling).to(x.dtype), ids.int(), normed


def _check_gate(
    name: str, x: Tensor, k: int, bias: Tensor | None, groups: tuple[int, int, int]
) -> None:
    kept, count, mode = groups
    check(x.dim() == 2, name, "x", f"has {x.dim()} dimensions", "2 ([tokens, experts])")
    experts = x.shape[1]
    fits = 1 <= experts <= EXPERT_LIMIT
    check(fits, name, "x", f"has {experts} experts", f"1 to {EXPERT_LIMIT}")
    check(
        count > 0 and experts % count == 0,
        name,
        "group_count",
        f"is {count}",
        f"a divisor of {experts} experts",
    )
    size = experts // count
    least = _smallest_group(name, count, mode)
    check(
        size >= least,
        name,
        "group_count",
        f"leaves {size} experts a group",
        f"at least {least}",
    )
    aligned = -(-size // 32) * 32 * count
    check(
        aligned <= EXPERT_LIMIT,
        name,
        "group_count",
        f"needs {aligned} places (groups aligned to 32)",
        f"at most {EXPERT_LIMIT}",
    )
    check(1 <= kept <= count, name, "k_group", f"is {kept}", f"1 to {count}")
    check(1 <= k <= kept * size, name, "k", f"is {k}", f"1 to {kept * size}, experts of the groups")
    check(mode in (BY_LARGEST, BY_TWO_LARGEST), name, "group_select_mode", f"is {mode}", "0, 1")
    if bias is not None:
        check_same_dtype(name, x, bias=bias)
        check_shape(name, "bias", bias, (experts,), "[experts]")


def _smallest_group(name: str, count: int, mode: int) -> int:
    """Experts that a group has at least."""
    if name == TORCH_NPU:
        return 3 if count > 1 else 1
    return 2 if mode == BY_TWO_LARGEST else 1


def _scores(x: Tensor, norm_type: int) -> Tensor:
    if norm_type == SOFTMAX:
        return x.softmax(dim=-1)
    if norm_type == SIGMOID:
        return 1.0 / (1.0 + torch.exp(-x))
    # log(1 + exp(x)) without overflow.
    return (x.clamp(min=0.0) + torch.log1p(torch.exp(-x.abs()))).sqrt()


def _choose(scores: Tensor, bias: Tensor | None, k: int, groups: tuple[int, int, int]) -> Tensor:
    kept, count, mode = groups
    ranked = scores if bias is None else scores + bias.float()
    if kept < count:
        grouped = ranked.view(ranked.shape[0], count, -1)
        strength = grouped.topk(2 if mode == BY_TWO_LARGEST else 1, dim=-1).values.sum(dim=-1)
        best = strength.sort(dim=-1, descending=True, stable=True).indices[:, :kept]
        open_groups = torch.zeros_like(strength, dtype=torch.bool).scatter_(1, best, value=True)
        ranked = grouped.masked_fill(~open_groups.unsqueeze(-1), -torch.inf).flatten(1)
    return ranked.sort(dim=-1, descending=True, stable=True).indices[:, :k]


def _hashed(
    name: str, x: Tensor, k: int, input_ids: Tensor | None, table: Tensor | None
) -> Tensor | None:
    """Experts that the table lists for each token."""
    if input_ids is None and table is None:
        return None
    if input_ids is None or table is None:
        raise OperatorRefusedError(
            name, "input_ids", "or tid2eid is missing", "both of them or neither"
        )
    check_shape(name, "input_ids", input_ids, (x.shape[0],), "[tokens]")
    check_shape(name, "tid2eid", table, (None, k), "[vocabulary, k]")
    check_range(name, "input_ids", input_ids, 0, table.shape[0], "rows of tid2eid")
    ids = table[input_ids.long()].long()
    check_range(name, "tid2eid", ids, 0, x.shape[1], "experts")
    return ids
