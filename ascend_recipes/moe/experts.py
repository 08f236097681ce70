"""Routed experts of one layer, their weights stacked, over operations.

Legend: T tokens, H hidden, I intermediate size of this rank, E experts of this rank, K experts of
a token, R = T * K rows sorted by expert.
"""

import torch
from torch import nn
from vllm.config import get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

from ascend_recipes.errors import recipe_error
from ascend_recipes.ops import operations


class RoutedExperts(nn.Module):
    """Gated experts with a clamped SwiGLU, split over ranks by expert or by intermediate size.

    The result of a rank is a part of the sum; the caller reduces over the ranks.
    """

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
            raise recipe_error(
                "moe.data_parallel",
                "the native runtime does not exchange tokens between data-parallel ranks yet",
                at="parallel.dp",
                fix="parallel.dp=1",
            )
        ranks, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
        self.num_experts = num_experts
        self.limit = limit
        self.by_expert = parallel.enable_expert_parallel and ranks > 1
        local = num_experts // ranks if self.by_expert else num_experts
        self.first_expert = local * rank if self.by_expert else 0
        self.last_expert = self.first_expert + local
        self.rank = 0 if self.by_expert else rank
        inner = intermediate_size if self.by_expert else intermediate_size // ranks
        self.gate_up = _weights(local, hidden_size, 2 * inner)
        self.down = _weights(local, inner, hidden_size)

    def forward(
        self, x_TH: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor
    ) -> torch.Tensor:
        """Weighted sum of the chosen experts of this rank, `[T, H]`."""
        rows_RH, row_index, counts_E, _ = operations.moe_init_routing(
            x_TH,
            ids_TK,
            num_experts=self.num_experts,
            first_expert=self.first_expert,
            last_expert=self.last_expert,
        )
        hidden_R2I = operations.grouped_matmul(rows_RH, self.gate_up, counts_E, cumulative=False)
        active_RI = operations.swiglu_clamped(hidden_R2I, limit=self.limit)
        out_RH = operations.grouped_matmul(active_RI, self.down, counts_E, cumulative=False)
        return operations.moe_finalize_routing(out_RH, row_index, weights_TK)

    def load(self, expert: int, part: str, loaded: torch.Tensor) -> bool:
        """Take one tensor of the checkpoint.

        Args:
            expert: number of the expert in the model.
            part: `gate`, `up` or `down`.
            loaded: `[out, in]`, for all ranks.

        Returns:
            Whether this rank has the expert.
        """
        if not self.first_expert <= expert < self.last_expert:
            return False
        index = expert - self.first_expert
        if part == "down":
            inner = self.down.shape[1]
            target_IH, first = self.down[index], inner * self.rank
            target_IH.data.copy_(loaded[:, first : first + inner].t())
            return True
        inner = self.gate_up.shape[2] // 2
        column, first = (inner if part == "up" else 0), inner * self.rank
        target_HI = self.gate_up[index, :, column : column + inner]
        target_HI.data.copy_(loaded[first : first + inner].t())
        return True


def _weights(experts: int, inputs: int, outputs: int) -> nn.Parameter:
    """`[E, in, out]`, the orientation of the grouped product."""
    return nn.Parameter(torch.empty(experts, inputs, outputs), requires_grad=False)
