"""The rich console that everything for people goes through."""

from typing import TextIO

from rich.console import Console

_PIPE_WIDTH = 200


class PlainConsole(Console):
    """Respects `NO_COLOR`, pipes and dumb terminals, and prints text as it is."""

    def __init__(self, stream: TextIO) -> None:
        # Text for a pipe is folded late: `grep` wants whole messages.
        width = None if stream.isatty() else _PIPE_WIDTH
        super().__init__(file=stream, width=width, highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Leave it to `main`, which knows that a reader may have seen enough."""
        raise BrokenPipeError
