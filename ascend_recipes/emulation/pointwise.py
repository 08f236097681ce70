"""Emulated activation, rotary and sampling operators."""

# Shapes: T tokens, N heads, D rotated part of a head, V vocabulary

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_recipes.emulation.refusal import (
    OperatorRefusedError,
    check,
    check_range,
    check_same_dtype,
    check_shape,
    check_unset,
)

ROTARY_MODES = ("half", "interleave")
OUTER_LIMIT = 1000
"""Batch and heads of `npu_rotary_mul` are below it."""


def swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """`npu::npu_swiglu`: silu(first half) · second half along `dim`."""
    name = "npu_swiglu"
    rank = input.dim()
    check(1 <= rank <= 8, name, "input", f"has {rank} dimensions", "1 to 8")
    check(-rank <= dim < rank, name, "dim", f"is {dim}", f"-{rank} to {rank - 1}")
    check(
        input.shape[dim] % 2 == 0,
        name,
        "input",
        f"has odd size {input.shape[dim]} along dim {dim}",
        "an even size",
    )
    left, right = input.float().chunk(2, dim=dim)
    return (left * left.sigmoid() * right).to(input.dtype)


def swiglu_meta(input: Tensor, dim: int = -1) -> Tensor:
    """Shape of `npu_swiglu`."""
    shape = list(input.shape)
    shape[dim] //= 2
    return input.new_empty(shape)


def rotary_mul(
    input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """`npu::npu_rotary_mul`: r1 · x + r2 · rotate(x), r1 the cosines and r2 the sines."""
    name = "npu_rotary_mul"
    check_unset(name, rotate=rotate)
    _check_rotary_mode(name, rotary_mode)
    check_same_dtype(name, input, r1=r1, r2=r2)
    for argument, tensor in (("input", input), ("r1", r1), ("r2", r2)):
        check(
            tensor.dim() == 4,
            name,
            argument,
            f"has {tensor.dim()} dimensions",
            "4 dimensions (BNSD, BSND or SBND)",
        )
    width = input.shape[-1]
    check(
        width < 896 and width % 2 == 0,
        name,
        "input",
        f"rotates {width} elements",
        "an even number below 896",
    )
    check(r1.shape == r2.shape, name, "r2", f"has shape {list(r2.shape)}", "the shape of r1")
    _check_outer(name, input, r1, rotary_mode)
    _check_factor_shape(name, input, r1, rotary_mode)
    x, cosine, sine = input.float(), r1.float(), r2.float()
    return (x * cosine + _turn(x, rotary_mode) * sine).to(input.dtype)


def rotary_mul_meta(
    input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """Shape of `npu_rotary_mul`."""
    return input.new_empty(input.shape)


def _check_outer(name: str, x: Tensor, factor: Tensor, rotary_mode: str) -> None:
    """Batch and heads are short; the layout shows only in the factors, which the sequence needs.

    An axis that factors share is batch or heads. Where they share none, one long axis can be the
    sequence.
    """
    outer = zip(x.shape[:3], factor.shape[:3], strict=True)
    shared = [size for size, given in outer if given == 1]
    long = sorted(size for size in x.shape[:3] if size >= OUTER_LIMIT)
    wrong = [size for size in shared if size >= OUTER_LIMIT] or long[:-1]
    check(
        not wrong,
        name,
        "input",
        f"has {wrong} for batch or heads",
        f"below {OUTER_LIMIT} each",
    )
    if rotary_mode == "interleave" and len(shared) == 2:
        product = shared[0] * shared[1]
        check(
            product < OUTER_LIMIT,
            name,
            "input",
            f"has {product} heads in all of the batch",
            f"below {OUTER_LIMIT} (batch times heads) in mode interleave",
        )


def _check_factor_shape(name: str, x: Tensor, factor: Tensor, rotary_mode: str) -> None:
    """Cosines may be shared by batch and heads, in half mode also given in full."""
    ones = [size == 1 for size in factor.shape[:3]]
    fits = factor.shape[-1] == x.shape[-1] and all(
        one or size == want
        for one, size, want in zip(ones, factor.shape[:3], x.shape[:3], strict=True)
    )
    if rotary_mode == "interleave":
        fits = fits and sum(ones) >= 2
    allowed = "11SD, 1S1D or S11D" if rotary_mode == "interleave" else "11SD, B1SD, BNSD and alike"
    check(fits, name, "r1", f"has shape {list(factor.shape)} for {list(x.shape)}", allowed)


def _check_rotary_mode(name: str, rotary_mode: str | None) -> None:
    check(
        rotary_mode in ROTARY_MODES,
        name,
        "rotary_mode",
        f"is '{rotary_mode}'",
        ", ".join(ROTARY_MODES),
    )


def _turn(x: Tensor, rotary_mode: str) -> Tensor:
    """Rotate by a quarter: pairs are halves (`half`) or neighbours (`interleave`)."""
    if rotary_mode == "half":
        first, second = x.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def mrope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    mrope_section: Sequence[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[Tensor, Tensor]:
    """`npu::npu_mrope`: gathers cosines and sines and rotates the first part of each head.

    One-dimensional positions are plain rotary embedding; three rows are the temporal, vertical
    and horizontal positions, whose frequency slots follow each other (`default` cache mode).
    """
    name = "npu_mrope"
    _check_mrope(name, positions, query, key, cos_sin_cache, head_size)
    _check_rotary_mode(name, rotary_mode)
    if cache_mode != "default":
        raise OperatorRefusedError(
            name,
            "cache_mode",
            f"is '{cache_mode}'",
            "default (the documentation does not define the interleaved order)",
        )
    half = cos_sin_cache.shape[1] // 2
    sections = list(mrope_section or (0, 0, 0))
    if positions.dim() == 2:
        check(
            len(sections) == 3 and sum(sections) == half,
            name,
            "mrope_section",
            f"is {sections}",
            f"three sizes whose sum is rotary_dim / 2 = {half}",
        )
    factors = cos_sin_cache[positions.long()].float()
    if positions.dim() == 2:
        factors = _join_sections(factors, sections, half)
    cosine_TD, sine_TD = factors.split(half, dim=-1)
    mode = rotary_mode or "half"
    if mode == "half":
        cosine_TD, sine_TD = cosine_TD.repeat(1, 2), sine_TD.repeat(1, 2)
    else:
        cosine_TD, sine_TD = (x.repeat_interleave(2, dim=-1) for x in (cosine_TD, sine_TD))
    return (
        _rotate_heads(query, cosine_TD, sine_TD, head_size, mode),
        _rotate_heads(key, cosine_TD, sine_TD, head_size, mode),
    )


def mrope_meta(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    mrope_section: Sequence[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[Tensor, Tensor]:
    """Shapes of `npu_mrope`."""
    return torch.empty_like(query), torch.empty_like(key)


def _check_mrope(
    name: str, positions: Tensor, query: Tensor, key: Tensor, cache: Tensor, head_size: int
) -> None:
    check(
        positions.dtype in (torch.int32, torch.int64),
        name,
        "positions",
        f"is {positions.dtype}",
        "int32, int64",
    )
    tokens = positions.shape[-1] if positions.dim() else 0
    check(
        positions.dim() == 1 or (positions.dim() == 2 and positions.shape[0] == 3),
        name,
        "positions",
        f"has shape {list(positions.shape)}",
        "[tokens] or [3, tokens]",
    )
    for argument, tensor in (("query", query), ("key", key)):
        check(
            tensor.dim() == 2 and tensor.shape[0] == tokens and tensor.shape[1] % head_size == 0,
            name,
            argument,
            f"has shape {list(tensor.shape)}",
            f"[{tokens}, heads * {head_size}]",
        )
    check(cache.dim() == 2, name, "cos_sin_cache", f"has {cache.dim()} dimensions", "2")
    check_same_dtype(name, query, key=key, cos_sin_cache=cache)
    step = 16 if query.dtype == torch.float32 else 32
    check(
        cache.shape[1] % step == 0 and cache.shape[1] <= head_size,
        name,
        "cos_sin_cache",
        f"has rotary_dim {cache.shape[1]}",
        f"a multiple of {step} up to the head size",
    )
    check_range(name, "positions", positions, 0, cache.shape[0], "rows of cos_sin_cache")


def _join_sections(factors_3TD: Tensor, sections: list[int], half: int) -> Tensor:
    cosine_3TD, sine_3TD = factors_3TD.split(half, dim=-1)
    parts = []
    for table_3TD in (cosine_3TD, sine_3TD):
        pieces = table_3TD.split(sections, dim=-1)
        parts.append(torch.cat([piece[axis] for axis, piece in enumerate(pieces)], dim=-1))
    return torch.cat(parts, dim=-1)


def _rotate_heads(
    x: Tensor, cosine_TD: Tensor, sine_TD: Tensor, head_size: int, rotary_mode: str
) -> Tensor:
    heads_TND = x.reshape(x.shape[0], -1, head_size).float()
    width = cosine_TD.shape[-1]
    turned = (
        heads_TND[..., :width] * cosine_TD[:, None]
        + _turn(heads_TND[..., :width], rotary_mode) * sine_TD[:, None]
    )
    return torch.cat((turned, heads_TND[..., width:]), dim=-1).to(x.dtype).reshape(x.shape)


def top_k_top_p(logits: Tensor, p: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    """`npu::npu_top_k_top_p`: sets to -inf what top-k, then top-p filters out."""
    name = "npu_top_k_top_p"
    check_shape(name, "logits", logits, (None, None), "[tokens, vocabulary]")
    check(p is not None or k is not None, name, "k", "and p are both None", "one of them")
    rows, vocabulary = logits.shape
    ordered_TV, order_TV = logits.float().sort(dim=-1, stable=True)
    if k is not None:
        check_shape(name, "k", k, (rows,), "[tokens]")
        check_range(name, "k", k, 1, min(1024, vocabulary) + 1, "and at most the vocabulary")
        threshold_T1 = ordered_TV.gather(1, vocabulary - k.long()[:, None])
        ordered_TV = ordered_TV.masked_fill(ordered_TV < threshold_T1, -torch.inf)
    if p is not None:
        check_same_dtype(name, logits, p=p)
        check_shape(name, "p", p, (rows,), "[tokens]")
        inside = bool(((p >= 0) & (p <= 1)).all())
        check(inside, name, "p", "leaves the unit interval", "values from 0 to 1")
        filtered_TV = ordered_TV.softmax(dim=-1).cumsum(dim=-1) <= 1 - p.float()[:, None]
        filtered_TV[:, -1] = False
        ordered_TV = ordered_TV.masked_fill(filtered_TV, -torch.inf)
    return torch.empty_like(ordered_TV).scatter_(1, order_TV, ordered_TV).to(logits.dtype)


def top_k_top_p_meta(logits: Tensor, p: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    """Shape of `npu_top_k_top_p`."""
    return torch.empty_like(logits)
