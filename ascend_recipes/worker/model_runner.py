"""The model runner: vLLM's V1 runner with our graphs, sampler and block zeroing."""

from typing import Any

import torch
from torch import nn
from vllm.compilation.cuda_graph import CUDAGraphWrapper
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.v1.kv_cache_interface import AttentionSpec
from vllm.v1.outputs import SamplerOutput
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from ascend_recipes.apply import current_plan
from ascend_recipes.drafters.block import BlockProposer
from ascend_recipes.graph.static_graph import StaticGraphWrapper
from ascend_recipes.worker.acceptance import AcceptanceCounter
from ascend_recipes.worker.sampler import AscendTopKTopPSampler

_PROPOSERS = {"dspark": BlockProposer}
"""Kinds of drafters for which the first model runner has no proposer."""


class AscendModelRunner(GPUModelRunner):
    """One runner for both devices; `torch.cuda` names are served by the device runtime."""

    model: nn.Module | CUDAGraphWrapper
    """The model, inside a graph wrapper where decode steps are captured."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        upstream = self.sampler.topk_topp_sampler
        self.sampler.topk_topp_sampler = AscendTopKTopPSampler(
            upstream.logprobs_mode, upstream.use_fp64_gumbel
        )
        self._zeroed_caches: list[tuple[torch.Tensor, int]] = []
        self.acceptance: AcceptanceCounter | None = None
        drafter = current_plan().drafter
        if drafter is not None and drafter.kind in _PROPOSERS:
            self.drafter = _PROPOSERS[drafter.kind](vllm_config, device, self)
        if vllm_config.speculative_config is not None:
            self.acceptance = AcceptanceCounter(self.num_spec_tokens, device)

    def load_model(
        self, load_dummy_weights: bool = False, *, model: torch.nn.Module | None = None
    ) -> None:
        """Load, then capture through our wrapper where vLLM put its own.

        The V1 runner names vLLM's wrapper for full graphs instead of asking the platform.
        """
        super().load_model(load_dummy_weights, model=model)
        if isinstance(self.model, CUDAGraphWrapper):
            self.model = StaticGraphWrapper(
                self.model.unwrap(), self.vllm_config, runtime_mode=CUDAGraphMode.FULL
            )

    def _sample(self, logits: Any, spec_decode_metadata: Any) -> SamplerOutput:
        """Sample, then undo what rows in the middle of a prompt drew from their generators.

        vLLM rewinds those generators by an offset of four, the amount that CUDA's Philox
        generator advances; a CPU generator has no offset at all.
        """
        saved = [(item, item.get_state()) for item in self._discarded_generators().values()]
        output = super()._sample(logits, spec_decode_metadata)
        for generator, state in saved:
            generator.set_state(state)
        if self.acceptance is not None and spec_decode_metadata is not None:
            proposed = sum(spec_decode_metadata.num_draft_tokens)
            self.acceptance.add(proposed, output.sampled_token_ids)
        return output

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        """Keep vLLM from rewinding generators that `_sample` has already restored."""
        discarded = self._discarded_generators()
        generators = self.input_batch.generators
        for row in discarded:
            del generators[row]
        try:
            return super()._bookkeeping_sync(*args, **kwargs)
        finally:
            generators.update(discarded)

    def _discarded_generators(self) -> dict[int, torch.Generator]:
        """Row -> generator of seeded requests whose token of this step is thrown away."""
        mask = self.discard_request_mask.np
        generators: dict[int, torch.Generator] = self.input_batch.generators
        return {row: item for row, item in generators.items() if mask[row]}

    def _init_kv_zero_meta(self) -> None:
        """Collect the attention caches and how many kernel blocks a manager block has."""
        layers = self.compilation_config.static_forward_context
        num_blocks = self.kv_cache_config.num_blocks
        seen: set[int] = set()
        for group in self._kv_cache_spec_attn_group_iterator():
            if not isinstance(group.kv_cache_spec, AttentionSpec):
                continue
            for name in group.layer_names:
                cache = layers[name].kv_cache
                if name in self.runner_only_attn_layers or cache.data_ptr() in seen:
                    continue
                seen.add(cache.data_ptr())
                self._zeroed_caches.append((cache, cache.shape[0] // num_blocks))

    def _zero_block_ids(self, block_ids: list[int]) -> None:
        """Zero blocks that a request gets for the first time.

        Blocks are shared with recurrent states, whose bytes may read as infinities: masked
        attention multiplies them by zero.
        """
        if not block_ids:
            return
        blocks = torch.tensor(block_ids, dtype=torch.int64, device=self.device)
        for cache, split in self._zeroed_caches:
            offsets = torch.arange(split, dtype=torch.int64, device=self.device)
            kernel_blocks = (blocks[:, None] * split + offsets).flatten()
            cache.index_fill_(0, kernel_blocks, 0)
