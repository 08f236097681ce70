"""The `parallel` and `moe` sections: how work is split over devices."""

from typing import Literal

from pydantic import NonNegativeInt

from ascend_recipes.schema.base import Count, Spec


class ParallelSpec(Spec):
    """Sizes of the parallel axes, in dies."""

    tp: Count = 1
    """Tensor parallel: dies that share every layer."""
    dp: Count = 1
    """Data parallel: replicas of the attention part."""
    pp: Count = 1
    """Pipeline parallel: stages."""
    ep: bool = False
    """Expert parallel over the whole tp × dp world instead of splitting each expert."""
    dcp: Count = 1
    """Decode context parallel: dies inside tp that split the cache of one sequence."""
    sequence: bool = False
    """Split activations between MoE layers over the sequence instead of replicating them."""
    o_proj_tp: NonNegativeInt = 0
    """Own tensor-parallel size of the output projection; 0 follows tp."""
    lm_head_tp: NonNegativeInt = 0
    """Own tensor-parallel size of the language-model head; 0 follows tp."""
    embedding_tp: NonNegativeInt = 0
    """Own tensor-parallel size of the embedding; 0 follows tp."""
    mlp_tp: NonNegativeInt = 0
    """Own tensor-parallel size of dense feed-forward layers; 0 follows tp."""
    pp_layers: tuple[Count, ...] = ()
    """Layers of each pipeline stage; empty splits them evenly."""
    dcp_interleave_tokens: Count = 1
    """Consecutive tokens that one die of a decode-context-parallel group keeps."""

    @property
    def world_size(self) -> int:
        """Dies that one instance of the role occupies."""
        return self.tp * self.dp * self.pp


class MoeSpec(Spec):
    """Mixture-of-experts execution. Ignored by dense models."""

    fused_communication: bool = False
    """One operator for dispatch, feed-forward and combine."""
    hierarchical_communication: bool = False
    """Dispatch inside a node first, then between nodes."""
    prefill_dispatch: bool = False
    """Size the dispatch operator's buffers for prefill batches too."""
    overlap_shared_expert: bool = False
    """Run the shared expert on a side stream."""
    shared_expert: Literal["tp", "dp"] = "tp"
    """Split the shared expert over tensor parallelism, or keep one per die."""
    redundant_experts: NonNegativeInt = 0
    """Extra expert replicas that the load balancer may place."""
    load_balancing: Literal["off", "static", "dynamic"] = "off"
    """Placement of experts by observed load."""
    load_interval_steps: Count | None = None
    """Steps over which expert load is observed; none takes the runtime's own."""
    placement_interval_steps: Count | None = None
    """Steps between two moves of experts; none takes the runtime's own."""
    placement_policy: Literal["random", "greedy", "swift", "flash"] = "swift"
    """How experts are placed: at random, the simple balancer, or one of two refined ones."""
