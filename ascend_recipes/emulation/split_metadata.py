"""Emulated operators that split a batch over cores, and the check that a split is this batch's.

On hardware the 1024 integers say which core does what. Here they name the call that they were
made for, so that a call with the split of another batch is refused instead of being wrong.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_recipes.emulation.limits import check_limit
from ascend_recipes.emulation.refusal import SMALL, check, relaxes
from ascend_recipes.emulation.requests import check_integers

SIZE = 1024
MARK = 0x5A5
UNLIMITED = 9223372036854775807
FACTOR = 1000003
MODULUS = 2147483647


def describe(numbers: Sequence[int], lengths: Sequence[Tensor]) -> Tensor:
    """int32 [1024]: a mark, the numbers of the call, and a sum over its lengths."""
    digest = 0
    for tensor in lengths:
        for value in tensor.tolist():
            digest = (digest * FACTOR + value + 1) % MODULUS
    out = torch.zeros(SIZE, dtype=torch.int32)
    head = [MARK, *numbers, digest]
    out[: len(head)] = torch.tensor(head, dtype=torch.int32)
    return out


def check_split(
    operator: str, metadata: Tensor | None, numbers: Sequence[int], lengths: Sequence[Tensor]
) -> None:
    """Refuse a split that is missing or was made for other lengths, heads, windows or ratios."""
    fits = metadata is not None and metadata.dtype == torch.int32 and list(metadata.shape) == [SIZE]
    found = "is None" if metadata is None else f"is {metadata.dtype} {list(metadata.shape)}"
    check(fits, operator, "metadata", found, "int32 [1024] from the metadata operator")
    assert metadata is not None
    check(
        torch.equal(metadata, describe(numbers, lengths)),
        operator,
        "metadata",
        "was made for another call",
        "what the metadata operator gives for these lengths, heads, window and ratio",
    )


def lightning_indexer_metadata(
    num_heads_q: int,
    num_heads_k: int,
    head_dim: int,
    query_quant_mode: int,
    key_quant_mode: int,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    batch_size: int = 0,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    cmp_ratio: int = 1,
    device: str = "npu",
) -> Tensor:
    """`_C_ascend::npu_vllm_quant_lightning_indexer_metadata` for layouts TND and PA_BSND."""
    name = "npu_vllm_quant_lightning_indexer_metadata"
    check_indexer_numbers(
        name,
        num_heads_q,
        num_heads_k,
        head_dim,
        sparse_count,
        cmp_ratio,
        ("num_heads_q", "num_heads_k", "head_dim"),
    )
    check_indexer_modes(
        name,
        query_quant_mode=query_quant_mode,
        key_quant_mode=key_quant_mode,
        layout_query=layout_query,
        layout_key=layout_key,
        sparse_mode=sparse_mode,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
    )
    _check_not_negative(
        name, batch_size=batch_size, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k
    )
    lengths = _both(
        name,
        batch_size,
        actual_seq_lengths_query=(actual_seq_lengths_query, batch_size),
        actual_seq_lengths_key=(actual_seq_lengths_key, batch_size),
    )
    return describe(indexer_numbers(num_heads_q, head_dim, sparse_count, cmp_ratio), lengths)


def lightning_indexer_metadata_meta(
    num_heads_q: int,
    num_heads_k: int,
    head_dim: int,
    query_quant_mode: int,
    key_quant_mode: int,
    actual_seq_lengths_query: Tensor | None = None,
    *_: object,
    **__: object,
) -> Tensor:
    """Shape of `npu_vllm_quant_lightning_indexer_metadata`."""
    return torch.empty(SIZE, dtype=torch.int32, device="meta")


def sparse_attention_metadata(
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_ori_kv: Tensor | None = None,
    cu_seqlens_cmp_kv: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_kv: Tensor | None = None,
    batch_size: int = 0,
    max_seqlen_q: int = 0,
    max_seqlen_kv: int = 0,
    ori_topk: int = 0,
    cmp_topk: int = 0,
    cmp_ratio: int = 4,
    ori_mask_mode: int = 4,
    cmp_mask_mode: int = 3,
    ori_win_left: int = 128,
    ori_win_right: int = 0,
    layout_q: str = "BSND",
    layout_kv: str = "PA_ND",
    has_ori_kv: bool = True,
    has_cmp_kv: bool = True,
    device: str = "npu",
) -> Tensor:
    """`_C_ascend::npu_sparse_attn_sharedkv_metadata` for layouts TND and PA_ND."""
    name = "npu_sparse_attn_sharedkv_metadata"
    check(num_heads_kv == 1, name, "num_heads_kv", f"is {num_heads_kv}", "1")
    check(head_dim == 512 or relaxes(SMALL), name, "head_dim", f"is {head_dim}", "512")
    check(has_ori_kv, name, "has_ori_kv", "is False", "True")
    check(ori_topk == 0, name, "ori_topk", f"is {ori_topk}", "0 (no selected window keys)")
    check_selected(name, "cmp_topk", cmp_topk)
    _check_not_negative(name, batch_size=batch_size, max_seqlen_q=max_seqlen_q)
    check_attention_modes(
        name,
        layout_q=layout_q,
        layout_kv=layout_kv,
        ori_mask_mode=ori_mask_mode,
        cmp_mask_mode=cmp_mask_mode,
        ori_win_left=ori_win_left,
        ori_win_right=ori_win_right,
    )
    check_ratio(name, cmp_ratio, has_cmp_kv)
    lengths = _both(
        name,
        batch_size,
        cu_seqlens_q=(cu_seqlens_q, batch_size + 1),
        seqused_kv=(seqused_kv, batch_size),
    )
    ratio = cmp_ratio if has_cmp_kv else 1
    return describe(
        attention_numbers(num_heads_q, head_dim, ori_win_left, ratio, cmp_topk), lengths
    )


def sparse_attention_metadata_meta(
    num_heads_q: int, num_heads_kv: int, head_dim: int, *_: object, **__: object
) -> Tensor:
    """Shape of `npu_sparse_attn_sharedkv_metadata`."""
    return torch.empty(SIZE, dtype=torch.int32, device="meta")


def kv_quant_sparse_attention_metadata(
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    kv_quant_mode: int,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_ori_kv: Tensor | None = None,
    cu_seqlens_cmp_kv: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_kv: Tensor | None = None,
    batch_size: int = 0,
    max_seqlen_q: int = 0,
    max_seqlen_kv: int = 0,
    ori_topk: int = 0,
    cmp_topk: int = 0,
    tile_size: int = 0,
    rope_head_dim: int = 0,
    cmp_ratio: int = -1,
    ori_mask_mode: int = 4,
    cmp_mask_mode: int = 3,
    ori_win_left: int = 127,
    ori_win_right: int = 0,
    layout_q: str = "BSND",
    layout_kv: str = "PA_ND",
    has_ori_kv: bool = True,
    has_cmp_kv: bool = True,
    device: str = "npu",
) -> Tensor:
    """`_C_ascend::npu_kv_quant_sparse_attn_sharedkv_metadata` (A5)."""
    name = "npu_kv_quant_sparse_attn_sharedkv_metadata"
    heads_fit = num_heads_q in (64, 128) or relaxes(SMALL)
    check(heads_fit, name, "num_heads_q", f"is {num_heads_q}", "64, 128")
    for argument, value, allowed in (
        ("kv_quant_mode", kv_quant_mode, (1,)),
        ("tile_size", tile_size, (0, 64)),
        ("rope_head_dim", rope_head_dim, (0, 64)),
    ):
        check(value in allowed, name, argument, f"is {value}", ", ".join(map(str, allowed)))
    return sparse_attention_metadata(
        num_heads_q,
        num_heads_kv,
        head_dim,
        cu_seqlens_q,
        seqused_kv=seqused_kv,
        batch_size=batch_size,
        max_seqlen_q=max_seqlen_q,
        ori_topk=ori_topk,
        cmp_topk=cmp_topk,
        cmp_ratio=cmp_ratio,
        ori_mask_mode=ori_mask_mode,
        cmp_mask_mode=cmp_mask_mode,
        ori_win_left=ori_win_left,
        ori_win_right=ori_win_right,
        layout_q=layout_q,
        layout_kv=layout_kv,
        has_ori_kv=has_ori_kv,
        has_cmp_kv=has_cmp_kv,
    )


def kv_quant_sparse_attention_metadata_meta(
    num_heads_q: int, num_heads_kv: int, head_dim: int, kv_quant_mode: int, *_: object, **__: object
) -> Tensor:
    """Shape of `npu_kv_quant_sparse_attn_sharedkv_metadata`."""
    return torch.empty(SIZE, dtype=torch.int32, device="meta")


def indexer_numbers(heads: int, head_dim: int, top_k: int, ratio: int) -> tuple[int, ...]:
    """What a split of the indexer depends on, lengths aside."""
    return (heads, head_dim, top_k, ratio)


def attention_numbers(
    heads: int, head_dim: int, window_left: int, ratio: int, top_k: int
) -> tuple[int, ...]:
    """What a split of the attention depends on, lengths aside."""
    return (heads, head_dim, window_left, ratio, top_k)


def check_indexer_numbers(
    name: str,
    heads: int,
    key_heads: int,
    head_dim: int,
    top_k: int,
    ratio: int,
    arguments: tuple[str, str, str] = ("query", "key", "query"),
) -> None:
    """Refuse heads, sizes, counts and ratios that the indexer does not take.

    `arguments` have the heads of the queries, those of the keys, and the head dim.
    """
    of_heads, of_key_heads, of_head_dim = arguments
    small = relaxes(SMALL)
    check(heads == 64 or small, name, of_heads, f"has {heads} heads", "64 heads")
    check(key_heads == 1, name, of_key_heads, f"has {key_heads} heads", "1 head")
    check(head_dim == 128 or small, name, of_head_dim, f"has head dim {head_dim}", "128")
    symbol = f"_C_ascend::{name}"
    if small:
        check(0 < top_k <= 2048, name, "sparse_count", f"is {top_k}", "1 to 2048")
    else:
        check_limit(symbol, "sparse_count", "sparse_count", top_k)
    check_limit(symbol, "ratio", "cmp_ratio", ratio)


def check_indexer_modes(name: str, **modes: int | str) -> None:
    """Refuse modes and layouts of the indexer that are undocumented or not emulated."""
    allowed: dict[str, tuple[int | str, ...]] = {
        "query_quant_mode": (0,),
        "key_quant_mode": (0,),
        "layout_query": ("TND",),
        "layout_key": ("PA_BSND",),
        "sparse_mode": (0, 3),
        "pre_tokens": (UNLIMITED,),
        "next_tokens": (UNLIMITED,),
    }
    _check_listed(name, allowed, modes)


def check_attention_modes(name: str, **modes: int | str) -> None:
    """Refuse modes, layouts and windows of the attention; `shape.small` admits any window."""
    allowed: dict[str, tuple[int | str, ...]] = {
        "layout_q": ("TND",),
        "layout_kv": ("PA_ND",),
        "ori_mask_mode": (4,),
        "cmp_mask_mode": (3,),
        "ori_win_right": (0,),
    }
    window = int(modes.pop("ori_win_left"))
    fits = window == 127 or (relaxes(SMALL) and window >= 0)
    check(fits, name, "ori_win_left", f"is {window}", "127")
    _check_listed(name, allowed, modes)


def check_ratio(name: str, ratio: int, compressed: bool) -> None:
    """Refuse ratios; without a compressed cache the ratio does not matter."""
    allowed = (4, 128) if compressed else (1, 4, 128)
    check(ratio in allowed, name, "cmp_ratio", f"is {ratio}", ", ".join(map(str, allowed)))


def _check_listed(
    name: str, allowed: dict[str, tuple[int | str, ...]], given: dict[str, int | str]
) -> None:
    for argument, value in given.items():
        wanted = ", ".join(map(str, allowed[argument]))
        check(value in allowed[argument], name, argument, f"is {value}", wanted)


def check_selected(name: str, argument: str, count: int) -> None:
    """Refuse numbers of selected blocks; 0 selects none."""
    fits = count in (0, 512, 1024) or relaxes(SMALL)
    check(fits, name, argument, f"selects {count}", "512 or 1024")


def _check_not_negative(name: str, **sizes: int) -> None:
    for argument, size in sizes.items():
        check(size >= 0, name, argument, f"is {size}", "0 or more")


def _both(name: str, batch: int, **lengths: tuple[Tensor | None, int]) -> list[Tensor]:
    """Lengths of queries and keys, which packed queries and pages need."""
    found = []
    for argument, (tensor, size) in lengths.items():
        check(tensor is not None, name, argument, "is None", "int32 with packed queries and pages")
        assert tensor is not None
        check_integers(name, argument, tensor, size, f"[{size}] for batch_size {batch}")
        found.append(tensor)
    return found
