"""The `attention` section: which mechanism reads the context."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from ascend_recipes.schema.base import Spec


class FullAttentionSpec(Spec):
    """Grouped-query attention in every layer."""

    kind: Literal["full"]


class HybridAttentionSpec(Spec):
    """Linear attention with a recurrent state, and full attention every few layers."""

    kind: Literal["hybrid"]


class LatentAttentionSpec(Spec):
    """Multi-head latent attention."""

    kind: Literal["mla"]
    fused_prolog: bool = True
    """Fuse the projections before attention into one operator where the hardware has it."""


class SparseAttentionSpec(Spec):
    """Latent attention over the blocks that a lightning indexer selects (SFA)."""

    kind: Literal["sfa"]
    fused_prolog: bool = True
    """Fuse the projections before attention into one operator where the hardware has it."""
    context_parallel: bool = False
    """Split tokens over the tensor-parallel group inside attention."""
    indexer_cache: Literal["model", "int8", "fp8"] = "model"
    """Element type of the indexer's key cache; `model` keeps the model's dtype."""
    index_share_layers: NonNegativeInt = 0
    """Compute the index in every n-th layer and reuse it in between; 0 follows the model."""
    reshaped_writes: bool = False
    """Write 8-bit caches block by block; needs an 8-bit indexer cache, meant for prefill."""


class CompressedAttentionSpec(Spec):
    """Sliding window plus compressed context, sparse through an indexer (DSA)."""

    kind: Literal["dsa"]
    context_parallel: bool = False
    """Split tokens over the tensor-parallel group inside attention."""
    indexer_precision: Literal["hardware", "float"] = "hardware"
    """`hardware` is the 8-bit indexer of the generation; `float` is for tests and is marked."""
    overlap_streams: bool = True
    """Run independent parts of a layer on side streams."""
    index_share_layers: NonNegativeInt = 0
    """Compute the index in every n-th indexed layer, reuse it in between; 0 follows the model."""


AttentionSpec = Annotated[
    FullAttentionSpec
    | HybridAttentionSpec
    | LatentAttentionSpec
    | SparseAttentionSpec
    | CompressedAttentionSpec,
    Field(discriminator="kind"),
]
