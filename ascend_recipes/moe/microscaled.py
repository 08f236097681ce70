"""Routed experts in 4-bit floats whose 32 neighbours share a power of two.

Legend: T tokens, H hidden, I intermediate size of this rank, E experts of this rank, K experts of
a token, N outputs of a part, R = T * K rows sorted by expert.
"""

import torch
from torch import nn

from ascend_recipes.moe.experts import RoutedExperts
from ascend_recipes.ops import operations

_ROWS = "float8_e4m3fn"
_IN_BYTE = 2
"""Inputs of a weight in a byte, the first in its low half."""
_SHARED = 32


class MicroscaledExperts(RoutedExperts):
    """MXFP4 weights under MXFP8 rows; the activation is rounded to MXFP8 as it is computed."""

    leaves = ("weight", "scale")
    output_axis = 0

    def forward(
        self, x_TH: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor
    ) -> torch.Tensor:
        """Weighted sum of the chosen experts of this rank, `[T, H]`."""
        rows_RH, row_index, counts_E, _ = self._sorted_rows(x_TH, ids_TK, quantize=False)
        rows_RH, scale = operations.mx_quant(rows_RH, kind=_ROWS)
        hidden_R2I = self._product("gate_up", rows_RH, scale, counts_E, x_TH.dtype)
        active_RI, scale = operations.swiglu_mx_quant(hidden_R2I, limit=self.limit)
        out_RH = self._product("down", active_RI, scale, counts_E, x_TH.dtype)
        return operations.moe_finalize_routing(out_RH, row_index, weights_TK)

    def _product(
        self,
        part: str,
        rows: torch.Tensor,
        scale: torch.Tensor,
        counts_E: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        return operations.grouped_mx_w4a8_matmul(
            rows,
            self.get_parameter(f"{part}_weight"),
            scale,
            self.get_parameter(f"{part}_scale"),
            counts_E,
            cumulative=False,
            output_dtype=dtype,
        )

    def finish_loading(self) -> None:
        """Turn weights to views `[E, K / 2, N]` and scales to pairs `[E, K / 64, N, 2]`."""
        for part in ("gate_up", "down"):
            packed = self.get_parameter(f"{part}_weight").data.transpose(1, 2)
            self.register_parameter(f"{part}_weight", nn.Parameter(packed, requires_grad=False))
            pairs = self.get_parameter(f"{part}_scale").data.unflatten(2, (-1, 2)).transpose(1, 2)
            scale = nn.Parameter(pairs.contiguous(), requires_grad=False)
            self.register_parameter(f"{part}_scale", scale)

    def _oriented(self, tensor: torch.Tensor) -> torch.Tensor:
        # Bit patterns, in int8 and E8M0 in the checkpoint; operators take them as bytes.
        return tensor.view(torch.uint8)

    def _inner_part(self, leaf: str, tensor: torch.Tensor) -> torch.Tensor:
        width = self.inner // (_IN_BYTE if leaf == "weight" else _SHARED)
        return tensor.narrow(1, width * self.rank, width)

    def _allocate(self, experts: int, hidden_size: int) -> None:
        for part, inputs, outputs in (
            ("gate_up", hidden_size, 2 * self.inner),
            ("down", self.inner, hidden_size),
        ):
            for leaf, width in (("weight", inputs // _IN_BYTE), ("scale", inputs // _SHARED)):
                empty = torch.empty(experts, outputs, width, dtype=torch.uint8)
                self.register_parameter(f"{part}_{leaf}", nn.Parameter(empty, requires_grad=False))
