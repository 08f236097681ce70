"""Turns the log of a failed start into one finding."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ascend_recipes.errors import Finding

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


@dataclass(frozen=True)
class KnownCause:
    """A text in the log, what it means, and what helps."""

    pattern: re.Pattern[str]
    id: str
    meaning: str
    fix: str


def _cause(pattern: str, id: str, meaning: str, fix: str) -> KnownCause:
    return KnownCause(re.compile(pattern), id, meaning, fix)


KNOWN_CAUSES = (
    _cause(
        r"Failed to load plugin ascend_recipes",
        "launch.plugin_failed",
        "our plugin could not be imported inside vLLM, which then goes on without it",
        "read the traceback after 'Failed to load plugin' in the log",
    ),
    _cause(
        r"Address already in use",
        "launch.port_taken",
        "another program took the port during the start",
        "serving.port=<another port>",
    ),
    _cause(
        r"207005|alloc(?:ate)? (?:sq|cq)",
        "launch.streams_exhausted",
        "the device has no streams left, usually because of too many captured graphs; "
        "it is not about memory, whatever the text says",
        "fewer graph.capture_sizes, or graph=none",
    ),
    _cause(
        r"207008|EL0009",
        "launch.stream_resources",
        "stream resources ran out; drivers before HDK 25.5.1 have 2048 per device",
        "update the driver, or fewer graph.capture_sizes",
    ),
    _cause(
        r"EI0006|EI0010",
        "launch.link_timeout",
        "the collectives between devices did not connect in time",
        "check the network between the nodes; HCCL_CONNECT_TIMEOUT gives slow starts more time",
    ),
    _cause(
        r"EZ1001",
        "launch.operator_missing",
        "an operator is not built for this chip",
        "check hardware=… against the machine",
    ),
    _cause(
        r"507035|tiling failed in (?:dispatch|combine)|DDR address .* out of range",
        "launch.communication_window",
        "often a communication window that is too small for the experts' exchange",
        "raise env.HCCL_BUFFSIZE",
    ),
    _cause(
        r"Available KV cache memory: -|No available memory for the cache blocks",
        "launch.no_cache_memory",
        "the weights leave no memory for the cache",
        "more tensor parallelism, a quantized checkpoint, or a larger cache share",
    ),
    _cause(
        r"larger than the (?:maximum number of tokens|available KV cache memory)",
        "launch.cache_too_small",
        "one request of the longest length does not fit into the cache",
        "a smaller scheduler.max_model_len, or more cache memory",
    ),
    _cause(
        r"out of memory|OutOfMemoryError|Cannot allocate memory",
        "launch.out_of_memory",
        "a process ran out of memory",
        "more tensor parallelism, smaller scheduler.max_num_batched_tokens or cache memory",
    ),
    _cause(
        r"Device string must not be empty|Failed to infer device type|UnspecifiedPlatform",
        "launch.no_platform",
        "vLLM found no platform: our plugin is not installed in its environment, or failed",
        "install ascend-recipes where vLLM is installed; see the log for plugin errors",
    ),
)
"""Searched in order; the error found in the log is kept as evidence."""


def decode_failure(log: Path, returncode: int | None) -> Finding:
    """The most useful sentence about a start that failed.

    Args:
        log: Output of vLLM's processes.
        returncode: Exit status of the server process, negative for a signal; None if it still ran.
    """
    text = _tail(log)
    lines = [_PREFIX.sub("", line.rstrip()) for line in text.splitlines()]
    own = [match for line in lines if (match := _OWN_ERROR.match(line))]
    if own:
        return Finding(id=own[-1][1], message=own[-1][2], evidence=str(log))
    errors = [error for error in _raised(lines) if not _WRAPPERS.search(error)]
    evidence = f"{errors[-1]} ({log})" if errors else str(log)
    for cause in KNOWN_CAUSES:
        if cause.pattern.search(text):
            return Finding(id=cause.id, message=cause.meaning, fix=cause.fix, evidence=evidence)
    return Finding(
        id="launch.failed",
        message=f"vLLM did not start: {errors[-1] if errors else _last_words(lines, returncode)}",
        fix=f"the whole log is in {log}",
    )


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


def _last_words(lines: list[str], returncode: int | None) -> str:
    ended = f"it ended with status {returncode}" if returncode is not None else "it hangs"
    spoken = [line for line in lines if line.strip()]
    return f"{ended}; its last words were: {spoken[-1]}" if spoken else f"{ended} without a word"
