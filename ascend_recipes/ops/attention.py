"""Bindings of attention and cache writes to NPU operators."""

# Shapes: T tokens, N query heads, K kv heads, D head dim, B blocks, P block size, R requests,
#         M blocks of a request, S queries and L keys of the longest request.
#         With layout BSND `query_TND` is [R, S, N, D], dense keys and values are [R, L, K, D].

from typing import Any

import torch
from torch import Tensor

UPPER_LEFT = 2
"""Sparse mode: the first query sees the first key, later queries one more each."""
CAUSAL = 3
"""Sparse mode: the last query sees every key, earlier queries one less each."""
BAND = 4
"""Sparse mode: as causal, and nothing further back than `pre_tokens`."""
FULL = 0
UNLIMITED = 2147483647
ALIGNMENTS = ("lower_right", "upper_left")
LAYOUTS = ("TND", "BSND")


def causal_mask(device: torch.device) -> Tensor:
    """The compressed mask that sparse modes 2 to 4 want: int8 [2048, 2048], 1 where masked."""
    return torch.ones(2048, 2048, dtype=torch.int8, device=device).triu_(1)


def write_kv_cache_npu(
    key_TKD: Tensor, value_TKD: Tensor, key_cache: Tensor, value_cache: Tensor, slots_T: Tensor
) -> None:
    """Write keys and values [T, K, D] to their slots of caches [B, P, K, D], in place.

    On `npu::npu_scatter_pa_kv_cache` in mode Norm. Slots are int32 or int64; -1 is skipped.
    """
    torch.ops.npu.npu_scatter_pa_kv_cache(
        key_TKD.contiguous(),
        value_TKD.contiguous(),
        key_cache,
        value_cache,
        slots_T.contiguous(),
        cache_mode="Norm",
    )


def paged_attention_npu(
    query_TND: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    block_table_RM: Tensor,
    query_lengths_cumulative: list[int],
    kv_lengths: list[int],
    block_size: int,
    num_kv_heads: int,
    scale: float,
    mask: Tensor | None,
    causal: bool = True,
    window: int | None = None,
    layout: str = "TND",
    alignment: str = "lower_right",
    log_sum_exp: Tensor | None = None,
) -> Tensor:
    """Attention over caches [B, P, K, D], on `npu::npu_fused_infer_attention_score`.

    Args:
        query_TND: Queries of all requests, one after the other; with layout BSND [R, S, N, D].
        key_cache: Contiguous blocks of keys.
        value_cache: Contiguous blocks of values.
        block_table_RM: Blocks of each request, int32.
        query_lengths_cumulative: Tokens of the requests up to and with each, padding left out.
        kv_lengths: Keys of each request, the current tokens included; not cumulative.
        block_size: Tokens of a block.
        num_kv_heads: K.
        scale: Factor of the scores.
        mask: `causal_mask`, where `causal` or `window` is set.
        causal: Whether a query sees only keys up to its own.
        window: Keys that a query sees, its own included; none for all.
        layout: TND, or BSND for requests padded to S; what stands in the padding is undefined.
        alignment: What a causal query's own key is: with lower_right the last query has the last
            key, with upper_left (layout BSND only) the first query has the first key.
        log_sum_exp: Written where given: float32 [T, N, 1], with layout BSND [R, N, S, 1].

    Returns:
        As `query_TND`.

    Raises:
        ValueError: an unknown layout, or an alignment that is unknown or that its other arguments
            do not allow.
    """
    lengths = query_lengths_cumulative
    return _fused_infer(
        query_TND,
        key_cache.flatten(2),
        value_cache.flatten(2),
        log_sum_exp,
        block_table=block_table_RM,
        input_layout=layout,
        block_size=block_size,
        actual_seq_lengths=_plain(lengths) if layout == "BSND" else lengths,
        actual_seq_lengths_kv=kv_lengths,
        num_key_value_heads=num_kv_heads,
        scale=scale,
        **_sparsity(causal, window, alignment, mask),
    )


def dense_attention_npu(
    query_TND: Tensor,
    key_TKD: Tensor,
    value_TKD: Tensor,
    *,
    query_lengths_cumulative: list[int],
    kv_lengths_cumulative: list[int],
    num_kv_heads: int,
    scale: float,
    mask: Tensor | None,
    causal: bool = True,
    window: int | None = None,
    layout: str = "TND",
    alignment: str = "lower_right",
    log_sum_exp: Tensor | None = None,
) -> Tensor:
    """Attention over keys and values that are not in a cache; see `paged_attention_npu`.

    Keys and values are [T, K, D], with layout BSND [R, L, K, D]. Lengths are cumulative in both
    layouts and leave padding out; the operator's own convention differs in BSND.

    Raises:
        ValueError: an unknown layout, or an alignment that is unknown or that its other arguments
            do not allow.
    """
    lengths = query_lengths_cumulative, kv_lengths_cumulative
    queries, keys = map(_plain, lengths) if layout == "BSND" else lengths
    return _fused_infer(
        query_TND,
        key_TKD.contiguous(),
        value_TKD.contiguous(),
        log_sum_exp,
        input_layout=layout,
        actual_seq_lengths=queries,
        actual_seq_lengths_kv=keys,
        num_key_value_heads=num_kv_heads,
        scale=scale,
        **_sparsity(causal, window, alignment, mask),
    )


def _fused_infer(
    query_TND: Tensor, key: Tensor, value: Tensor, log_sum_exp: Tensor | None, **arguments: Any
) -> Tensor:
    layout = arguments["input_layout"]
    if layout not in LAYOUTS:
        raise ValueError(f"attention: layout '{layout}'; allowed: {', '.join(LAYOUTS)}")
    out: Tensor
    out, lse = torch.ops.npu.npu_fused_infer_attention_score(
        query_TND.contiguous(),
        key,
        value,
        num_heads=query_TND.shape[-2],
        softmax_lse_flag=log_sum_exp is not None,
        **arguments,
    )
    if log_sum_exp is not None:
        log_sum_exp.copy_(lse)
    return out


def _plain(cumulative: list[int]) -> list[int]:
    """Lengths of the requests, as layout BSND takes them."""
    return [stop - start for start, stop in zip([0, *cumulative], cumulative, strict=False)]


def _sparsity(
    causal: bool, window: int | None, alignment: str, mask: Tensor | None
) -> dict[str, Any]:
    """Sparse mode, its bounds and its mask; upper_left has no band, and means nothing uncausal."""
    if alignment not in ALIGNMENTS:
        allowed = ", ".join(ALIGNMENTS)
        raise ValueError(f"attention: alignment '{alignment}'; allowed: {allowed}")
    if alignment == "upper_left":
        if window is not None or not causal:
            raise ValueError(
                f"attention: alignment 'upper_left' with window {window} and causal {causal}; "
                "allowed: no window, and causal"
            )
        return {"sparse_mode": UPPER_LEFT, "atten_mask": mask}
    if window is not None:
        after = 0 if causal else UNLIMITED
        bounds = {"pre_tokens": window - 1, "next_tokens": after}
        return {"sparse_mode": BAND, "atten_mask": mask, **bounds}
    if causal:
        return {"sparse_mode": CAUSAL, "atten_mask": mask}
    return {"sparse_mode": FULL}
