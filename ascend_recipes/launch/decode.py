"""Turns the log of a failed start into one finding."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ascend_recipes.errors import Finding
from ascend_recipes.findings import Phrase, finding, phrase, read_back

_PREFIX = re.compile(
    r"^(?:\([^)]*pid=\d+\) )?"  # (EngineCore pid=12)
    r"(?:(?:ERROR|WARNING|INFO|CRITICAL|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] )?"
)
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: (.*))?$")
_OWN_ERROR = re.compile(r"^ascend_recipes\.errors\.RecipeError: ([a-z_]+\.[a-z0-9_]+): (.*)")
_WRAPPERS = re.compile(
    r"Engine core initialization failed|Engine process failed to start|EngineDeadError"
    r"|WorkerProc initialization failed|EngineCore encountered an issue|KeyboardInterrupt"
    r"|died with exit code|cancelled|CancelledError|resource_tracker"
)
"""Errors that only report another one."""

_DEATH = "died unexpectedly"
_TAIL_BYTES = 400_000


def decode_failure(log: Path, returncode: int | None) -> Finding:
    """The most useful sentence about a start that failed.

    Args:
        log: Output of vLLM's processes.
        returncode: Exit status of the server process, negative for a signal; None if it still ran.
    """
    lines = [_PREFIX.sub("", line.rstrip()) for line in _tail(log).splitlines()]
    own = [match for line in lines if (match := _OWN_ERROR.match(line))]
    if own:
        return replace(read_back(own[-1][1], own[-1][2]), evidence=str(log))
    errors = [error for error in _raised(lines) if not _WRAPPERS.search(error)]
    evidence = f"{errors[-1]} ({log})" if errors else str(log)
    if (known := _root(log)) is not None:
        return replace(known, evidence=evidence)
    said = errors[-1] if errors else _last_words(lines, returncode)
    return finding("launch.failed", said=said, log=log)


def _root(log: Path) -> Finding | None:
    """The first known message of the log that is an error and no consequence of another one."""
    # Imported here: a start that succeeds decodes nothing.
    from ascend_recipes.logs.advice import log_findings
    from ascend_recipes.logs.decode import decode_log
    from ascend_recipes.logs.patterns import search_terms
    from ascend_recipes.registry.load import load_registry

    try:
        with log.open("rb") as stream:
            decoded = decode_log(stream, search_terms(load_registry().log_messages))
    except OSError:
        return None
    causes = [item for item in decoded.matches if item.is_cause]
    if not causes:
        return None
    found = log_findings(replace(decoded, matches=tuple(causes[:1])), str(log), None)[0]
    if found.fix:
        told = phrase("launch.remedy", remedy=Phrase(found.fix, found.fix_zh or found.fix), log=log)
    else:
        told = phrase("launch.decode", log=log)
    return replace(found, source=None, fix=told.en, fix_zh=told.zh)


def _raised(lines: list[str]) -> Iterator[str]:
    """The exception of every traceback: its first line that is not indented."""
    inside = False
    for number, line in enumerate(lines):
        if line.startswith(_TRACEBACK):
            inside = True
        elif inside and _EXCEPTION.match(line):
            inside = False
            # pydantic says what is wrong on the lines below.
            below = lines[number + 1 : number + 3] if "validation error" in line else []
            yield " ".join([line, *(text.strip() for text in below)])


def find_death_notice(log: Path) -> str | None:
    """The line in which vLLM reports that one of its processes died, if there is one."""
    return next((_PREFIX.sub("", line) for line in _tail(log).splitlines() if _DEATH in line), None)


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            return stream.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def _last_words(lines: list[str], returncode: int | None) -> Phrase:
    spoken = next((line for line in reversed(lines) if line.strip()), None)
    if returncode is None:
        return phrase("launch.hangs", words=spoken) if spoken else phrase("launch.hangs_silent")
    if spoken:
        return phrase("launch.ended_saying", status=returncode, words=spoken)
    return phrase("launch.ended_silent", status=returncode)
