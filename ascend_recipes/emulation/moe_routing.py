"""Emulated operators that sort rows by expert, on one rank or after an exchange."""

# Shapes: T tokens, H hidden, K experts a token, R = T x K rows, E experts of this rank

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_recipes.emulation.integer import quantize_rows
from ascend_recipes.emulation.refusal import (
    check,
    check_range,
    check_shape,
    check_unset,
)
from ascend_recipes.emulation.undefined import padded

EXPERT_LIMIT = 10240
PLAIN, DYNAMIC = -1, 1


def init_routing(
    x: Tensor,
    expert_idx: Tensor,
    *,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    x_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`npu::npu_moe_init_routing_v2`: rows copied and sorted by expert, with counts.

    Experts outside the active range have no rows: their index is -1 (gather) and the rows behind
    those of the active experts are undefined.
    """
    name = "npu_moe_init_routing_v2"
    check_unset(name, offset=offset, x_dtype=x_dtype)
    _check_modes(
        name,
        quant_mode=quant_mode,
        drop_pad_mode=drop_pad_mode,
        expert_tokens_num_type=expert_tokens_num_type,
        expert_tokens_num_flag=expert_tokens_num_flag,
        row_idx_type=row_idx_type,
    )
    tokens = _check_rows(name, x, expert_idx, quant_mode)
    check(0 < expert_num <= EXPERT_LIMIT, name, "expert_num", f"is {expert_num}", "1 to 10240")
    bounds = tuple(active_expert_range) or (0, expert_num)
    check(
        len(bounds) == 2 and 0 <= bounds[0] < bounds[1] <= expert_num,
        name,
        "active_expert_range",
        f"is {list(bounds)}",
        f"the bounds of a range within [0, {expert_num})",
    )
    first, last = bounds
    check_range(name, "expert_idx", expert_idx, 0, expert_num, "experts")
    check(active_num >= -1, name, "active_num", f"is {active_num}", "-1 or more")
    per_token = expert_idx.shape[1]
    flat = expert_idx.flatten().long()
    local = (flat >= first) & (flat < last)
    order = torch.where(local, flat, expert_num).sort(stable=True).indices
    active = int(local.sum())
    if 0 < active_num < active:
        active = active_num
    chosen = order[:active]
    rows = x[chosen // per_token]
    counts = torch.bincount(flat[local], minlength=expert_num)[first:last]
    if scale is not None:
        _check_scale(name, scale, x, quant_mode, last - first)
    values, scales = _rows(rows, flat[chosen] - first, scale, quant_mode, chosen // per_token)
    total = tokens * per_token
    index = _row_index(chosen, total, row_idx_type)
    return padded(values, total), index, counts, padded(scales, total)


def custom_init_routing(
    x: Tensor,
    expert_idx: Tensor,
    *,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = 0,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`_C_ascend::npu_moe_init_routing_custom`: the same."""
    return init_routing(
        x,
        expert_idx,
        scale=scale,
        offset=offset,
        active_num=active_num,
        expert_capacity=expert_capacity,
        expert_num=expert_num,
        drop_pad_mode=drop_pad_mode,
        expert_tokens_num_type=expert_tokens_num_type,
        expert_tokens_num_flag=expert_tokens_num_flag,
        quant_mode=quant_mode,
        active_expert_range=active_expert_range,
        row_idx_type=row_idx_type,
    )


def init_routing_meta(
    x: Tensor,
    expert_idx: Tensor,
    *,
    expert_num: int = -1,
    active_expert_range: Sequence[int] = (),
    quant_mode: int = -1,
    **_: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Shapes of both."""
    first, last = tuple(active_expert_range) or (0, expert_num)
    rows = expert_idx.numel()
    dtype = torch.int8 if quant_mode == DYNAMIC else x.dtype
    return (
        x.new_empty((rows, x.shape[1]), dtype=dtype),
        x.new_empty((rows,), dtype=torch.int32),
        x.new_empty((last - first,), dtype=torch.int64),
        x.new_empty((rows,), dtype=torch.float32),
    )


def re_routing(
    tokens: Tensor,
    expert_token_num_per_rank: Tensor,
    *,
    per_token_scales: Tensor | None = None,
    expert_token_num_type: int = 1,
    idx_type: int = 0,
    tokens_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`npu::npu_moe_re_routing`: rows sorted by source rank, then expert, to expert, then rank.

    The counts are [ranks, experts]. The third output says where each new row came from.
    """
    name = "npu_moe_re_routing"
    check_unset(name, tokens_dtype=tokens_dtype)
    check(tokens.dim() == 2, name, "tokens", f"has {tokens.dim()} dimensions", "2")
    counts = expert_token_num_per_rank
    check_shape(name, "expert_token_num_per_rank", counts, (None, None), "[ranks, experts]")
    check(expert_token_num_type == 1, name, "expert_token_num_type", "is 0", "1 (counts)")
    check(idx_type == 0, name, "idx_type", f"is {idx_type}", "0 (gather)")
    check_range(name, "expert_token_num_per_rank", counts, 0, 2**31, "counts")
    used = int(counts.sum())
    rows = tokens.shape[0]
    check(used <= rows, name, "expert_token_num_per_rank", f"sums to {used}", f"at most {rows}")
    sizes = counts.flatten().long()
    cell = torch.repeat_interleave(torch.arange(sizes.numel()), sizes)
    ranks, experts = counts.shape
    order = ((cell % experts) * ranks + cell // experts).sort(stable=True).indices
    moved = padded(tokens[order], rows)
    index = torch.full((rows,), -1, dtype=torch.int32)
    index[:used] = order.int()
    if per_token_scales is None:
        scales = torch.full((rows,), torch.nan)
    else:
        check_shape(name, "per_token_scales", per_token_scales, (rows,), "[rows]")
        scales = padded(per_token_scales[order], rows)
    return moved, scales, index, counts.sum(dim=0, dtype=counts.dtype)


def re_routing_meta(
    tokens: Tensor,
    expert_token_num_per_rank: Tensor,
    *,
    per_token_scales: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Shapes of `npu_moe_re_routing`."""
    rows = tokens.shape[0]
    scales = tokens.new_empty((rows,), dtype=torch.float32)
    counts = expert_token_num_per_rank
    return (
        torch.empty_like(tokens),
        scales if per_token_scales is None else torch.empty_like(per_token_scales),
        tokens.new_empty((rows,), dtype=torch.int32),
        counts.new_empty((counts.shape[1],)),
    )


def _check_modes(
    name: str,
    *,
    quant_mode: int,
    drop_pad_mode: int,
    expert_tokens_num_type: int,
    expert_tokens_num_flag: bool,
    row_idx_type: int,
) -> None:
    check(quant_mode in (PLAIN, DYNAMIC), name, "quant_mode", f"is {quant_mode}", "-1, 1 (dynamic)")
    check(drop_pad_mode == 0, name, "drop_pad_mode", f"is {drop_pad_mode}", "0 (dropless)")
    check(
        expert_tokens_num_type == 1,
        name,
        "expert_tokens_num_type",
        f"is {expert_tokens_num_type}",
        "1 (counts; pairs are not emulated)",
    )
    check(expert_tokens_num_flag, name, "expert_tokens_num_flag", "is False", "True")
    check(
        row_idx_type in (0, 1),
        name,
        "row_idx_type",
        f"is {row_idx_type}",
        "0 (gather), 1 (scatter)",
    )


def _check_rows(name: str, x: Tensor, expert_idx: Tensor, quant_mode: int) -> int:
    check(x.dim() == 2, name, "x", f"has {x.dim()} dimensions", "2 ([rows, hidden])")
    check_shape(name, "expert_idx", expert_idx, (x.shape[0], None), "[rows, k]")
    if x.dtype == torch.int8:
        check(quant_mode == PLAIN, name, "quant_mode", f"is {quant_mode} for int8 x", "-1")
    return x.shape[0]


def _check_scale(name: str, scale: Tensor, x: Tensor, quant_mode: int, active: int) -> None:
    rows, hidden = x.shape
    if quant_mode == PLAIN:
        check_shape(name, "scale", scale, (rows,), "[rows]")
        return
    check_shape(name, "scale", scale, (None, hidden), "[1 or active experts, hidden]")
    experts = scale.shape[0]
    check(experts in (1, active), name, "scale", f"is of {experts} experts", f"1 or {active}")


def _rows(
    rows: Tensor, expert: Tensor, scale: Tensor | None, quant_mode: int, token: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows as they leave, and one scale a row: computed, copied from the token, or none."""
    if quant_mode == PLAIN:
        return rows, torch.empty(0) if scale is None else scale[token]
    wide = rows.float()
    if scale is not None:
        wide = wide * (scale[expert] if scale.shape[0] > 1 else scale)
    return quantize_rows(wide)


def _row_index(chosen: Tensor, rows: int, row_idx_type: int) -> Tensor:
    index = torch.full((rows,), -1, dtype=torch.int32)
    if row_idx_type == 1:
        index[: chosen.shape[0]] = chosen.int()
    else:
        index[chosen] = torch.arange(chosen.shape[0], dtype=torch.int32)
    return index
