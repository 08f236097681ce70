"""Gated delta net layer of Qwen3.5 through operations.

Legend: T tokens, C convolution channels of this rank, W convolution width, Nk and Nv key and
value heads of this rank, K and V their dimensions (128), S states, R requests.
"""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention

from ascend_recipes.attention.gated_delta_net import GatedDeltaNetMetadata
from ascend_recipes.ops import operations


@dataclass(frozen=True)
class _HeadInputs:
    """What the delta rule takes after the convolution."""

    query_TNkK: torch.Tensor
    key_TNkK: torch.Tensor
    value_TNvV: torch.Tensor
    g_TNv: torch.Tensor
    beta_TNv: torch.Tensor


class AscendQwenGatedDeltaNet(QwenGatedDeltaNetAttention):
    """Replaces the convolution and the delta rule; projections and output norm stay vLLM's.

    vLLM calls `_forward_core` from an opaque operator, with states bound as `kv_cache`:
    convolution states `[S, L, C]` with L >= W - 1, and recurrent states `[S, Nv, V, K]`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # vLLM's own delta rule would stay in the module tree without ever being called.
        del self.chunk_gated_delta_rule
        # With a drafter and bfloat16, vLLM would call its CUDA kernels instead of `_forward_core`.
        self.enable_fused_gdn_spec_decode = False

    def _forward_core(
        self,
        mixed_qkv: torch.Tensor,
        b: torch.Tensor,
        a: torch.Tensor,
        core_attn_out: torch.Tensor,
    ) -> None:
        """Convolve, then run the delta rule for decodes, prefills and verified drafts.

        Args:
            mixed_qkv: `[T, C]`, query, key and value channels before the convolution.
            b: `[T, Nv]`, before the sigmoid.
            a: `[T, Nv]`, before the softplus.
            core_attn_out: `[T, Nv, V]`, written.
        """
        step = get_forward_context().attn_metadata
        metadata = step.get(self.prefix) if isinstance(step, dict) else None
        if metadata is None:
            return
        assert isinstance(metadata, GatedDeltaNetMetadata)
        tokens = metadata.num_actual_tokens
        # The projection also holds the output gate, so its channels have gaps between tokens.
        mixed_TC = mixed_qkv[:tokens].contiguous()
        b_TNv, a_TNv = b[:tokens], a[:tokens]
        if metadata.spec_sequence_masks is None:
            self._without_drafts(mixed_TC, b_TNv, a_TNv, core_attn_out, metadata)
        else:
            self._with_drafts(mixed_TC, b_TNv, a_TNv, core_attn_out, metadata)

    def _without_drafts(
        self,
        mixed_TC: torch.Tensor,
        b_TNv: torch.Tensor,
        a_TNv: torch.Tensor,
        out_TNvV: torch.Tensor,
        metadata: GatedDeltaNetMetadata,
    ) -> None:
        # vLLM orders the batch decodes first, so both parts are slices.
        split, tokens = metadata.num_decode_tokens, metadata.num_actual_tokens
        if metadata.num_prefills == 0:
            split = tokens
        if split:
            decode = slice(0, split)
            out_TNvV[decode] = self._decode(
                mixed_TC[decode], b_TNv[decode], a_TNv[decode], metadata
            )
        if metadata.num_prefills:
            prefill = slice(split, tokens)
            out_TNvV[prefill] = self._prefill(
                mixed_TC[prefill], b_TNv[prefill], a_TNv[prefill], metadata
            )

    def _with_drafts(
        self,
        mixed_TC: torch.Tensor,
        b_TNv: torch.Tensor,
        a_TNv: torch.Tensor,
        out_TNvV: torch.Tensor,
        metadata: GatedDeltaNetMetadata,
    ) -> None:
        # With drafts in the step, rows without any are counted as prefills and interleave.
        draft_T, other_T = metadata.spec_token_indx, metadata.non_spec_token_indx
        assert draft_T is not None
        assert other_T is not None
        if metadata.num_prefills == 0:
            tokens = metadata.num_actual_tokens
            out_TNvV[:tokens] = self._verify(mixed_TC, b_TNv, a_TNv, metadata)
            return
        drafts = (mixed_TC[draft_T], b_TNv[draft_T], a_TNv[draft_T])
        others = (mixed_TC[other_T], b_TNv[other_T], a_TNv[other_T])
        out_TNvV.index_copy_(0, draft_T, self._verify(*drafts, metadata))
        out_TNvV.index_copy_(0, other_T, self._prefill(*others, metadata))

    def _decode(
        self,
        mixed_TC: torch.Tensor,
        b_TNv: torch.Tensor,
        a_TNv: torch.Tensor,
        metadata: GatedDeltaNetMetadata,
    ) -> torch.Tensor:
        """One token a request: `[T, Nv, V]`, states updated in place."""
        rows = metadata.decode_rows
        assert rows is not None
        assert metadata.non_spec_state_indices_tensor is not None
        conv_state, state_SNvVK = self.kv_cache
        slots_R = metadata.non_spec_state_indices_tensor[: mixed_TC.shape[0]]
        convolved_TC = operations.causal_conv1d(
            mixed_TC,
            self._conv_weight(),
            conv_state,
            query_start_R1=rows.starts_R1,
            cache_indices_R=slots_R,
            has_initial_state_R=None,
            bias=self.conv1d.bias,
            activation=self.activation,
            num_accepted=None,
            decode=True,
        )
        heads = self._heads(convolved_TC, b_TNv, a_TNv)
        return operations.recurrent_gated_delta_rule(
            heads.query_TNkK,
            heads.key_TNkK,
            heads.value_TNvV,
            heads.g_TNv,
            heads.beta_TNv,
            state_SNvVK,
            lengths_R=rows.lengths_R,
            state_indices=slots_R,
            num_accepted=None,
            scale=self.head_k_dim**-0.5,
        )

    def _prefill(
        self,
        mixed_TC: torch.Tensor,
        b_TNv: torch.Tensor,
        a_TNv: torch.Tensor,
        metadata: GatedDeltaNetMetadata,
    ) -> torch.Tensor:
        """Chunks of prompts: `[T, Nv, V]`, states of their requests replaced."""
        slots_R = metadata.prefill_state_indices
        has_state_R = metadata.prefill_has_initial_state
        assert slots_R is not None
        assert has_state_R is not None
        slots_R = slots_R[: metadata.num_prefills]
        has_state_R = has_state_R[: metadata.num_prefills]
        conv_state, state_SNvVK = self.kv_cache
        convolved_TC = operations.causal_conv1d(
            mixed_TC,
            self._conv_weight(),
            conv_state,
            query_start_R1=metadata.prefill_query_start_loc[: metadata.num_prefills + 1],
            cache_indices_R=slots_R,
            has_initial_state_R=has_state_R,
            bias=self.conv1d.bias,
            activation=self.activation,
            num_accepted=None,
            decode=False,
        )
        heads = self._heads(convolved_TC, b_TNv, a_TNv)
        # A block that was freed and given to a new request still holds its old state.
        # It is not multiplied by zero, because reused memory may hold infinities.
        initial_RNvVK = state_SNvVK[slots_R]
        initial_RNvVK = torch.where(has_state_R.view(-1, 1, 1, 1), initial_RNvVK, 0)
        out_TNvV, final_RNvVK = operations.chunk_gated_delta_rule(
            heads.query_TNkK,
            heads.key_TNkK,
            heads.value_TNvV,
            heads.g_TNv,
            heads.beta_TNv,
            initial_RNvVK,
            lengths_R=metadata.prefill_lengths,
            scale=self.head_k_dim**-0.5,
        )
        state_SNvVK[slots_R] = final_RNvVK.to(state_SNvVK.dtype)
        return out_TNvV

    def _verify(
        self,
        mixed_TC: torch.Tensor,
        b_TNv: torch.Tensor,
        a_TNv: torch.Tensor,
        metadata: GatedDeltaNetMetadata,
    ) -> torch.Tensor:
        """Drafts of the last step: `[T, Nv, V]`, one state kept per draft.

        The state to start from is that of the last accepted token; token t of the step writes
        its state into the t-th slot of its request, so that a rejection needs no copy.
        """
        rows, accepted_R = metadata.draft_rows, metadata.num_accepted_tokens
        assert rows is not None
        assert accepted_R is not None
        conv_state, state_SNvVK = self.kv_cache
        convolved_TC = operations.causal_conv1d(
            mixed_TC,
            self._conv_weight(),
            conv_state,
            query_start_R1=metadata.spec_query_start_loc,
            cache_indices_R=rows.first_slots_R,
            has_initial_state_R=None,
            bias=self.conv1d.bias,
            activation=self.activation,
            num_accepted=accepted_R,
            decode=True,
        )
        if rows.start_slots_R is not None:
            state_SNvVK[rows.first_slots_R] = state_SNvVK[rows.start_slots_R]
            accepted_R = torch.ones_like(accepted_R)
        heads = self._heads(convolved_TC, b_TNv, a_TNv)
        return operations.recurrent_gated_delta_rule(
            heads.query_TNkK,
            heads.key_TNkK,
            heads.value_TNvV,
            heads.g_TNv,
            heads.beta_TNv,
            state_SNvVK,
            lengths_R=rows.lengths_R,
            state_indices=rows.slots_T,
            num_accepted=accepted_R,
            scale=self.head_k_dim**-0.5,
        )

    def _heads(
        self, convolved_TC: torch.Tensor, b_TNv: torch.Tensor, a_TNv: torch.Tensor
    ) -> _HeadInputs:
        tokens = convolved_TC.shape[0]
        key_width, value_width = self.key_dim // self.tp_size, self.value_dim // self.tp_size
        query, key, value = convolved_TC.split([key_width, key_width, value_width], dim=-1)
        g_TNv, beta_TNv = operations.delta_rule_gates(a_TNv, b_TNv, self.A_log, self.dt_bias)
        return _HeadInputs(
            query_TNkK=operations.l2_norm(query.reshape(tokens, -1, self.head_k_dim)),
            key_TNkK=operations.l2_norm(key.reshape(tokens, -1, self.head_k_dim)),
            value_TNvV=value.reshape(tokens, -1, self.head_v_dim).contiguous(),
            g_TNv=g_TNv,
            beta_TNv=beta_TNv,
        )

    def _conv_weight(self) -> torch.Tensor:
        """Convolution weight `[W, C]`; the checkpoint holds `[C, 1, W]`."""
        return self.conv1d.weight.squeeze(1).t().contiguous()
