"""Everything that `ascend-run` prints: documents on stdout, people's text where it belongs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ascend_recipes.errors import ExitCode, Finding
from ascend_recipes.findings import chosen_language

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class Output:
    """Writer for one command: JSON or text on stdout, notes and progress on stderr."""

    def __init__(
        self, *, command: str = "", json: bool = False, quiet: bool = False, language: str = ""
    ) -> None:
        self.command = command
        self.json = json
        self.quiet = quiet
        self.language = language or chosen_language()
        self._has_document = False

    def document(self, command: str, code: ExitCode, body: Mapping[str, object]) -> None:
        """Print the one JSON document of a command."""
        assert not self._has_document, "a command prints one document"
        self._has_document = True
        head = {"command": command, "ok": code is ExitCode.OK, "exit_code": int(code)}
        self.text(json.dumps({**head, **body}, ensure_ascii=False, indent=2))

    def failure(self, findings: Iterable[Finding], code: ExitCode) -> None:
        """Print why a command stopped: on stderr for people, as the document with `--json`.

        A server that said in its document where it listens, and is lost later, says so on stderr.
        """
        if self.json and not self._has_document:
            self.document(self.command, code, {"findings": [item.to_json() for item in findings]})
        else:
            self.findings(findings)

    def text(self, text: str) -> None:
        """Print a line on stdout."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print a line on stderr, unless the user asked for quiet."""
        if not self.quiet:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def show(self, *items: RenderableType) -> None:
        """Print rich text on stdout."""
        _print(self.console(stderr=False), items)

    def show_note(self, *items: RenderableType) -> None:
        """Print rich text on stderr, unless the user asked for quiet."""
        if not self.quiet:
            _print(self.console(stderr=True), items)

    def findings(self, findings: Iterable[Finding], *, stderr: bool = True) -> None:
        """Print findings for people, each with its place, reason and remedy."""
        from ascend_recipes.cli.render import render_finding

        texts = [render_finding(item, self.language) for item in findings]
        _print(self.console(stderr=stderr), texts)

    def console(self, *, stderr: bool) -> Console:
        """A console for one of the two streams."""
        from ascend_recipes.cli.console import PlainConsole

        return PlainConsole(sys.stderr if stderr else sys.stdout)


def _print(console: Console, items: Iterable[RenderableType]) -> None:
    for item in items:
        # Plain text is meant to be copied: it is never folded.
        console.print(item, soft_wrap=isinstance(item, str))
