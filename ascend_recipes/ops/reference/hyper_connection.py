"""Plain manifold-constrained hyper-connections."""

# Shapes: T tokens, M streams, H hidden, F = (2 + M) * M mixing coefficients

import torch
from torch import Tensor


def hyper_connection_pre(
    streams_TMH: Tensor,
    weight_FX: Tensor,
    scale_3: Tensor,
    base_F: Tensor,
    *,
    norm_epsilon: float,
    epsilon: float,
    iterations: int = 20,
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted sum of the streams, output coefficients and a doubly stochastic mixing matrix."""
    streams = streams_TMH.shape[1]
    coefficients_TF = _normalized(streams_TMH, norm_epsilon) @ weight_FX.float().T
    parts = coefficients_TF.split([streams, streams, streams * streams], dim=-1)
    biases = base_F.split([streams, streams, streams * streams])
    pre_TM, post_TM, mix_TX = (
        part * scale + bias for part, scale, bias in zip(parts, scale_3, biases, strict=True)
    )
    mix_TMM = mix_TX.unflatten(-1, (streams, streams)).softmax(dim=-1) + epsilon
    mix_TMM = mix_TMM / (mix_TMM.sum(dim=-2, keepdim=True) + epsilon)
    for _ in range(iterations - 1):
        mix_TMM = mix_TMM / (mix_TMM.sum(dim=-1, keepdim=True) + epsilon)
        mix_TMM = mix_TMM / (mix_TMM.sum(dim=-2, keepdim=True) + epsilon)
    y_TH = _weighted_sum(pre_TM.sigmoid() + epsilon, streams_TMH)
    return y_TH, 2 * post_TM.sigmoid(), mix_TMM


def hyper_connection_post(
    y_TH: Tensor, streams_TMH: Tensor, post_TM: Tensor, mix_TMM: Tensor
) -> Tensor:
    """New stream j: the block's output times `post_j` plus old streams i times `mix_ij`."""
    new_TMH = post_TM.float()[:, :, None] * y_TH.float()[:, None]
    new_TMH = new_TMH + torch.einsum("tij,tih->tjh", mix_TMM.float(), streams_TMH.float())
    return new_TMH.to(streams_TMH.dtype)


def hyper_connection_head(
    streams_TMH: Tensor,
    weight_MX: Tensor,
    scale_1: Tensor,
    base_M: Tensor,
    *,
    norm_epsilon: float,
    epsilon: float,
) -> Tensor:
    """Weighted sum of the streams before the last norm; no Sinkhorn iterations."""
    coefficients_TM = _normalized(streams_TMH, norm_epsilon) @ weight_MX.float().T
    pre_TM = (coefficients_TM * scale_1.float() + base_M.float()).sigmoid() + epsilon
    return _weighted_sum(pre_TM, streams_TMH)


def _normalized(streams_TMH: Tensor, epsilon: float) -> Tensor:
    flat_TX = streams_TMH.flatten(1).float()
    return flat_TX / (flat_TX.square().mean(dim=-1, keepdim=True) + epsilon).sqrt()


def _weighted_sum(weight_TM: Tensor, streams_TMH: Tensor) -> Tensor:
    return (weight_TM[:, :, None] * streams_TMH.float()).sum(dim=1).to(streams_TMH.dtype)
