"""Proposes a block of drafts at once: one pass of the drafter, then a choice token by token.

vLLM has a proposer of this kind for its second model runner only, which launches Triton kernels.
Here it stands where the first runner expects its own: under the method name `mtp` the runner hands
over what the target computed, and this class makes drafts of it in its own way.

Legend: T tokens of the step, X what the target hands over of each, R requests, K drafts,
V vocabulary.
"""

from collections.abc import Mapping
from typing import Any, Protocol, cast

import torch
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.spec_decode.eagle import EagleProposer
from vllm.v1.worker.utils import AttentionGroup

from ascend_recipes.attention.compressed_sparse import CompressedSparseMetadata, slot_pairs


class BlockDrafter(Protocol):
    """What a model offers to be asked for blocks."""

    noise_token_id: int
    """Stands for tokens that are not known yet."""
    cache_names: tuple[str, ...]
    """Its caches by name; they may belong to different groups."""

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states of the blocks of all requests."""

    def write_context(
        self,
        target_TX: torch.Tensor,
        positions_T: torch.Tensor,
        slots: Mapping[str, torch.Tensor],
    ) -> None:
        """Cache what it keeps of tokens that the target has run over."""

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits without regard to the token before."""

    def successor_bias(self, token_ids_R: torch.Tensor) -> torch.Tensor:
        """Bias of the token that follows each."""


class BlockProposer(EagleProposer):
    """Stands where the first model runner expects its own proposer."""

    model: BlockDrafter

    def __init__(self, vllm_config: VllmConfig, device: torch.device, runner: Any) -> None:
        super().__init__(vllm_config, device, runner)
        self._runner = runner
        self._groups: dict[str, int] = {}
        self._block_sizes: dict[str, int] = {}

    def initialize_attn_backend(
        self, kv_cache_config: KVCacheConfig, kernel_block_sizes: list[int] | None = None
    ) -> None:
        """Find the group of each stage's cache; the target's builders serve them all."""
        for number, group in enumerate(kv_cache_config.kv_cache_groups):
            for name in set(self.model.cache_names) & set(group.layer_names):
                self._groups[name] = number
                self._block_sizes[name] = group.kv_cache_spec.block_size
        first = self.model.cache_names[0]
        self.kv_cache_gid, self.block_size = self._groups[first], self._block_sizes[first]
        self.draft_attn_groups: list[AttentionGroup] = []

    @torch.inference_mode()
    def propose(
        self,
        num_speculative_tokens: int,
        target_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor,
        token_indices_to_sample: torch.Tensor | None,
        common_attn_metadata: CommonAttentionMetadata,
        sampling_metadata: Any,
        mm_embed_inputs: Any = None,
        num_rejected_tokens_gpu: torch.Tensor | None = None,
        slot_mappings: Any = None,
    ) -> torch.Tensor:
        """Draft for every request.

        Args:
            num_speculative_tokens: K; 0 only caches.
            target_token_ids: unused.
            target_positions: `[T]`.
            target_hidden_states: `[T, X]`, of rejected drafts too.
            next_token_ids: `[R]`, the token after the last that stands.
            token_indices_to_sample: unused.
            common_attn_metadata: lengths of the step, rejected drafts included.
            sampling_metadata: unused; the likeliest token is chosen.
            mm_embed_inputs: none.
            num_rejected_tokens_gpu: `[R]`, drafts of this step that do not stand.
            slot_mappings: places `[T]` by the name of the cache.

        Returns:
            `[R, K]` token ids, int64.
        """
        slots = {name: slot_mappings[name][: len(target_positions)] for name in self._groups}
        self.model.write_context(target_hidden_states, target_positions, slots)
        requests = common_attn_metadata.num_reqs
        if num_speculative_tokens == 0:
            return next_token_ids.new_empty(requests, 0, dtype=torch.int64)
        start_R = common_attn_metadata.seq_lens[:requests].long()
        if num_rejected_tokens_gpu is not None:
            start_R = start_R - num_rejected_tokens_gpu
        hidden = self._run_block(next_token_ids, start_R, num_speculative_tokens)
        logits_RKV = self.model.compute_logits(hidden).unflatten(0, (requests, -1))
        return self._choose(next_token_ids.long(), logits_RKV)

    def _run_block(
        self, next_token_ids_R: torch.Tensor, start_R: torch.Tensor, count: int
    ) -> torch.Tensor:
        """One pass over the known token and noise, all at positions behind the last that stands."""
        tokens_RK = next_token_ids_R.new_full((len(start_R), count), self.model.noise_token_id)
        tokens_RK[:, 0] = next_token_ids_R
        positions_RK = start_R[:, None] + self.arange[:count]
        num_tokens = tokens_RK.numel()
        _, _, across_dp = self._determine_batch_execution_and_padding(
            num_tokens, use_cudagraphs=False
        )
        with set_forward_context(
            self._metadata(positions_RK),
            self.vllm_config,
            num_tokens=num_tokens,
            num_tokens_across_dp=across_dp,
        ):
            return self.model(tokens_RK.flatten(), positions_RK.flatten())

    def _choose(self, previous_R: torch.Tensor, logits_RKV: torch.Tensor) -> torch.Tensor:
        """The likeliest token of each place, given the one chosen before it."""
        chosen = []
        for logits_RV in logits_RKV.unbind(1):
            previous_R = (logits_RV + self.model.successor_bias(previous_R)).argmax(dim=-1)
            chosen.append(previous_R)
        return torch.stack(chosen, dim=1)

    def _metadata(self, positions_RK: torch.Tensor) -> dict[str, CompressedSparseMetadata]:
        """The block as each cache sees it."""
        requests, count = positions_RK.shape
        bounds_R1 = self.arange[: requests + 1] * count
        lengths_R = (positions_RK[:, -1] + 1).int()
        steps = {}
        for name, group in self._groups.items():
            table = self._runner.input_batch.block_table[group]
            table_RV = table.get_device_tensor(requests)
            slots_RK = self._slots(table, table_RV, positions_RK, self._block_sizes[name])
            steps[name] = CompressedSparseMetadata(
                num_tokens=requests * count,
                query_start_R1=bounds_R1,
                start_R=positions_RK[:, 0].int(),
                kv_lengths_R=lengths_R,
                block_table_RV=table_RV,
                target_table_RV=table_RV,
                slots_T2=slot_pairs(slots_RK.flatten(), self._block_sizes[name]),
            )
        return steps

    def _slots(
        self, table: Any, table_RV: torch.Tensor, positions_RK: torch.Tensor, size: int
    ) -> torch.Tensor:
        """Places of the block; -1 behind the pages that the scheduler gave to a request.

        A request in the middle of its prompt has no room for drafts, and what its row of the table
        holds further on is left over from others.
        """
        column_RK = positions_RK // size
        held_R = torch.from_numpy(table.num_blocks_per_row[: len(table_RV)]).to(table_RV.device)
        block_RK = table_RV.long().gather(1, column_RK.clamp(max=table_RV.shape[1] - 1))
        slots_RK = block_RK * size + positions_RK % size
        return slots_RK.masked_fill(column_RK >= held_R[:, None], -1)

    @torch.inference_mode()
    def dummy_run(
        self,
        num_tokens: int,
        use_cudagraphs: bool = True,
        is_graph_capturing: bool = False,
        slot_mappings: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """One pass without caches, so that memory is measured and ranks that wait are answered."""
        if is_graph_capturing:
            return
        count = cast(int, self.num_speculative_tokens)
        requests = max(1, min(num_tokens // (count + 1), self.max_batch_size))
        _, _, across_dp = self._determine_batch_execution_and_padding(
            requests * count, use_cudagraphs=False
        )
        tokens_T = self.input_ids.new_full((requests * count,), self.model.noise_token_id)
        positions_T = torch.zeros_like(tokens_T, dtype=torch.int64)
        with set_forward_context(
            None,
            self.vllm_config,
            num_tokens=requests * count,
            num_tokens_across_dp=across_dp,
        ):
            self.model(tokens_T, positions_T)
