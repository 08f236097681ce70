"""Emulated manifold-constrained hyper-connections."""

# Shapes: T tokens (or batch and sequence), M streams, H hidden, F = (2 + M) * M coefficients

import torch
from torch import Tensor

from ascend_recipes.emulation.refusal import (
    SMALL,
    check,
    check_same_dtype,
    check_shape,
    relaxes,
)

MHC_STREAMS = (4, 6, 8)
HC_HIDDEN = (4096, 7168)
HF32_MASK = -(1 << 13)
"""Keeps sign, exponent and the upper 10 mantissa bits of a float32."""


def hc_pre_v2(
    x: Tensor,
    hc_fn: Tensor,
    hc_scale: Tensor,
    hc_base: Tensor,
    hc_mult: int,
    hc_sinkhorn_iters: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`_C_ascend::npu_hc_pre_v2`: bfloat16 input meets weights in HF32, 10 mantissa bits, cut."""
    name = "npu_hc_pre_v2"
    check(hc_mult == 4, name, "hc_mult", f"is {hc_mult}", "4")
    _check_streams(name, x, (4,))
    hidden = x.shape[-1]
    small = relaxes(SMALL)
    check(small or hidden in HC_HIDDEN, name, "x", f"has hidden size {hidden}", "4096 or 7168")
    _check_parameters(name, x, hc_fn, hc_scale, hc_base, ("hc_fn", "hc_scale", "hc_base"))
    weight_FX = _cut_to_hf32(hc_fn) if x.dtype == torch.bfloat16 else hc_fn
    pre, post, raw, _, _ = _coefficients(x, weight_FX, hc_scale, hc_base, norm_eps, hc_eps)
    return _combine(pre, x), post, _sinkhorn(raw, hc_eps, hc_sinkhorn_iters)


def hc_pre_v2_meta(
    x: Tensor,
    hc_fn: Tensor,
    hc_scale: Tensor,
    hc_base: Tensor,
    hc_mult: int,
    hc_sinkhorn_iters: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes of `npu_hc_pre_v2`."""
    lead = x.shape[:-2]
    return (
        x.new_empty(*lead, x.shape[-1]),
        x.new_empty(*lead, hc_mult, dtype=torch.float32),
        x.new_empty(*lead, hc_mult, hc_mult, dtype=torch.float32),
    )


def mhc_pre(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    bias: Tensor,
    *,
    gamma: Tensor | None = None,
    norm_eps: float = 1e-6,
    hc_eps: float = 1e-6,
    out_flag: int = 0,
    inner_precise: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`npu::npu_mhc_pre`; intermediate results are NaN unless `out_flag` is 1."""
    name = "npu_mhc_pre"
    _check_streams(name, x, MHC_STREAMS)
    _check_parameters(name, x, phi, alpha, bias, ("phi", "alpha", "bias"))
    check(out_flag in (0, 1), name, "out_flag", f"is {out_flag}", "0, 1")
    check(inner_precise in (0, 1), name, "inner_precise", f"is {inner_precise}", "0, 1")
    if gamma is not None:
        check_shape(name, "gamma", gamma, x.shape[-2:], "[streams, hidden]")
        phi = phi * gamma.flatten()
    weight_FX = _cut_to_hf32(phi) if inner_precise else phi
    pre, post, raw, inverse, mixed = _coefficients(x, weight_FX, alpha, bias, norm_eps, hc_eps)
    # The vendor's Meta kernel gives them their shapes either way.
    extra = (inverse, mixed, pre)
    if not out_flag:
        extra = tuple(torch.full_like(part, torch.nan) for part in extra)
    return _combine(pre, x), post, raw, *extra


def mhc_pre_meta(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    bias: Tensor,
    *,
    gamma: Tensor | None = None,
    norm_eps: float = 1e-6,
    hc_eps: float = 1e-6,
    out_flag: int = 0,
    inner_precise: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Shapes of `npu_mhc_pre`."""
    *lead, streams, hidden = x.shape
    single = {"dtype": torch.float32}
    optional = [
        x.new_empty(shape, **single) for shape in (lead, (*lead, phi.shape[0]), (*lead, streams))
    ]
    return (
        x.new_empty(*lead, hidden),
        x.new_empty(*lead, streams, **single),
        x.new_empty(*lead, streams, streams, **single),
        *optional,
    )


def mhc_sinkhorn(
    x: Tensor, *, eps: float = 1e-6, num_iters: int = 20, out_flag: int = 0
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """`npu::npu_mhc_sinkhorn`: softmax, then rows and columns in turn; nothing for training."""
    name = "npu_mhc_sinkhorn"
    check(
        x.dim() in (3, 4) and x.shape[-1] == x.shape[-2] and x.shape[-1] in MHC_STREAMS,
        name,
        "x",
        f"has shape {list(x.shape)}",
        "[tokens, n, n] or [batch, sequence, n, n] with n 4, 6 or 8",
    )
    check(x.numel() > 0, name, "x", "is empty", "a tensor with elements")
    check(1 <= num_iters <= 100, name, "num_iters", f"is {num_iters}", "1 to 100")
    check(out_flag == 0, name, "out_flag", f"is {out_flag}", "0 (1 serves training)")
    return _sinkhorn(x, eps, num_iters), None, None


def mhc_sinkhorn_meta(
    x: Tensor, *, eps: float = 1e-6, num_iters: int = 20, out_flag: int = 0
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Shapes of `npu_mhc_sinkhorn`."""
    return x.new_empty(x.shape), None, None


def hc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """`_C_ascend::npu_hc_post`, with batch and sequence dimensions."""
    name = "npu_hc_post"
    check_same_dtype(name, x, residual=residual)
    check_same_dtype(name, post, comb=comb)
    check_shape(name, "x", x, (None, None, None), "[batch, sequence, hidden]")
    check(x.numel() > 0, name, "x", "is empty", "a tensor with elements")
    batch, sequence, hidden = x.shape
    streams = residual.shape[2] if residual.dim() == 4 else None
    shape = (batch, sequence, streams, hidden)
    check_shape(name, "residual", residual, shape, "[batch, sequence, streams, hidden]")
    check_shape(name, "post", post, (batch, sequence, streams), "[batch, sequence, streams]")
    shape = (batch, sequence, streams, streams)
    check_shape(name, "comb", comb, shape, "[batch, sequence, streams, streams]")
    return _expand(x, residual, post, comb)


def hc_post_meta(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Shape of `npu_hc_post`."""
    return residual.new_empty(residual.shape)


def mhc_post(x: Tensor, h_res: Tensor | None, h_out: Tensor, h_post: Tensor) -> Tensor:
    """`npu::npu_mhc_post`: `x` is the residual; without `h_res` it is added as it is."""
    name = "npu_mhc_post"
    _check_streams(name, x, MHC_STREAMS)
    check_same_dtype(name, x, h_out=h_out)
    *lead, streams, hidden = x.shape
    check_shape(name, "h_out", h_out, (*lead, hidden), "leading dimensions of x, hidden")
    check_shape(name, "h_post", h_post, (*lead, streams), "leading dimensions of x, streams")
    if h_res is None:
        return (x.float() + h_post[..., None] * h_out.float()[..., None, :]).to(x.dtype)
    shape = (*lead, streams, streams)
    check_shape(name, "h_res", h_res, shape, "leading dimensions of x, streams, streams")
    return _expand(h_out, x, h_post, h_res)


def mhc_post_meta(x: Tensor, h_res: Tensor | None, h_out: Tensor, h_post: Tensor) -> Tensor:
    """Shape of `npu_mhc_post`."""
    return x.new_empty(x.shape)


def _check_streams(name: str, x: Tensor, allowed: tuple[int, ...]) -> None:
    fits = x.dim() in (3, 4) and x.shape[-2] in allowed
    sizes = ", ".join(map(str, allowed))
    check(
        fits,
        name,
        "x",
        f"has shape {list(x.shape)}",
        f"[tokens, n, hidden] or [batch, sequence, n, hidden] with n {sizes}",
    )
    check(x.numel() > 0, name, "x", "is empty", "a tensor with elements")


def _check_parameters(
    name: str, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor, names: tuple[str, str, str]
) -> None:
    streams, hidden = x.shape[-2:]
    coefficients = (2 + streams) * streams
    shapes = ((coefficients, streams * hidden), (3,), (coefficients,))
    meanings = ("[coefficients, streams * hidden]", "[3]", "[coefficients]")
    for argument, tensor, shape, meaning in zip(
        names, (weight, scale, bias), shapes, meanings, strict=True
    ):
        check_shape(name, argument, tensor, shape, meaning)


def _cut_to_hf32(x: Tensor) -> Tensor:
    return (x.contiguous().view(torch.int32) & HF32_MASK).view(torch.float32)


def _coefficients(
    x: Tensor, weight_FX: Tensor, scale: Tensor, bias: Tensor, norm_eps: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Pre, post and raw mixing coefficients, the inverse root mean square and the bare product."""
    streams = x.shape[-2]
    flat = x.flatten(-2).float()
    inverse = torch.rsqrt(flat.pow(2).mean(-1) + norm_eps)
    mixed = torch.nn.functional.linear(flat, weight_FX)
    scales = scale.repeat_interleave(torch.tensor([streams, streams, streams * streams]))
    coefficients = torch.addcmul(bias, mixed * inverse[..., None], scales)
    pre = torch.sigmoid(coefficients[..., :streams]).add_(eps)
    post = torch.sigmoid(coefficients[..., streams : 2 * streams]).mul_(2)
    raw = coefficients[..., 2 * streams :].unflatten(-1, (streams, streams))
    return pre, post, raw, inverse, mixed


def _combine(pre: Tensor, x: Tensor) -> Tensor:
    return (pre[..., None, :] @ x.float()).squeeze(-2).to(x.dtype)


def _sinkhorn(raw: Tensor, eps: float, iterations: int) -> Tensor:
    mix = torch.softmax(raw, -1).add_(eps)
    mix.div_(mix.sum(-2, keepdim=True).add_(eps))
    for _ in range(iterations - 1):
        mix.div_(mix.sum(-1, keepdim=True).add_(eps))
        mix.div_(mix.sum(-2, keepdim=True).add_(eps))
    return mix


def _expand(y: Tensor, streams: Tensor, post: Tensor, mix: Tensor) -> Tensor:
    kept = mix.float().transpose(-1, -2) @ streams.float()
    return torch.addcmul(kept, post.float()[..., None], y.float()[..., None, :]).to(streams.dtype)
