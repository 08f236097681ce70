"""Bindings of attention and cache writes to NPU operators."""

# Shapes: T tokens, N query heads, K kv heads, D head dim, B blocks, P block size, R requests,
#         M blocks of a request

import torch
from torch import Tensor

CAUSAL = 3
"""Sparse mode: the last query sees every key, earlier queries one less each."""
BAND = 4
"""Sparse mode: as causal, and nothing further back than `pre_tokens`."""
FULL = 0
UNLIMITED = 2147483647


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
) -> Tensor:
    """Attention over caches [B, P, K, D], on `npu::npu_fused_infer_attention_score`, layout TND.

    Args:
        query_TND: Queries of all requests, one after the other.
        key_cache: Contiguous blocks of keys.
        value_cache: Contiguous blocks of values.
        block_table_RM: Blocks of each request, int32.
        query_lengths_cumulative: End of each request in `query_TND`.
        kv_lengths: Keys of each request, the current tokens included; not cumulative.
        block_size: Tokens of a block.
        num_kv_heads: K.
        scale: Factor of the scores.
        mask: `causal_mask`, where `causal` or `window` is set.
        causal: Whether a query sees only keys up to its own.
        window: Keys that a query sees, its own included; none for all.
    """
    out: Tensor
    out, _ = torch.ops.npu.npu_fused_infer_attention_score(
        query_TND.contiguous(),
        key_cache.flatten(2),
        value_cache.flatten(2),
        atten_mask=mask if causal or window else None,
        block_table=block_table_RM,
        input_layout="TND",
        block_size=block_size,
        actual_seq_lengths=query_lengths_cumulative,
        actual_seq_lengths_kv=kv_lengths,
        num_key_value_heads=num_kv_heads,
        num_heads=query_TND.shape[1],
        scale=scale,
        **_sparsity(causal, window),
    )
    return out


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
) -> Tensor:
    """Attention over keys and values [T, K, D] that are not in a cache; lengths are cumulative."""
    out: Tensor
    out, _ = torch.ops.npu.npu_fused_infer_attention_score(
        query_TND.contiguous(),
        key_TKD.contiguous(),
        value_TKD.contiguous(),
        atten_mask=mask if causal or window else None,
        input_layout="TND",
        actual_seq_lengths=query_lengths_cumulative,
        actual_seq_lengths_kv=kv_lengths_cumulative,
        num_key_value_heads=num_kv_heads,
        num_heads=query_TND.shape[1],
        scale=scale,
        **_sparsity(causal, window),
    )
    return out


def _sparsity(causal: bool, window: int | None) -> dict[str, int]:
    if window is not None:
        after = 0 if causal else UNLIMITED
        return {"sparse_mode": BAND, "pre_tokens": window - 1, "next_tokens": after}
    return {"sparse_mode": CAUSAL if causal else FULL}
