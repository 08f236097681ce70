"""State backend of gated delta nets: which state each request reads and writes in a step.

Legend: R requests, T tokens.
"""

from dataclasses import dataclass, fields

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.gdn_attn import (
    GDNAttentionBackend,
    GDNAttentionMetadata,
    GDNAttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import MambaSpec


@dataclass
class DecodeRows:
    """Requests with one token each; in a graph, padding rows count as such."""

    starts_R1: torch.Tensor
    """int32 `[R + 1]`, first token of each."""
    lengths_R: torch.Tensor
    """int32 `[R]`, all ones."""


@dataclass
class DraftRows:
    """Requests whose drafts are verified in this step."""

    lengths_R: torch.Tensor
    """int32 `[R]`, tokens of each; 0 for padding."""
    first_slots_R: torch.Tensor
    """int32 `[R]`, slot that holds the convolution window."""
    slots_T: torch.Tensor
    """int32 `[T]`, slot that receives the state after each token."""
    start_slots_R: torch.Tensor | None
    """int32 `[R]`, slot of the state to start from, where it must be moved to the first slot.

    The recurrent operator finds the state to start from among the slots of the step's own tokens.
    A request with fewer drafts than in the last step has too few of them.
    """


@dataclass
class GatedDeltaNetMetadata(GDNAttentionMetadata):
    """vLLM's metadata plus per-request lengths, once a step instead of once a layer."""

    decode_rows: DecodeRows | None = None
    prefill_lengths: torch.Tensor | None = None
    """int32 `[prefills]`."""
    draft_rows: DraftRows | None = None


class GatedDeltaNetBuilder(GDNAttentionMetadataBuilder):
    """Adds lengths to vLLM's metadata.

    It derives from vLLM's builder because the V1 runner passes accepted draft counts only to
    builders of that class. What a captured graph reads lies in buffers that outlive the step.
    """

    def __init__(
        self,
        kv_cache_spec: MambaSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        rows = max(vllm_config.scheduler_config.max_num_seqs, self.decode_cudagraph_max_bs)
        tokens = rows * (self.num_spec + 1)
        self._starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._ones = torch.ones(rows, dtype=torch.int32, device=device)
        self._draft_lengths = torch.zeros(rows, dtype=torch.int32, device=device)
        self._draft_first_slots = torch.zeros(rows, dtype=torch.int32, device=device)
        self._draft_slots = torch.zeros(tokens, dtype=torch.int32, device=device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        num_accepted_tokens: torch.Tensor | None = None,
        num_decode_draft_tokens_cpu: torch.Tensor | None = None,
        fast_build: bool = False,
    ) -> GatedDeltaNetMetadata:
        """Build the metadata of one step."""
        base = super().build(
            common_prefix_len,
            common_attn_metadata,
            num_accepted_tokens=num_accepted_tokens,
            num_decode_draft_tokens_cpu=num_decode_draft_tokens_cpu,
            fast_build=fast_build,
        )
        values = {item.name: vars(base)[item.name] for item in fields(base)}
        metadata = GatedDeltaNetMetadata(**values)
        if decodes := _decode_rows(metadata):
            metadata.decode_rows = DecodeRows(self._starts[: decodes + 1], self._ones[:decodes])
        if metadata.prefill_query_start_loc is not None:
            starts = metadata.prefill_query_start_loc[: metadata.num_prefills + 1]
            metadata.prefill_lengths = starts.diff()
        if metadata.spec_query_start_loc is not None:
            metadata.draft_rows = self._draft_rows(metadata)
        return metadata

    def _draft_rows(self, metadata: GatedDeltaNetMetadata) -> DraftRows:
        starts, slots = metadata.spec_query_start_loc, metadata.spec_state_indices_tensor
        assert starts is not None
        assert slots is not None
        rows = starts.shape[0] - 1
        lengths_R = self._draft_lengths[:rows].copy_(starts.diff())
        first_R = self._draft_first_slots[:rows].copy_(slots[:rows, 0])
        if metadata.uniform_spec_sequence_length == slots.shape[1]:
            slots_T = self._draft_slots[: rows * slots.shape[1]]
            slots_T.copy_(slots[:rows].flatten())
            return DraftRows(lengths_R, first_R, slots_T, None)
        # Ragged steps are never captured, so nothing here has to stay in place.
        accepted_R = metadata.num_accepted_tokens
        assert accepted_R is not None
        column = torch.arange(slots.shape[1], device=slots.device)
        slots_T = slots[:rows][column < lengths_R[:, None]]
        start_R = slots[:rows].gather(1, accepted_R[:rows, None].to(torch.int64) - 1).squeeze(1)
        return DraftRows(lengths_R, first_R, slots_T, start_R)


class GatedDeltaNetBackend(GDNAttentionBackend):
    """Convolution and recurrent states of gated delta nets."""

    @staticmethod
    def get_builder_cls() -> type[GatedDeltaNetBuilder]:
        """The class that prepares a step."""
        return GatedDeltaNetBuilder


def _decode_rows(metadata: GDNAttentionMetadata) -> int:
    """Decodes of the step; in a decode-only step, rows of graph padding count as decodes.

    The operators want lengths that cover every token. Padding rows point to the null block,
    whose state nobody reads.
    """
    if metadata.num_decodes == 0:
        return 0
    only_decodes = metadata.num_prefills == 0 and metadata.num_spec_decodes == 0
    return metadata.num_actual_tokens if only_decodes else metadata.num_decodes
