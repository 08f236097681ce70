"""Routed experts of one layer, their weights stacked, over operations.

Legend: T tokens, H hidden, I intermediate size of this rank, E experts of this rank, K experts of
a token, R = T * K rows sorted by expert.
"""

import torch
from torch import nn
from vllm.config import get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

from ascend_recipes.findings import recipe_error
from ascend_recipes.ops import operations
from ascend_recipes.quantization.modelslim import check_symmetric

PARTS = ("gate", "up", "down")

_INT4_IN_BYTE = 2
_LOW_HALF = 0xFFFFFFFF
"""Operators take the 32 bits of a float32 scale in the low half of an int64."""


class RoutedExperts(nn.Module):
    """Gated experts with a clamped SwiGLU, split over ranks by expert or by intermediate size.

    The result of a rank is a part of the sum; the caller reduces over the ranks.
    """

    leaves: tuple[str, ...] = ("weight",)
    """Tensors of the checkpoint for every part of an expert."""
    output_axis = -1
    """Axis of outputs in the parameters of one expert."""

    def __init__(
        self, *, num_experts: int, hidden_size: int, intermediate_size: int, limit: float
    ) -> None:
        """Allocate.

        Raises:
            RecipeError: data parallelism, whose ranks would have to exchange tokens.
        """
        super().__init__()
        parallel = get_current_vllm_config().parallel_config
        if parallel.data_parallel_size > 1:
            raise recipe_error("experts.data_parallel", at="parallel.dp", fix="parallel.dp=1")
        ranks, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
        by_expert = parallel.enable_expert_parallel and ranks > 1
        local = num_experts // ranks if by_expert else num_experts
        self.num_experts, self.limit = num_experts, limit
        self.first_expert = local * rank if by_expert else 0
        self.last_expert = self.first_expert + local
        self.rank = 0 if by_expert else rank
        self.whole_inner = intermediate_size
        self.inner = intermediate_size if by_expert else intermediate_size // ranks
        self.loaded: set[tuple[int, str, str]] = set()
        self._allocate(local, hidden_size)

    def forward(
        self, x_TH: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor
    ) -> torch.Tensor:
        """Weighted sum of the chosen experts of this rank, `[T, H]`."""
        rows_RH, row_index, counts_E, _ = self._sorted_rows(x_TH, ids_TK, quantize=False)
        hidden_R2I = operations.grouped_matmul(
            rows_RH, self.gate_up_weight, counts_E, cumulative=False
        )
        active_RI = operations.swiglu_clamped(hidden_R2I, limit=self.limit)
        out_RH = operations.grouped_matmul(active_RI, self.down_weight, counts_E, cumulative=False)
        return operations.moe_finalize_routing(out_RH, row_index, weights_TK)

    def _sorted_rows(
        self, x_TH: torch.Tensor, ids_TK: torch.Tensor, *, quantize: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Rows of this rank's experts one after another, where they came from, and their counts.

        The last value is each row's scale where rows are quantized.
        """
        return operations.moe_init_routing(
            x_TH,
            ids_TK,
            num_experts=self.num_experts,
            first_expert=self.first_expert,
            last_expert=self.last_expert,
            quantize=quantize,
        )

    def load(self, expert: int, part: str, leaf: str, tensor: torch.Tensor) -> None:
        """Take one tensor of the checkpoint, if this rank has the expert.

        Args:
            expert: number of the expert in the model.
            part: one of `PARTS`.
            leaf: one of `leaves`.
            tensor: `[out, in]`, or `[out, 1]`, for all ranks.
        """
        if not self.first_expert <= expert < self.last_expert:
            return
        index = expert - self.first_expert
        if part == "down":
            target = self.get_parameter(f"down_{leaf}")[index]
            tensor = self._inner_part(leaf, tensor)
        else:
            width = self._columns(leaf, self.inner)
            column, first = width if part == "up" else 0, width * self.rank
            whole = self.get_parameter(f"gate_up_{leaf}")[index]
            target = whole.narrow(self.output_axis, column, width)
            tensor = tensor[first : first + width]
        target.data.copy_(self._oriented(tensor).reshape(target.shape))
        self.loaded.add((expert, part, leaf))

    def _oriented(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the checkpoint, `[out, in]`, as the parameters of one expert lie."""
        return tensor.t()

    def _columns(self, leaf: str, outputs: int) -> int:
        """Columns that a tensor stores for outputs of a layer."""
        return outputs

    def _inner_part(self, leaf: str, tensor: torch.Tensor) -> torch.Tensor:
        """What this rank takes of a tensor of the down projection, whose inputs are split."""
        if leaf != "weight":
            return tensor
        first = self.inner * self.rank
        return tensor[:, first : first + self.inner]

    def missing(self) -> list[str]:
        """Tensors that this rank still waits for."""
        experts = range(self.first_expert, self.last_expert)
        wanted = ((e, part, leaf) for e in experts for part in PARTS for leaf in self.leaves)
        return [
            f"{e}.{part}.{leaf}" for e, part, leaf in wanted if (e, part, leaf) not in self.loaded
        ]

    def finish_loading(self) -> None:
        """Nothing to convert."""

    def _allocate(self, experts: int, hidden_size: int) -> None:
        """`[E, in, out]`, the orientation of the grouped product."""
        self.gate_up_weight = _empty(experts, hidden_size, 2 * self.inner)
        self.down_weight = _empty(experts, self.inner, hidden_size)


class Int8Experts(RoutedExperts):
    """int8 weights with a scale a channel; rows are quantized as they are sorted."""

    leaves = ("weight", "weight_scale", "weight_offset")

    def forward(
        self, x_TH: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor
    ) -> torch.Tensor:
        """Weighted sum of the chosen experts of this rank, `[T, H]`."""
        rows_RH, row_index, counts_E, scale_R = self._sorted_rows(x_TH, ids_TK, quantize=True)
        active_RI, scale_R = operations.grouped_matmul_swiglu_quant(
            rows_RH,
            self.gate_up_weight,
            self.gate_up_weight_scale,
            scale_R,
            counts_E,
            cumulative=False,
            limit=self.limit,
        )
        out_RH = operations.grouped_quant_matmul(
            active_RI,
            self.down_weight,
            self.down_weight_scale.to(x_TH.dtype),
            scale_R,
            counts_E,
            cumulative=False,
            output_dtype=x_TH.dtype,
        )
        return operations.moe_finalize_routing(out_RH, row_index, weights_TK)

    def finish_loading(self) -> None:
        """Drop the offsets.

        Raises:
            RecipeError: an offset that is not zero.
        """
        for name in ("gate_up_weight_offset", "down_weight_offset"):
            check_symmetric(self.get_parameter(name))
            delattr(self, name)

    def _allocate(self, experts: int, hidden_size: int) -> None:
        columns = 2 * self.inner
        self.gate_up_weight = _empty(experts, hidden_size, columns, dtype=torch.int8)
        self.down_weight = _empty(experts, self.inner, hidden_size, dtype=torch.int8)
        for leaf in ("weight_scale", "weight_offset"):
            for part, width in (("gate_up", columns), ("down", hidden_size)):
                scale = _empty(experts, width, dtype=torch.float32)
                self.register_parameter(f"{part}_{leaf}", scale)


class Int4Experts(RoutedExperts):
    """int4 weights, two outputs in a byte, with a scale and a bias of scales a channel.

    The product takes 8 off every activation to fit two int4 passes; the bias, `8 * sum(weight *
    scale)`, puts it back. Of the down projection the file keeps it in 16 parts of the inputs, so
    that ranks can take theirs.
    """

    leaves = ("weight", "weight_scale", "weight_offset", "scale_bias")

    def forward(
        self, x_TH: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor
    ) -> torch.Tensor:
        """Weighted sum of the chosen experts of this rank, `[T, H]`."""
        rows_RH, row_index, counts_E, scale_R = self._sorted_rows(x_TH, ids_TK, quantize=True)
        active_RI, scale_R = operations.grouped_int4_matmul_swiglu_quant(
            rows_RH,
            self.gate_up_weight,
            self.gate_up_weight_scale,
            self.gate_up_scale_bias,
            scale_R,
            counts_E,
            cumulative=False,
            limit=self.limit,
        )
        # The operator gives halves; float32 is for emulation only.
        half = torch.bfloat16 if x_TH.dtype == torch.float32 else x_TH.dtype
        out_RH = operations.grouped_int4_matmul(
            active_RI,
            self.down_weight,
            self.down_weight_scale,
            self.down_scale_bias,
            scale_R,
            counts_E,
            cumulative=False,
            output_dtype=half,
        )
        return operations.moe_finalize_routing(out_RH.to(x_TH.dtype), row_index, weights_TK)

    def finish_loading(self) -> None:
        """Bring weights and scales to what the operators take: eight numbers an int32, int64 bits.

        Raises:
            RecipeError: an offset that is not zero.
        """
        for part in ("gate_up", "down"):
            check_symmetric(self.get_parameter(f"{part}_weight_offset"))
            delattr(self, f"{part}_weight_offset")
            packed = self.get_parameter(f"{part}_weight").data.view(torch.int32)
            self.register_parameter(f"{part}_weight", nn.Parameter(packed, requires_grad=False))
            scale = self.get_parameter(f"{part}_weight_scale").data.view(torch.int32)
            bits = scale.to(torch.int64) & _LOW_HALF
            self.register_parameter(f"{part}_weight_scale", nn.Parameter(bits, requires_grad=False))

    def _columns(self, leaf: str, outputs: int) -> int:
        return outputs // _INT4_IN_BYTE if leaf == "weight" else outputs

    def _inner_part(self, leaf: str, tensor: torch.Tensor) -> torch.Tensor:
        if leaf != "scale_bias":
            return super()._inner_part(leaf, tensor)
        parts = tensor.shape[1] * self.inner // self.whole_inner
        first = parts * self.rank
        return tensor[:, first : first + parts].sum(1)

    def _allocate(self, experts: int, hidden_size: int) -> None:
        columns = 2 * self.inner
        for part, inputs, outputs in (
            ("gate_up", hidden_size, columns),
            ("down", self.inner, hidden_size),
        ):
            weight = _empty(experts, inputs, outputs // _INT4_IN_BYTE, dtype=torch.int8)
            self.register_parameter(f"{part}_weight", weight)
            for leaf in self.leaves[1:]:
                numbers = _empty(experts, outputs, dtype=torch.float32)
                self.register_parameter(f"{part}_{leaf}", numbers)


def _empty(*shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
