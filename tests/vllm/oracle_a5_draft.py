"""DeepSeek-V4's drafter over published weights, as A5 rounds it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from tests.vllm.following import followed, following
from tests.vllm.oracle import read_tensors
from tests.vllm.oracle_a5 import a5_model, microscaled, open_tensors, round_inputs
from tests.vllm.oracle_draft import DraftOracle, Keys

PROJECTIONS = ("e_proj", "h_proj")
"""In the order in which the engine rounds what goes into them, before its layer."""


class NativeDraftOracle(DraftOracle):
    """Follows what the drafter rounded, pass by pass: of a later pass only the newest position."""

    def __init__(self, checkpoint: Path, scratch: Path, swapped: tuple[str, ...] = ()) -> None:
        tensors = open_tensors(read_tensors(checkpoint, "mtp.0."), swapped)
        super().__init__(a5_model(checkpoint, "native", scratch), tensors)
        round_inputs(self.layer, self.number, before=len(PROJECTIONS))

    @torch.no_grad()
    def drafts_behind(
        self, tokens: list[int], streams_SMH: Tensor, passes: Sequence[dict[str, Any]]
    ) -> Tensor:
        """Logits `[K, V]` of the drafts behind the last token, one a pass.

        Args:
            tokens: prompt and its first token.
            streams_SMH: `target_streams` of the prompt.
            passes: tapes of the drafter's passes.
        """
        cached = f"{self.number}.write_latent_rows.0"
        inputs, keys, rows = tokens[1:], Keys(), []
        for count, tape in enumerate(passes, 1):
            # Attention reads the rows of all passes.
            written = numpy.concatenate([earlier[cached] for earlier in passes[:count]])
            with following([{**tape, cached: written}]):
                streams_SMH = self.step(inputs, streams_SMH, keys)[-1:]
            rows.append(self.logits(streams_SMH[0]))
            inputs = [int(rows[-1].argmax())]
        return torch.stack(rows)

    def project(self, x: Tensor, name: str) -> Tensor:
        key = f"{self.number}.mx_quant.{PROJECTIONS.index(name)}"
        return super().project(microscaled(followed(key, x)), name)
