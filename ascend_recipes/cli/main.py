"""Entry point of `ascend-run`: dispatch, exit codes, and no traceback for a user's mistake."""

import os
import sys
import time
import traceback
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from ascend_recipes import __version__
from ascend_recipes.cli.arguments import Invocation, parse_arguments
from ascend_recipes.cli.output import Output
from ascend_recipes.errors import ExitCode, Finding, RecipeError
from ascend_recipes.findings import LANGUAGES, finding
from ascend_recipes.paths import cache_root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # A command line that cannot be parsed must still be answered in the form that was asked for.
    output = Output(json="--json" in words, language=_language(words))
    try:
        invocation = parse_arguments(words)
        output = Output(
            command=invocation.command,
            json=invocation.json,
            quiet=invocation.quiet,
            language=invocation.lang,
        )
        return int(_dispatch(invocation, output))
    except RecipeError as error:
        output.failure(error.findings, error.exit_code)
        return int(error.exit_code)
    except KeyboardInterrupt:
        output.note("interrupted")
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough; nothing may be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    except Exception as error:  # noqa: BLE001 - the last line of defence against tracebacks
        output.failure((_internal_error(error),), ExitCode.INTERNAL)
        return int(ExitCode.INTERNAL)


def _language(words: Sequence[str]) -> str:
    """The language that the words ask for, in a command line that may not be readable."""
    asked = [word for flag, word in pairwise(words) if flag == "--lang"]
    asked += [word.removeprefix("--lang=") for word in words]
    return next((word for word in asked if word in LANGUAGES), "")


def _dispatch(invocation: Invocation, output: Output) -> ExitCode:
    # Deferred, here and below: help and usage errors need nothing else.
    if invocation.help:
        from ascend_recipes.cli.help import help_text

        output.text(help_text())
        return ExitCode.OK
    if invocation.version:
        output.text(f"ascend-run {__version__}")
        return ExitCode.OK
    from ascend_recipes.cli import commands

    if invocation.cfg or invocation.info:
        return commands.show_hydra(invocation)
    return commands.COMMANDS[invocation.command](invocation, output)


def _internal_error(error: Exception) -> Finding:
    said = f"{type(error).__name__}: {error}"
    try:
        path = _save_traceback()
    except OSError as reason:
        return finding("internal.error_unsaved", error=said, reason=reason.strerror)
    return finding("internal.error", error=said, path=path)


def _save_traceback() -> Path:
    folder = cache_root() / "tracebacks"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    path.write_text(traceback.format_exc(), encoding="utf-8")
    return path
