"""Emulated compressor of compressed attention, and its metadata operator."""

# Shapes: T tokens, H hidden, D head dim, E = coff * D, R requests, C compressed rows, r ratio,
#         V columns of a block table, B blocks, P rows of a block, W = 2 * E, X rows of a rope
#         table, L source rows of one compressed row

import torch
from torch import Tensor

from ascend_recipes.emulation.refusal import (
    SMALL,
    OperatorRefusedError,
    check,
    check_dtype,
    check_range,
    check_same_dtype,
    check_shape,
    check_unset,
    relaxes,
)
from ascend_recipes.emulation.requests import (
    Batch,
    check_integers,
    check_pages,
    check_table,
    read_batch,
)
from ascend_recipes.emulation.rotation import rotate_pairs

NAME = "compressor"
METADATA = "compressor_metadata"
SCENARIOS = ((4, 2, 512), (4, 2, 128), (128, 1, 512))
FLAT = 1
BLOCK_OFFSET = 2
INTERLEAVE = 2
CONTINUOUS = 1


def compressor(
    x: Tensor,
    wkv: Tensor,
    wgate: Tensor,
    state_cache: Tensor,
    ape: Tensor,
    norm_weight: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    state_block_table: Tensor | None,
    cu_seqlens: Tensor | None,
    seqused: Tensor | None,
    start_pos: Tensor | None,
    rope_head_dim: int,
    cmp_ratio: int,
    coff: int,
    norm_eps: float,
    rotary_mode: int,
    cache_mode: int,
) -> Tensor:
    """`_C_ascend::compressor` for packed tokens; `state_cache` is written in place.

    Keys and scores of every token go to the state pages, unless a block number is 0. A row is
    emitted for each block of `cmp_ratio` tokens that this call completes; rows after the last
    emitted one are undefined (NaN here).
    """
    check_unset(NAME, seqused=seqused)
    _check_attributes(rope_head_dim, cmp_ratio, coff, rotary_mode, cache_mode, norm_weight)
    check_shape(NAME, "x", x, (None, None), "[tokens, hidden] (with a batch: not emulated)")
    _check_weights(x, wkv, wgate, ape, norm_weight, cmp_ratio, coff)
    width = coff * norm_weight.shape[0]
    check_shape(
        NAME, "state_cache", state_cache, (None, None, 2 * width), "[blocks, rows, 2·coff·D]"
    )
    check_pages(NAME, "state_cache", state_cache)
    if cu_seqlens is None or start_pos is None or state_block_table is None:
        raise OperatorRefusedError(
            NAME,
            "cu_seqlens",
            "or start_pos or state_block_table is None",
            "all three with packed tokens",
        )
    batch = read_batch(NAME, "cu_seqlens", cu_seqlens, x.shape[0])
    requests = batch.lengths_R.numel()
    _check_rope(x, rope_sin, rope_cos, rope_head_dim, cmp_ratio, requests)
    check_integers(NAME, "start_pos", start_pos, requests, "[requests]")
    check_range(NAME, "start_pos", start_pos, 0, 1 << 31, "positions")
    start_R = start_pos.long()
    needed = -(-int((start_R + batch.lengths_R).max()) // state_cache.shape[1])
    check_table(NAME, "state_block_table", state_block_table, requests, needed)

    rows_TW = _project(x, wkv, wgate, ape, start_R, batch)
    _write_states(rows_TW, state_cache, state_block_table, start_R, batch)
    out_CD = x.new_full((rope_cos.shape[0], norm_weight.shape[0]), torch.nan)
    request_N, block_N = _completed(start_R, batch.lengths_R, cmp_ratio)
    emitted = request_N.numel()
    if emitted:
        source_NLW, absent_NL = _sources(
            rows_TW,
            state_cache,
            state_block_table,
            start_R,
            batch,
            request_N,
            block_N,
            cmp_ratio,
            coff,
        )
        pooled_ND = _pool(source_NLW, absent_NL, cmp_ratio, coff)
        scale = torch.rsqrt(pooled_ND.square().mean(-1, keepdim=True) + norm_eps)
        normed_ND = pooled_ND * scale * norm_weight.float()
        tail_NR = normed_ND[:, -rope_head_dim:]
        turned = rotate_pairs(tail_NR, rope_cos[:emitted].float(), rope_sin[:emitted].float())
        normed_ND[:, -rope_head_dim:] = turned
        out_CD[:emitted] = normed_ND.to(x.dtype)
    return out_CD


def compressor_meta(
    x: Tensor,
    wkv: Tensor,
    wgate: Tensor,
    state_cache: Tensor,
    ape: Tensor,
    norm_weight: Tensor,
    rope_sin: Tensor,
    *_: object,
) -> Tensor:
    """Shape of `compressor`."""
    return x.new_empty(rope_sin.shape[0], norm_weight.shape[0])


def compressor_metadata(
    rope_cos: Tensor,
    rope_sin: Tensor,
    cu_seqlens: Tensor,
    start_pos: Tensor,
    kv_block_table: Tensor,
    kv_block_size: int,
    slot_mapping_format: int,
    compress_ratio: int,
    num_compressed_tokens: int,
    num_reqs_actual: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """`_C_ascend::compressor_metadata`: rope rows and cache slots of the rows of `compressor`.

    Rows without a block get cosine 1, sine 0 and slot -1 (flat) or (-1, block size - 1).
    """
    _check_metadata(rope_cos, rope_sin, kv_block_size, slot_mapping_format, compress_ratio)
    for argument, count in (
        ("num_compressed_tokens", num_compressed_tokens),
        ("num_reqs_actual", num_reqs_actual),
    ):
        check(count > 0, METADATA, argument, f"is {count}", "at least 1")
    for argument, tensor, least in (
        ("cu_seqlens", cu_seqlens, num_reqs_actual + 1),
        ("start_pos", start_pos, num_reqs_actual),
        ("kv_block_table", kv_block_table[:, 0], num_reqs_actual),
    ):
        fits = tensor.dim() == 1 and tensor.shape[0] >= least
        check(fits, METADATA, argument, f"has shape {list(tensor.shape)}", f"at least {least} rows")
    rows, width = num_compressed_tokens, rope_cos.shape[1]
    lengths_R = cu_seqlens[: num_reqs_actual + 1].long().diff()
    request_N, block_N = _completed(start_pos[:num_reqs_actual].long(), lengths_R, compress_ratio)
    request_N, block_N = request_N[:rows], block_N[:rows]
    column_N, offset_N = block_N // kv_block_size, block_N % kv_block_size
    known_N = column_N < kv_block_table.shape[1]
    page_N = kv_block_table[request_N, column_N.clamp(max=kv_block_table.shape[1] - 1)].long()
    position_N = block_N * compress_ratio
    known_N &= (page_N >= 0) & (position_N < rope_cos.shape[0])
    cosine_CR, sine_CR = rope_cos.new_ones(rows, width), rope_sin.new_zeros(rows, width)
    place_N = known_N.nonzero().flatten()
    cosine_CR[place_N] = rope_cos[position_N[known_N]]
    sine_CR[place_N] = rope_sin[position_N[known_N]]
    slots_C2 = torch.tensor([-1, kv_block_size - 1]).repeat(rows, 1)
    slots_C2[place_N] = torch.stack((page_N, offset_N), dim=-1)[known_N]
    slots = slots_C2
    if slot_mapping_format == FLAT:
        slots = torch.where(slots_C2[:, 0] < 0, -1, slots_C2[:, 0] * kv_block_size + slots_C2[:, 1])
    shape = (rows, 1, 1, width)
    return cosine_CR.view(shape), sine_CR.view(shape), slots.to(torch.int32)


def compressor_metadata_meta(
    rope_cos: Tensor,
    rope_sin: Tensor,
    cu_seqlens: Tensor,
    start_pos: Tensor,
    kv_block_table: Tensor,
    kv_block_size: int,
    slot_mapping_format: int,
    compress_ratio: int,
    num_compressed_tokens: int,
    num_reqs_actual: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes of `compressor_metadata`."""
    shape = (num_compressed_tokens, 1, 1, rope_cos.shape[1])
    slots = (num_compressed_tokens,) if slot_mapping_format == FLAT else (num_compressed_tokens, 2)
    return (
        rope_cos.new_empty(shape),
        rope_sin.new_empty(shape),
        kv_block_table.new_empty(slots, dtype=torch.int32),
    )


def _completed(start_R: Tensor, lengths_R: Tensor, ratio: int) -> tuple[Tensor, Tensor]:
    """Request and number of every block that the tokens complete, in request order."""
    first_R = start_R // ratio
    count_R = torch.where(lengths_R > 0, (start_R + lengths_R) // ratio - first_R, 0)
    request_N = torch.repeat_interleave(torch.arange(start_R.numel()), count_R)
    begin_R = count_R.cumsum(0) - count_R
    return request_N, first_R[request_N] + torch.arange(request_N.numel()) - begin_R[request_N]


def _project(
    x: Tensor, wkv: Tensor, wgate: Tensor, ape: Tensor, start_R: Tensor, batch: Batch
) -> Tensor:
    """Keys and scores (with the position bias) of every token, float32 [T, W]."""
    packed_TH = x[: batch.request_T.numel()].float()
    key_TE = packed_TH @ wkv.float().T
    score_TE = packed_TH @ wgate.float().T
    position_T = start_R[batch.request_T] + batch.offset_T
    return torch.cat((key_TE, score_TE + ape[position_T % ape.shape[0]]), dim=-1)


def _write_states(
    rows_TW: Tensor, state_BPW: Tensor, table_RV: Tensor, start_R: Tensor, batch: Batch
) -> None:
    position_T = start_R[batch.request_T] + batch.offset_T
    page_T = table_RV[batch.request_T, position_T // state_BPW.shape[1]].long()
    check_range(NAME, "state_block_table", page_T, 0, state_BPW.shape[0], "blocks of state_cache")
    kept_T = page_T != 0
    row_T = position_T % state_BPW.shape[1]
    state_BPW[page_T[kept_T], row_T[kept_T]] = rows_TW[kept_T]


def _sources(
    rows_TW: Tensor,
    state_BPW: Tensor,
    table_RV: Tensor,
    start_R: Tensor,
    batch: Batch,
    request_N: Tensor,
    block_N: Tensor,
    ratio: int,
    coff: int,
) -> tuple[Tensor, Tensor]:
    """The L = coff * ratio rows of each block, and which of them lie before the first token."""
    position_NL = (block_N[:, None] - (coff - 1)) * ratio + torch.arange(coff * ratio)
    start_N1 = start_R[request_N][:, None]
    absent_NL = position_NL < 0
    past_NL = ~absent_NL & (position_NL < start_N1)
    token_NL = batch.starts_R[request_N][:, None] + (position_NL - start_N1).clamp(min=0)
    source_NLW = rows_TW[token_NL]
    if bool(past_NL.any()):
        position = position_NL[past_NL]
        request = request_N[:, None].expand_as(position_NL)[past_NL]
        page = table_RV[request, position // state_BPW.shape[1]].long()
        problem = "has block 0 where a state is still needed"
        check(
            bool((page > 0).all()), NAME, "state_block_table", problem, "a block that was written"
        )
        source_NLW[past_NL] = state_BPW[page, position % state_BPW.shape[1]]
    return source_NLW, absent_NL


def _pool(source_NLW: Tensor, absent_NL: Tensor, ratio: int, coff: int) -> Tensor:
    """Softmax-weighted sum of the keys, each channel by itself.

    With overlap the first half of the rows takes the first half of the channels, and the second
    half the second.
    """
    key_NLE, score_NLE = source_NLW.chunk(2, dim=-1)
    if coff == 2:
        halves = [(slice(None, ratio), 0), (slice(ratio, None), 1)]
        key_NLE, score_NLE = (
            torch.cat([part[:, rows].chunk(2, dim=-1)[half] for rows, half in halves], dim=1)
            for part in (key_NLE, score_NLE)
        )
    absent = absent_NL[..., None]
    weight_NLD = score_NLE.masked_fill(absent, -torch.inf).softmax(dim=1)
    return (weight_NLD * key_NLE.masked_fill(absent, 0.0)).sum(dim=1)


def _check_attributes(
    rope: int, ratio: int, coff: int, rotary_mode: int, cache_mode: int, norm_weight: Tensor
) -> None:
    check(norm_weight.dim() == 1, NAME, "norm_weight", f"has {norm_weight.dim()} dims", "[D]")
    dim, small = norm_weight.shape[0], relaxes(SMALL)
    scenario = (ratio, coff, dim)
    allowed = {(a, b) for a, b, _ in SCENARIOS} if small else set(SCENARIOS)
    fits = (scenario[:2] if small else scenario) in allowed
    wanted = "(4, 2, 512), (4, 2, 128), (128, 1, 512)"
    check(fits, NAME, "cmp_ratio", f"with coff and head dim is {scenario}", wanted)
    check(rope == 64 or (small and 0 < rope <= dim), NAME, "rope_head_dim", f"is {rope}", "64")
    check(rotary_mode == INTERLEAVE, NAME, "rotary_mode", f"is {rotary_mode}", "2 (interleave)")
    check(cache_mode == CONTINUOUS, NAME, "cache_mode", f"is {cache_mode}", "1 (continuous)")


def _check_weights(
    x: Tensor,
    wkv: Tensor,
    wgate: Tensor,
    ape: Tensor,
    norm_weight: Tensor,
    ratio: int,
    coff: int,
) -> None:
    hidden = x.shape[1]
    fits = 1024 <= hidden <= 10240 and hidden % 512 == 0
    check(
        fits or relaxes(SMALL),
        NAME,
        "x",
        f"has hidden size {hidden}",
        "1024 to 10240 in steps of 512",
    )
    width = coff * norm_weight.shape[0]
    check_same_dtype(NAME, x, wkv=wkv, wgate=wgate)
    check_shape(NAME, "wkv", wkv, (width, hidden), "[coff·D, hidden]")
    check_shape(NAME, "wgate", wgate, (width, hidden), "[coff·D, hidden]")
    check_shape(NAME, "ape", ape, (ratio, width), "[ratio, coff·D]")
    # Of the type of x on A2 and A3, float32 on A5.
    check_dtype(NAME, "norm_weight", norm_weight, (x.dtype, torch.float32))


def _check_rope(
    x: Tensor, sine: Tensor, cosine: Tensor, rope: int, ratio: int, requests: int
) -> None:
    tokens = x.shape[0]
    shape = (min(tokens, tokens // ratio + requests), rope)
    names = "[min(T, T // ratio + requests), rope_head_dim]"
    for argument, tensor in (("rope_sin", sine), ("rope_cos", cosine)):
        check_shape(NAME, argument, tensor, shape, names)
        # Of the type of x or float32 on A2 and A3, float32 on A5.
        check_dtype(NAME, argument, tensor, (x.dtype, torch.float32))
    check_same_dtype(NAME, sine, rope_cos=cosine)


def _check_metadata(
    cosine: Tensor, sine: Tensor, block_size: int, slot_format: int, ratio: int
) -> None:
    check_shape(METADATA, "rope_cos", cosine, (None, None), "[positions, rope dim]")
    check(cosine.numel() > 0, METADATA, "rope_cos", "is empty", "[positions, rope dim]")
    check_same_dtype(METADATA, cosine, rope_sin=sine)
    check_shape(METADATA, "rope_sin", sine, cosine.shape, "the shape of rope_cos")
    check(block_size > 0, METADATA, "kv_block_size", f"is {block_size}", "at least 1")
    check(ratio > 0, METADATA, "compress_ratio", f"is {ratio}", "at least 1")
    check(
        slot_format in (FLAT, BLOCK_OFFSET),
        METADATA,
        "slot_mapping_format",
        f"is {slot_format}",
        "1 (flat), 2 (block and offset)",
    )
