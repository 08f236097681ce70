"""Moves recurrent states to block boundaries when drafts and aligned prefix caching meet.

With drafts, the state after token t of a step lies in the t-th slot of its request. Aligned
prefix caching wants the state at each block boundary in the slot of that block: before a step the
running state moves into the block that the step writes, after a step a state that happens to lie
at a boundary is kept. vLLM hands over addresses of states and block tables. Parameter names are
those of its kernels.

Reading decisions and addresses waits for the device; on hardware this costs one synchronisation
a step, which a kernel of our own would save.
"""

from dataclasses import dataclass

import torch

from ascend_recipes.apply import current_plan
from ascend_recipes.worker.device.current import runtime_for
from ascend_recipes.worker.device.interface import DeviceRuntime

_BLOCK_ID_BYTES = 4


def move_states_before_step(
    mamba_state_idx_ptr: torch.Tensor,
    src_col_ptr: torch.Tensor,
    token_bias_ptr: torch.Tensor,
    block_table_ptrs_ptr: torch.Tensor,
    block_table_stride_req: int,
    state_base_addrs_ptr: torch.Tensor,
    state_block_strides_ptr: torch.Tensor,
    state_elem_sizes_ptr: torch.Tensor,
    state_inner_sizes_ptr: torch.Tensor,
    state_conv_widths_ptr: torch.Tensor,
    state_group_indices_ptr: torch.Tensor,
    state_dim_row_count_ptr: torch.Tensor,
    state_dim_row_stride_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor | None,
    num_reqs: int,
    COPY_BLOCK_SIZE: int,
    CONV_STATE_DIM_FIRST: bool,
    HAS_IDX_MAPPING: bool = True,
    TEMPORAL_TILES: int = 1,
) -> None:
    """Copy the running state of requests that enter a new block (`precopy_mamba_align`)."""
    assert not CONV_STATE_DIM_FIRST, "convolution states are stored token by token"
    states = _States(
        runtime_for(current_plan().device),
        block_table_ptrs_ptr.tolist(),
        block_table_stride_req,
        _layouts(
            state_base_addrs_ptr,
            state_block_strides_ptr,
            state_elem_sizes_ptr,
            state_inner_sizes_ptr,
            state_conv_widths_ptr,
            state_group_indices_ptr,
        ),
    )
    sources, destinations = src_col_ptr.tolist(), mamba_state_idx_ptr.tolist()
    biases = token_bias_ptr.tolist()
    for request in _requests(idx_mapping_ptr, num_reqs):
        if sources[request] >= 0 and sources[request] != destinations[request]:
            states.copy(request, sources[request], destinations[request], biases[request])


def keep_states_after_step(
    num_accepted_tokens_ptr: torch.Tensor,
    mamba_state_idx_ptr: torch.Tensor,
    num_scheduled_tokens_ptr: torch.Tensor | None,
    num_computed_tokens_ptr: torch.Tensor,
    num_draft_tokens_ptr: torch.Tensor | None,
    block_table_ptrs_ptr: torch.Tensor,
    block_table_stride_req: int,
    state_base_addrs_ptr: torch.Tensor,
    state_block_strides_ptr: torch.Tensor,
    state_elem_sizes_ptr: torch.Tensor,
    state_inner_sizes_ptr: torch.Tensor,
    state_conv_widths_ptr: torch.Tensor,
    state_group_indices_ptr: torch.Tensor,
    state_dim_row_count_ptr: torch.Tensor,
    state_dim_row_stride_ptr: torch.Tensor,
    num_accepted_tokens_out_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor | None,
    num_reqs: int,
    block_size: int,
    COPY_BLOCK_SIZE: int,
    CONV_STATE_DIM_FIRST: bool,
    HAS_IDX_MAPPING: bool = False,
    PRECOMPUTED_NEW_COMPUTED: bool = False,
    TEMPORAL_TILES: int = 1,
) -> None:
    """Copy states at block boundaries into the slot of their block (`postprocess_mamba`)."""
    assert not CONV_STATE_DIM_FIRST, "convolution states are stored token by token"
    states = _States(
        runtime_for(current_plan().device),
        block_table_ptrs_ptr.tolist(),
        block_table_stride_req,
        _layouts(
            state_base_addrs_ptr,
            state_block_strides_ptr,
            state_elem_sizes_ptr,
            state_inner_sizes_ptr,
            state_conv_widths_ptr,
            state_group_indices_ptr,
        ),
    )
    accepted, columns = num_accepted_tokens_ptr.tolist(), mamba_state_idx_ptr.tolist()
    computed = num_computed_tokens_ptr.tolist()
    running = _running_tokens(computed, accepted, num_scheduled_tokens_ptr, num_draft_tokens_ptr)
    for request in _requests(idx_mapping_ptr, num_reqs):
        before = running[request]
        boundary = (before + accepted[request] - 1) // block_size * block_size
        if boundary < before:
            continue
        bias, column = boundary - before, boundary // block_size - 1
        if column == columns[request]:
            num_accepted_tokens_out_ptr[request] = 1
        if column != columns[request] or bias:
            states.copy(request, columns[request], column, bias)


@dataclass(frozen=True)
class _Layout:
    """One state tensor of one layer, in bytes."""

    base: int
    block_stride: int
    token_bytes: int
    """Bytes of one token of a convolution state, or of a whole recurrent state."""
    tokens: int
    """Tokens of a convolution state; 0 for a recurrent state."""
    group: int


@dataclass(frozen=True)
class _States:
    runtime: DeviceRuntime
    block_tables: list[int]
    """Address of each group's int32 block table."""
    block_table_stride: int
    layouts: tuple[_Layout, ...]

    def copy(self, request: int, source: int, destination: int, bias: int) -> None:
        """Copy all states of a request between two columns of its block table.

        Args:
            request: row of the block tables.
            source: column that the request's states are in.
            destination: column to write.
            bias: tokens that were accepted after the first: a convolution window is shifted by
                them, of the recurrent states that many columns further is the right one.
        """
        for layout in self.layouts:
            target = layout.base + self._block(layout, request, destination) * layout.block_stride
            if layout.tokens:
                block = self._block(layout, request, source)
                skipped = bias * layout.token_bytes
                size = layout.tokens * layout.token_bytes - skipped
            else:
                block = self._block(layout, request, source + bias)
                skipped, size = 0, layout.token_bytes
            origin = layout.base + block * layout.block_stride + skipped
            # A window shifted inside its own block overlaps itself, so read all before writing.
            content = self.runtime.bytes_at(origin, size).clone()
            self.runtime.bytes_at(target, size).copy_(content)

    def _block(self, layout: _Layout, request: int, column: int) -> int:
        cell = request * self.block_table_stride + column
        address = self.block_tables[layout.group] + cell * _BLOCK_ID_BYTES
        return int(self.runtime.bytes_at(address, _BLOCK_ID_BYTES).view(torch.int32).item())


def _layouts(
    bases: torch.Tensor,
    strides: torch.Tensor,
    element_sizes: torch.Tensor,
    inner_sizes: torch.Tensor,
    widths: torch.Tensor,
    groups: torch.Tensor,
) -> tuple[_Layout, ...]:
    columns = (bases, strides, element_sizes, inner_sizes, widths, groups)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(
        _Layout(base, stride, element * inner, width, group)
        for base, stride, element, inner, width, group in rows
    )


def _requests(mapping: torch.Tensor | None, count: int) -> list[int]:
    if mapping is None:
        return list(range(count))
    return [request for request in mapping[:count].tolist() if request >= 0]


def _running_tokens(
    computed: list[int],
    accepted: list[int],
    scheduled: torch.Tensor | None,
    drafts: torch.Tensor | None,
) -> list[int]:
    """Tokens behind the state that the step began to extend, its first new one included."""
    if scheduled is None or drafts is None:
        return [total - count + 1 for total, count in zip(computed, accepted, strict=False)]
    new = (scheduled - drafts).tolist()
    return [total + count for total, count in zip(computed, new, strict=False)]
