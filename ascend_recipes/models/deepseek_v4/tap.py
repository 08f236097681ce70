"""What a drafter reads of the target's layers.

Legend: T tokens, M streams, H hidden.
"""

import torch
from vllm.config import VllmConfig

from ascend_recipes.apply import current_plan

BLOCK_DRAFTER = "dspark"


class StreamsTap:
    """The streams behind the last layer, before they are merged: what MTP continues."""

    def __init__(self, buffer: torch.Tensor, last_layer: int) -> None:
        self.buffer = buffer
        self._last = last_layer

    def after_layer(self, index: int, streams_TMH: torch.Tensor) -> None:
        """Keep the streams of the last layer."""
        if index == self._last:
            self.buffer[: streams_TMH.shape[0]].copy_(streams_TMH.flatten(1))


class LayerMeansTap:
    """The mean over streams behind some layers, side by side: what the block drafter reads."""

    def __init__(self, buffer: torch.Tensor, layers: tuple[int, ...]) -> None:
        self.buffer = buffer
        self._width = buffer.shape[1] // len(layers)
        self._columns = {layer: index * self._width for index, layer in enumerate(layers)}

    def after_layer(self, index: int, streams_TMH: torch.Tensor) -> None:
        """Keep the mean if the layer is one of those."""
        if (first := self._columns.get(index)) is not None:
            part = self.buffer[: streams_TMH.shape[0], first : first + self._width]
            part.copy_(streams_TMH.mean(dim=1))


def drafter_tap(vllm_config: VllmConfig) -> StreamsTap | LayerMeansTap | None:
    """The tap of the plan's drafter, none without one.

    Its storage is the same at every step: the drafter reads it after a graph wrote it.
    """
    drafter = current_plan().drafter
    if drafter is None:
        return None
    config = vllm_config.model_config.hf_config
    rows = vllm_config.scheduler_config.max_num_batched_tokens
    means = drafter.kind == BLOCK_DRAFTER
    parts = len(config.dspark_target_layer_ids) if means else config.hc_mult
    buffer = torch.empty(rows, parts * config.hidden_size, dtype=vllm_config.model_config.dtype)
    if means:
        return LayerMeansTap(buffer, tuple(config.dspark_target_layer_ids))
    return StreamsTap(buffer, config.num_hidden_layers - 1)
