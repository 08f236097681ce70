"""Sampling from filtered logits through the vendor's top-k and top-p operator."""

import torch
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler, random_sample

from ascend_recipes.ops import operations


class AscendTopKTopPSampler(TopKTopPSampler):
    """Replaces the filter; drawing stays vLLM's."""

    def forward_native(
        self,
        logits: torch.Tensor,
        generators: dict[int, torch.Generator],
        k: torch.Tensor | None,
        p: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Filter, then draw one token a row.

        Args:
            logits: float32 `[rows, vocabulary]`.
            generators: row -> generator of requests with a seed of their own.
            k: int32 `[rows]`, or none.
            p: float32 `[rows]`, or none.

        Returns:
            int64 `[rows]` tokens, and the filtered logits or log-probabilities if asked for.
        """
        if k is not None or p is not None:
            logits = operations.top_k_top_p(logits, k=k, p=p)
        processed = None
        if self.logprobs_mode == "processed_logits":
            processed = logits
        elif self.logprobs_mode == "processed_logprobs":
            processed = logits.log_softmax(dim=-1, dtype=torch.float32)
        probabilities = logits.softmax(dim=-1, dtype=torch.float32)
        return random_sample(probabilities, generators, self.use_fp64_gumbel), processed
