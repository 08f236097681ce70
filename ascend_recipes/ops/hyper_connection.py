"""Bindings of manifold-constrained hyper-connections to NPU operators."""

# Shapes: T tokens, M streams, H hidden, F = (2 + M) * M mixing coefficients

import torch
from torch import Tensor


def hyper_connection_pre_custom(
    streams_TMH: Tensor,
    weight_FX: Tensor,
    scale_3: Tensor,
    base_F: Tensor,
    *,
    norm_epsilon: float,
    epsilon: float,
    iterations: int = 20,
) -> tuple[Tensor, Tensor, Tensor]:
    """Input of a block and the coefficients of its output, on `_C_ascend::npu_hc_pre_v2`.

    Args:
        streams_TMH: Residual streams.
        weight_FX: Projection of the flattened streams [F, M * H], float32: rows for the block's
            input, its output, and the mixing matrix.
        scale_3: Factor of each of these three, float32.
        base_F: Bias, float32.
        norm_epsilon: Added to the mean square of the flattened streams.
        epsilon: Added to the input coefficients and in the Sinkhorn iterations.
        iterations: Sinkhorn iterations.

    Returns:
        Input of the block [T, H] and, in float32, output coefficients [T, M] and the mixing
        matrix [T, M, M] (row: source stream, column: destination).
    """
    y_TH, post_TM, mix_TMM = torch.ops._C_ascend.npu_hc_pre_v2(
        streams_TMH,
        weight_FX,
        scale_3,
        base_F,
        streams_TMH.shape[1],
        iterations,
        norm_epsilon,
        epsilon,
    )
    return y_TH, post_TM, mix_TMM


def hyper_connection_pre_npu(
    streams_TMH: Tensor,
    weight_FX: Tensor,
    scale_3: Tensor,
    base_F: Tensor,
    *,
    norm_epsilon: float,
    epsilon: float,
    iterations: int = 20,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `hyper_connection_pre_custom`, on `npu::npu_mhc_pre` and `npu::npu_mhc_sinkhorn`."""
    y_TH, post_TM, raw_TMM, *_ = torch.ops.npu.npu_mhc_pre(
        streams_TMH, weight_FX, scale_3, base_F, norm_eps=norm_epsilon, hc_eps=epsilon
    )
    mix_TMM, *_ = torch.ops.npu.npu_mhc_sinkhorn(raw_TMM, eps=epsilon, num_iters=iterations)
    return y_TH, post_TM, mix_TMM


def hyper_connection_post_custom(
    y_TH: Tensor, streams_TMH: Tensor, post_TM: Tensor, mix_TMM: Tensor
) -> Tensor:
    """Streams after a block, on `_C_ascend::npu_hc_post`, which wants a batch dimension.

    Args:
        y_TH: Output of the block.
        streams_TMH: Streams before the block.
        post_TM: Share of the output in each stream.
        mix_TMM: Share of each old stream (row) in each new one (column).
    """
    out_1TMH: Tensor = torch.ops._C_ascend.npu_hc_post(
        y_TH[None], streams_TMH[None], post_TM[None], mix_TMM[None]
    )
    return out_1TMH[0]


def hyper_connection_post_npu(
    y_TH: Tensor, streams_TMH: Tensor, post_TM: Tensor, mix_TMM: Tensor
) -> Tensor:
    """As `hyper_connection_post_custom`, on `npu::npu_mhc_post`."""
    out_TMH: Tensor = torch.ops.npu.npu_mhc_post(streams_TMH, mix_TMM, y_TH, post_TM)
    return out_TMH
