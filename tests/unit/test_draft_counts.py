"""Acceptance statistics as people read them."""

import pytest

from ascend_recipes.receipts import DraftCounts


@pytest.mark.parametrize(
    ("proposed", "accepted", "text"),
    [
        (570, (170, 132, 110), "412 of 570 accepted (72 %), by position 170 132 110"),
        (8, (2,), "2 of 8 accepted (25 %)"),
        (0, (0, 0), "0 of 0 accepted, by position 0 0"),
    ],
)
def test_text(proposed: int, accepted: tuple[int, ...], text: str):
    assert DraftCounts(proposed=proposed, accepted=accepted).to_text() == text
