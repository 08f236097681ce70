"""Emulated writes into paged caches."""

# Shapes: T tokens, K kv heads, D head dim, B blocks, P block size

import torch
from torch import Tensor

from ascend_recipes.emulation.refusal import (
    check,
    check_contiguous,
    check_range,
    check_same_dtype,
    check_shape,
    check_unset,
)


def scatter_pa_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """`npu::npu_scatter_pa_kv_cache`, second scenario: [T, K, D] into [B, P, K, D].

    The documentation gives slots from 0. A slot of -1 is skipped here, because vllm-ascend pads
    its batches with it; see ops/attention/README.md.
    """
    name = "npu_scatter_pa_kv_cache"
    check_unset(
        name,
        compress_lens=compress_lens,
        compress_seq_offsets=compress_seq_offsets,
        seq_lens=seq_lens,
    )
    check(
        cache_mode in (None, "Norm"),
        name,
        "cache_mode",
        f"is '{cache_mode}'",
        "Norm (the fractal layout PA_NZ is not emulated)",
    )
    check_same_dtype(name, key, value=value, key_cache=key_cache, value_cache=value_cache)
    check_contiguous(
        name,
        key=key,
        value=value,
        key_cache=key_cache,
        value_cache=value_cache,
        slot_mapping=slot_mapping,
    )
    check_shape(name, "key", key, (None, None, None), "[tokens, heads, head dim]")
    tokens, heads, _ = key.shape
    check_shape(name, "value", value, (tokens, heads, None), "[tokens, heads, head dim]")
    for argument, cache, source in (
        ("key_cache", key_cache, key),
        ("value_cache", value_cache, value),
    ):
        shape = (None, None, heads, source.shape[-1])
        check_shape(name, argument, cache, shape, "[blocks, block size, heads, head dim]")
    check_shape(name, "slot_mapping", slot_mapping, (tokens,), "[tokens]")
    check(
        slot_mapping.dtype in (torch.int32, torch.int64),
        name,
        "slot_mapping",
        f"is {slot_mapping.dtype}",
        "int32, int64",
    )
    slots = key_cache.shape[0] * key_cache.shape[1]
    check_range(name, "slot_mapping", slot_mapping, -1, slots, "num_blocks * block_size, or -1")
    written_T = slot_mapping >= 0
    target_T = slot_mapping[written_T].long()
    check(
        target_T.unique().numel() == target_T.numel(),
        name,
        "slot_mapping",
        "names a slot twice",
        "distinct slots",
    )
    key_cache.view(slots, *key.shape[1:])[target_T] = key[written_T]
    value_cache.view(slots, *value.shape[1:])[target_T] = value[written_T]


def scatter_pa_kv_cache_meta(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """`npu_scatter_pa_kv_cache` has no output."""
