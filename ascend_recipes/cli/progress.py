"""Shows the stages of a start: a spinner on a terminal, one line a stage elsewhere."""

import sys
import time
from typing import TYPE_CHECKING

from ascend_recipes.cli.output import Output

if TYPE_CHECKING:
    from rich.status import Status


class StageLine:
    """Progress on stderr; silent when the user asked for quiet."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._stage = ""
        self._detail = ""
        self._started = 0.0
        self._spinner: Status | None = None
        self.seconds: dict[str, float] = {}
        """Wall time of every stage that has ended."""

    def begin(self, stage: str) -> None:
        """End the current stage and begin the next one."""
        self.end()
        self._stage, self._detail, self._started = stage, "", time.monotonic()
        if self._output.quiet:
            return
        if sys.stderr.isatty() and self._spinner is None:
            self._spinner = self._output.console(stderr=True).status("")
            self._spinner.start()
        self._refresh()

    def detail(self, text: str) -> None:
        """Show what the stage is busy with."""
        self._detail = text
        self._refresh()

    def end(self) -> None:
        """Print the line of the current stage, if there is one."""
        if not self._stage:
            return
        seconds = time.monotonic() - self._started
        self.seconds[self._stage] = round(seconds, 3)
        self._stop_spinner()
        self._output.note(f"{self._stage:<8}{seconds:7.1f} s  {self._detail}".rstrip())
        self._stage = ""

    def abandon(self) -> None:
        """Stop showing anything: the start failed."""
        self._stop_spinner()
        self._stage = ""

    def _refresh(self) -> None:
        if self._spinner is not None:
            self._spinner.update(f"{self._stage:<8} {self._detail}")

    def _stop_spinner(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None
