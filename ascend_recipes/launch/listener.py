"""Whom a serving run tells what happens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ascend_recipes.errors import Finding
from ascend_recipes.launch.stages import StageListener


class ServeListener(StageListener, Protocol):
    """Shows a serving run to people."""

    def started(self, folder: Path, command: str) -> None:
        """Announce the run folder and the command that starts vLLM."""

    def serving(self, url: str, model: str, findings: Sequence[Finding]) -> None:
        """Requests are answered from now on."""

    def warn(self, findings: Sequence[Finding]) -> None:
        """Something about this machine or deployment is doubtful; raises where that is too much."""

    def ending(self) -> None:
        """Running requests get time to finish."""
