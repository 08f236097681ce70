"""What the indexer of transformers' DeepSeek-V4 chooses from, and that no choice was a tie.

Two blocks of one score leave it to the program which of them is taken: equal logits would be luck.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.vllm.conftest import Engine
from tests.vllm.oracle_deepseek_v4 import Rounding, assert_matches, oracle_model

RATIO = 4


@dataclass
class Choices:
    """Of every layer with an indexer."""

    top_k: int
    gaps: list[float] = field(default_factory=list)
    """Least distance of the last block taken and the first one left, in each pass of a layer."""
    tokens: Counter[Any] = field(default_factory=Counter)
    """That each scorer has seen so far."""

    @property
    def most_seen(self) -> int:
        """Blocks that the last token sees."""
        return max(self.tokens.values()) // RATIO

    def note(self, scorer: Any, _: Any, scores_BST: Tensor) -> None:
        """Forward hook of a scorer, over the next tokens of a sequence."""
        scores_ST = scores_BST[0]
        visible_S = (torch.arange(scores_ST.shape[0]) + 1 + self.tokens[scorer]) // RATIO
        self.tokens[scorer] += scores_ST.shape[0]
        hidden_ST = torch.arange(scores_ST.shape[1]) >= visible_S[:, None]
        choosing_S = visible_S > self.top_k
        if choosing_S.any():
            masked_ST = scores_ST.masked_fill(hidden_ST, -torch.inf)[choosing_S]
            best = masked_ST.topk(self.top_k + 1).values
            self.gaps.append((best[:, -2] - best[:, -1]).min().item())


@contextmanager
def choosing(model: Any) -> Iterator[Choices]:
    """Watch the scorers of a model."""
    choices = Choices(model.config.index_topk)
    hooks = [
        module.register_forward_hook(choices.note)
        for module in model.modules()
        if type(module).__name__ == "DeepseekV4IndexerScorer"
    ]
    try:
        yield choices
    finally:
        for hook in hooks:
            hook.remove()
    assert all(gap > 0 for gap in choices.gaps), f"two blocks of one score: {choices.gaps}"


def assert_chooses_and_matches(
    engine: Engine, prompt: list[int], answer: dict[str, Any], rounding: Rounding, scratch: Path
) -> None:
    """As `assert_matches`; the indexer had no ties, and of long prompts it takes a quarter."""
    model = oracle_model(Path(engine.planned.plan.model.checkpoint), rounding, scratch)
    with choosing(model) as choices:
        assert_matches(engine, prompt, answer, rounding, scratch)
    if len(prompt) >= 4 * RATIO * choices.top_k:
        assert choices.most_seen >= 4 * choices.top_k
        assert len(choices.tokens) == engine.planned.resolved.config["compress_ratios"].count(RATIO)
        assert choices.gaps
