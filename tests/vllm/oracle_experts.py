"""Routed experts of ModelSlim's W8A8 and W4A8 forms as the vendor's kernels multiply.

Sums of integers are exact; they are scaled by channel, then by row. In W4A8 an int8 number is
16 · high + low + 8, so the cube takes two passes of int4 by int4; each is scaled and rounded to a
half, and the checkpoint's bias of scales puts the 8 back. Results of its down projection are
bfloat16. Written from csrc/gmm of vllm-ascend 0.23.0.post1's source package, without our
operations.

Legend: T tokens, H hidden, K experts of a token, N columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.vllm.integers import far_from_halves, int8_rows, integers

LIMIT = 10.0
"""Clamp of the gated activation, as published."""

BFLOAT16_BITS = 8
TIE = 1e-5
"""Relative distance to half a step of bfloat16 within which float32 may round either way."""


@dataclass(frozen=True)
class Factor:
    """One layer of one expert: integers `[N, inputs]`, scales `[N]`, of int4 a bias too `[N]`."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def product(self, x: Tensor) -> Tensor:
        """float32 `[T, N]` of float32 rows."""
        rows, scale_T = int8_rows(x)
        if self.bias is None:
            return self._scaled(rows) * scale_T[:, None]
        high = (rows / 16).floor()
        low = rows - 16 * high - 8
        upper, lower = (self._scaled(part).half().float() for part in (high, low))
        return (upper * 16 + lower + self.bias) * scale_T[:, None]

    def _scaled(self, rows: Tensor) -> Tensor:
        # Integers of 8 bits: their sums are exact in float32 at the sizes of a tiny model.
        return rows @ self.weight.T * self.scale


class IntegerExperts:
    """Experts of one layer, from its tensors `<expert>.w1.weight` and the like."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        numbers = {int(name.partition(".")[0]) for name in tensors}
        self.factors = [
            [_factor(tensors, f"{number}.{part}") for part in ("w1", "w3", "w2")]
            for number in sorted(numbers)
        ]

    def apply(self, x_TH: Tensor, weights_TK: Tensor, ids_TK: Tensor) -> tuple[Tensor, Tensor]:
        """Result, and which of its numbers are rounded in one way only."""
        out_TH, certain_TH = torch.zeros_like(x_TH), torch.ones_like(x_TH, dtype=torch.bool)
        for expert in ids_TK.unique().tolist():
            token, slot = (ids_TK == expert).nonzero(as_tuple=True)
            gate, up, down = self.factors[expert]
            gated = gate.product(x_TH[token]).clamp(max=LIMIT)
            # Each step as documented: what comes out is rounded, and its last bits count.
            active = gated / (1 + gated.neg().exp()) * up.product(x_TH[token]).clamp(-LIMIT, LIMIT)
            part, certain = down.product(active), far_from_halves(active)
            if down.bias is not None:
                certain = certain & ~near_a_tie(part)
                part = part.bfloat16().float()
            out_TH.index_add_(0, token, part * weights_TK[token, slot, None])
            certain_TH[token] &= certain
        return out_TH, certain_TH


def _factor(tensors: Mapping[str, Tensor], name: str) -> Factor:
    bias = tensors.get(f"{name}.scale_bias")
    return Factor(
        integers(f"{name}.weight", tensors),
        tensors[f"{name}.weight_scale"][:, 0],
        None if bias is None else bias.sum(1),
    )


def near_a_tie(values: Tensor) -> Tensor:
    """Where a number is so near to half a step of bfloat16 that either side is right."""
    step = torch.ldexp(torch.ones_like(values), torch.frexp(values).exponent - BFLOAT16_BITS)
    fraction = (values / step).abs() % 1
    return (fraction - 0.5).abs() * step < TIE * values.abs()
