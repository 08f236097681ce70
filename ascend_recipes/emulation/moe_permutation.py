"""Emulated operators that permute rows to experts and bring them back."""

# Shapes: T tokens, H hidden, K experts a token, R = T x K rows

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_recipes.emulation.limits import check_limit
from ascend_recipes.emulation.refusal import (
    check,
    check_range,
    check_same_dtype,
    check_shape,
    check_unset,
)

INDEX_LIMIT = 16777215
BYTE_EXPERTS = 10240
"""Experts that int8 tokens can go to (A5)."""


def token_permute(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """`npu::npu_moe_token_permute`: rows sorted by expert, and where each copy went."""
    name = "npu_moe_token_permute"
    check(not padded_mode, name, "padded_mode", "is True", "False")
    check(tokens.dim() == 2, name, "tokens", f"has {tokens.dim()} dimensions", "2")
    check(indices.dim() in (1, 2), name, "indices", f"has {indices.dim()} dimensions", "1 or 2")
    check(
        indices.shape[0] == tokens.shape[0],
        name,
        "indices",
        f"has {indices.shape[0]} rows",
        f"{tokens.shape[0]}, as tokens",
    )
    per_token = indices.shape[1] if indices.dim() == 2 else 1
    check_limit(f"npu::{name}", "experts_of_a_token", "indices", per_token, "names")
    check(indices.numel() < INDEX_LIMIT, name, "indices", "is too long", f"below {INDEX_LIMIT}")
    largest = BYTE_EXPERTS if tokens.dtype == torch.int8 else INDEX_LIMIT
    check_range(name, "indices", indices, 0, largest, "experts")
    order = indices.flatten().sort(stable=True).indices
    kept = order[:num_out_tokens] if num_out_tokens else order
    return tokens[kept // per_token], order.argsort().int()


def token_permute_meta(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """Shapes of `npu_moe_token_permute`."""
    rows, wanted = indices.numel(), num_out_tokens or 0
    kept = min(wanted, rows) if wanted > 0 else rows + wanted
    return (
        tokens.new_empty((kept, tokens.shape[1])),
        tokens.new_empty((rows,), dtype=torch.int32),
    )


def token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> Tensor:
    """`npu::npu_moe_token_unpermute`: gathers the rows of each token and adds them, weighted.

    The documentation excludes repeated rows; vllm-ascend's callers repeat one for every copy whose
    expert lives elsewhere, with weight zero, and so may ours.
    """
    name = "npu_moe_token_unpermute"
    check(not padded_mode, name, "padded_mode", "is True", "False")
    check_unset(name, restore_shape=restore_shape)
    rank = permuted_tokens.dim()
    check(rank == 2, name, "permuted_tokens", f"has {rank} dimensions", "2")
    check_shape(name, "sorted_indices", sorted_indices, (None,), "[tokens x k]")
    rows = sorted_indices.shape[0]
    check_range(name, "sorted_indices", sorted_indices, 0, rows, "rows")
    per_token = 1
    if probs is not None:
        check(probs.dim() == 2, name, "probs", f"has {probs.dim()} dimensions", "2")
        per_token = probs.shape[1]
        check_limit(f"npu::{name}", "experts_of_a_token", "probs", per_token, "has columns:")
        check(probs.numel() == rows, name, "probs", f"has {probs.numel()} numbers", f"{rows}")
    index = sorted_indices.long()
    # Rows that the permutation dropped count as zeros.
    found = permuted_tokens[index.clamp(max=permuted_tokens.shape[0] - 1)].float()
    found = found.masked_fill((index >= permuted_tokens.shape[0])[:, None], 0.0)
    grouped = found.view(-1, per_token, permuted_tokens.shape[1])
    if probs is not None:
        grouped = grouped * probs.float().unsqueeze(-1)
    return grouped.sum(dim=1).to(permuted_tokens.dtype)


def token_unpermute_meta(
    permuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None = None, *_: object
) -> Tensor:
    """Shape of `npu_moe_token_unpermute`."""
    per_token = 1 if probs is None else probs.shape[1]
    rows = sorted_indices.shape[0] // per_token
    return permuted_tokens.new_empty((rows, permuted_tokens.shape[1]))


def finalize_routing(
    expanded_permuted_rows: Tensor,
    skip1: Tensor | None,
    skip2: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    expanded_src_to_dst_row: Tensor,
    export_for_source_row: Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> Tensor:
    """`npu::npu_moe_finalize_routing`: Σ scale · (row + bias of its expert), plus two addends.

    The index of token t and slot k stands at k · tokens + t.
    """
    name = "npu_moe_finalize_routing"
    rows = expanded_permuted_rows
    check(rows.dim() == 2, name, "expanded_permuted_rows", f"has {rows.dim()} dimensions", "2")
    check(drop_pad_mode == 0, name, "drop_pad_mode", f"is {drop_pad_mode}", "0")
    index = expanded_src_to_dst_row
    check_shape(name, "expanded_src_to_dst_row", index, (rows.shape[0],), "[rows x k]")
    check_range(name, "expanded_src_to_dst_row", index, 0, rows.shape[0], "rows")
    check(
        skip2 is not None or skip1 is None, name, "skip1", "is set without skip2", "both, or skip2"
    )
    check_same_dtype(name, rows, skip1=skip1, skip2=skip2, bias=bias, scales=scales)
    per_token = scales.shape[1] if scales is not None else int(k or 1)
    tokens = index.shape[0] // per_token
    gathered = rows[index.long()].view(per_token, tokens, -1).transpose(0, 1).float()
    if bias is not None and export_for_source_row is not None:
        check_shape(
            name, "export_for_source_row", export_for_source_row, (tokens, per_token), "[rows, k]"
        )
        check_range(
            name, "export_for_source_row", export_for_source_row, 0, bias.shape[0], "experts"
        )
        gathered = gathered + bias[export_for_source_row.long()].float()
    if scales is not None:
        check_shape(name, "scales", scales, (tokens, per_token), "[rows, k]")
        gathered = gathered * scales.float().unsqueeze(-1)
    total = gathered.sum(dim=1)
    for argument, addend in (("skip1", skip1), ("skip2", skip2)):
        if addend is not None:
            check_shape(name, argument, addend, tuple(total.shape), "[rows, hidden]")
            total = total + addend.float()
    return total.to(rows.dtype)


def finalize_routing_meta(
    expanded_permuted_rows: Tensor,
    skip1: Tensor | None,
    skip2: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    expanded_src_to_dst_row: Tensor,
    export_for_source_row: Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> Tensor:
    """Shape of `npu_moe_finalize_routing`."""
    per_token = scales.shape[1] if scales is not None else int(k or 1)
    tokens = expanded_src_to_dst_row.shape[0] // per_token
    return expanded_permuted_rows.new_empty((tokens, expanded_permuted_rows.shape[1]))
