"""Feed-forward block: routed experts, chosen by score or by token, and a shared one.

Legend: T tokens, H hidden, I intermediate, G experts, K experts of a token, V vocabulary.
"""

from typing import Any

import torch
from torch import nn
from vllm.distributed import (
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_reduce,
)
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from vllm.model_executor.layers.quantization import QuantizationConfig

from ascend_recipes.moe.formats import routed_experts
from ascend_recipes.ops import operations


class ExpertGate(nn.Module):
    """Chooses experts: from a table by token in the first layers, by score in the others."""

    def __init__(self, config: Any, *, hashed: bool) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.scaling = config.routed_scaling_factor
        experts = config.n_routed_experts
        # In float32 whatever the model's dtype: close scores decide which expert is chosen.
        self.weight = nn.Parameter(
            torch.empty(experts, config.hidden_size, dtype=torch.float32), False
        )
        self.tid2eid: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if hashed:
            table_VK = torch.zeros(config.vocab_size, self.top_k, dtype=torch.int32)
            self.tid2eid = nn.Parameter(table_VK, requires_grad=False)
        else:
            self.bias = nn.Parameter(torch.empty(experts, dtype=torch.float32), False)

    def forward(
        self, x_TH: torch.Tensor, input_ids_T: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights `[T, K]`, normalized and scaled, and int32 experts `[T, K]`."""
        logits_TG = nn.functional.linear(x_TH.float(), self.weight)
        if self.tid2eid is None:
            return operations.moe_gate_sqrt_softplus(
                logits_TG, bias_G=self.bias, top_k=self.top_k, scaling=self.scaling
            )
        # Placeholders of tokens that are not known yet are negative.
        ids_T = input_ids_T.clamp(min=0).long()
        return operations.moe_gate_hash(logits_TG, ids_T, self.tid2eid, scaling=self.scaling)


class SharedExpert(nn.Module):
    """The expert of every token; its result is this rank's part of a sum."""

    def __init__(
        self, config: Any, quant_config: QuantizationConfig | None, *, weights: str
    ) -> None:
        super().__init__()
        inner = config.moe_intermediate_size * config.n_shared_experts
        self.limit = config.swiglu_limit
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size,
            [inner, inner],
            bias=False,
            quant_config=quant_config,
            prefix=f"{weights}.gate_up_proj",
        )
        self.w2 = RowParallelLinear(
            inner,
            config.hidden_size,
            bias=False,
            reduce_results=False,
            quant_config=quant_config,
            prefix=f"{weights}.w2",
        )

    def forward(self, x_TH: torch.Tensor) -> torch.Tensor:
        """Apply to `[T, H]`."""
        hidden_T2I = self.gate_up_proj(x_TH)[0]
        output: torch.Tensor = self.w2(operations.swiglu_clamped(hidden_T2I, limit=self.limit))[0]
        return output


class ExpertBlock(nn.Module):
    """Feed-forward block of one layer."""

    def __init__(
        self,
        config: Any,
        quant_config: QuantizationConfig | None,
        *,
        hashed: bool,
        weights: str,
    ) -> None:
        super().__init__()
        self.gate = ExpertGate(config, hashed=hashed)
        self.experts = routed_experts(
            quant_config,
            name=f"{weights}.experts",
            num_experts=config.n_routed_experts,
            hidden_size=config.hidden_size,
            intermediate_size=config.moe_intermediate_size,
            limit=config.swiglu_limit,
        )
        self.shared_experts = SharedExpert(
            config, quant_config, weights=f"{weights}.shared_experts"
        )

    def forward(self, x_TH: torch.Tensor, input_ids_T: torch.Tensor) -> torch.Tensor:
        """Apply to `[T, H]`, with the token ids that the first layers route by."""
        weights_TK, ids_TK = self.gate(x_TH, input_ids_T)
        out_TH = self.experts(x_TH, weights_TK, ids_TK) + self.shared_experts(x_TH)
        if get_tensor_model_parallel_world_size() > 1:
            out_TH = tensor_model_parallel_all_reduce(out_TH)
        return out_TH
