"""State backend of gated delta nets: which state each request reads and writes in a step.

Legend: R requests, T tokens.
"""

from dataclasses import dataclass, fields

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.gdn_attn import (
    GDNAttentionBackend,
    GDNAttentionMetadata,
    GDNAttentionMetadataBuilder,
)


@dataclass
class GatedDeltaNetMetadata(GDNAttentionMetadata):
    """vLLM's metadata plus per-request lengths, once a step instead of once a layer."""

    decode_starts: torch.Tensor | None = None
    """int32 `[decodes + 1]`, first token of each decode; one token each."""
    decode_lengths: torch.Tensor | None = None
    """int32 `[decodes]`, all ones."""
    prefill_lengths: torch.Tensor | None = None
    """int32 `[prefills]`."""
    draft_lengths: torch.Tensor | None = None
    """int32 `[requests with drafts]`."""


class GatedDeltaNetBuilder(GDNAttentionMetadataBuilder):
    """Adds lengths to vLLM's metadata.

    It derives from vLLM's builder because the V1 runner passes accepted draft counts only to
    builders of that class.
    """

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
        decodes = _decode_rows(metadata)
        if decodes:
            device = common_attn_metadata.query_start_loc.device
            metadata.decode_starts = torch.arange(decodes + 1, dtype=torch.int32, device=device)
            metadata.decode_lengths = torch.ones(decodes, dtype=torch.int32, device=device)
        if metadata.prefill_query_start_loc is not None:
            starts = metadata.prefill_query_start_loc[: metadata.num_prefills + 1]
            metadata.prefill_lengths = starts.diff()
        if metadata.spec_query_start_loc is not None:
            metadata.draft_lengths = metadata.spec_query_start_loc.diff()
        return metadata


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
